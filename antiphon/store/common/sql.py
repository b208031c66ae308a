"""Read the SQL files of a store package: its queries, each with a name, and its numbered
migrations."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import resources

_NAME = re.compile(r"^-- (\w+)\n", re.MULTILINE)


def queries(package: str) -> Mapping[str, str]:
    """Return the queries in the file ``queries.sql`` of a store package. The key of a query is its
    name, which is in the comment above the query."""
    text = resources.files(package).joinpath("queries.sql").read_text("utf-8")
    _, *pieces = _NAME.split(text)
    return {name: body.strip() for name, body in zip(pieces[::2], pieces[1::2], strict=True)}


def migrations(package: str) -> tuple[tuple[str, str], ...]:
    """Return the name and the script of each migration of a store package, in the order in which
    they are applied. A name contains a digest of its script, so a store does not open if it was
    made with another form of a script."""
    folder = resources.files(package).joinpath("migrations")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return tuple(_named(file.name.removesuffix(".sql"), file.read_text("utf-8")) for file in files)


def _named(name: str, script: str) -> tuple[str, str]:
    return f"{name}-{hashlib.sha256(script.encode()).hexdigest()[:8]}", script

"""The file of the models that operators add while the server runs.

The file has the form of ``[models.NAME]`` tables, as in ``antiphon.toml``. The settings file has
priority: a model there hides an added model with the same name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from .options import literal

__all__ = ["ModelTables", "write_models"]

#: Name of a model → its options.
ModelTables = Mapping[str, Mapping[str, object]]

_HEADING = "# Models that operators have added over the API. The server writes this file.\n"


def _text(tables: ModelTables) -> str:
    """Return the text of the file."""
    lines = [_HEADING]
    for name, table in tables.items():
        lines.append(f"\n[models.{literal(name)}]\n")
        lines += [f"{key} = {literal(value)}\n" for key, value in table.items()]
    return "".join(lines)


def write_models(path: Path, tables: ModelTables) -> None:
    """Replace the file, so that another process reads either the old or the new models. Raises
    ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.{os.getpid()}.new")
    written.write_text(_text(tables), encoding="utf-8")
    written.replace(path)

"""The file of the models that operators add while the server runs.

The file has the form of ``[models.NAME]`` tables, as in ``antiphon.toml``. The settings file has
priority: a model there hides an added model with the same name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from antiphon.errors import SetupError

from .options import literal, read_file

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


def read_models(path: Path) -> ModelTables:
    """Read the file. Return no models if there is no file. Raises ``SetupError``."""
    try:
        exists = path.is_file()
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    tables = read_file(path).get("models", {}) if exists else {}
    if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
        raise SetupError(f"{path}: models must be tables [models.NAME]")
    return tables


def write_models(path: Path, tables: ModelTables) -> None:
    """Replace the file, so that another process reads either the old or the new models. Raises
    ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.{os.getpid()}.new")
    written.write_text(_text(tables), encoding="utf-8")
    written.replace(path)

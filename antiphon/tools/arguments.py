"""The arguments of a call as a model wrote them, read. It knows no tool."""

from __future__ import annotations

import json
from typing import Any

from antiphon.errors import ToolError

__all__ = ["parse_arguments"]


def parse_arguments(arguments: str) -> dict[str, Any]:
    """The object that they are. Models write halves of surrogate pairs, which no wire takes: they
    are replaced. Raises ``ToolError``, in words for the model."""
    try:
        said = json.dumps(json.loads(arguments or "{}"), ensure_ascii=False)
        asked = json.loads(said.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        raise ToolError("The arguments are not a JSON object.")
    return asked

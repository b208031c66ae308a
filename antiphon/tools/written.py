"""What models write as the arguments of a call, read as far as it can be. Nothing here raises."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parse_lenient", "whole"]


def parse_lenient(written: str, usual: str) -> dict[str, Any]:
    """The arguments; what is no object is the value of the ``usual`` one."""
    try:
        asked = json.loads(written or "{}")
    except (ValueError, RecursionError):
        asked = written
    asked = _sayable(asked)
    return asked if isinstance(asked, dict) else {usual: asked}


def whole(value: Any) -> int | None:
    """A number from 0 on that clients can hold, or None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value < 2**31 else None


def _sayable(value: Any) -> Any:
    """Without halves of surrogate pairs, which no wire takes."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return value

"""JSON responses encoded by msgspec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response as Reply

__all__ = ["Reply", "json_reply"]

_encode = msgspec.json.Encoder().encode


def json_reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """Build a response from a wire value or anything else msgspec can encode."""
    return Reply(_encode(value), status, headers, media_type="application/json")

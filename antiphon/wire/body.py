"""From bytes to JSON values, within limits: broken, deep and hostile bodies get a short 400."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from antiphon.errors import InvalidRequest

from .faults import bad_type, kind_of

__all__ = ["Limits", "parse"]


class Limits(Struct, frozen=True, kw_only=True):
    """How much of what a request may hold."""

    items: int = 10_000
    parts: int = 2_000
    tools: int = 1_024
    nesting: int = 64


def parse(body: bytes, limits: Limits) -> dict[str, Any]:
    """The JSON object of a body, top-level nulls left out. Raises ``InvalidRequest``."""
    try:
        raw = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep(limits.nesting) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raw = _lenient(body, limits)
    if not isinstance(raw, dict):
        raise bad_type("body", "an object", kind_of(raw))
    # Counting brackets is a cheap upper bound that spares nearly every request the walk.
    if body.count(b"[") + body.count(b"{") > limits.nesting:
        _check_depth(raw, limits.nesting)
    return {name: value for name, value in raw.items() if value is not None}


def _lenient(body: bytes, limits: Limits) -> Any:
    """JSON with halves of surrogate pairs is legal to the letter, and real clients cut text in the
    middle of one. No engine can read them: they become replacement characters."""
    try:
        raw = json.loads(body, parse_constant=_no_constant)
        text = json.dumps(raw, ensure_ascii=False)
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return msgspec.json.decode(whole.encode())
    except RecursionError:
        raise _too_deep(limits.nesting) from None
    except (ValueError, msgspec.DecodeError):
        raise InvalidRequest(
            "We could not parse the JSON body of your request.", code="invalid_json"
        ) from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_depth(raw: Any, limit: int) -> None:
    level = [raw]
    for _ in range(limit):
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _too_deep(limit)


def _too_deep(limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"The body of your request is nested deeper than {limit} levels.", code="invalid_value"
    )

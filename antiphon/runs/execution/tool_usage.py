"""What hosted tools used, summed up as ``tool_usage`` of a response has it. It knows no tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["summed"]

#: A family of tools that used nothing is told with zeros (OpenAI's ``Response.tool_usage``).
_NOTHING: Mapping[str, Any] = {
    "image_gen": {
        "input_tokens": 0,
        "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
        "output_tokens": 0,
        "total_tokens": 0,
    },
    "web_search": {"num_requests": 0},
}


def summed(so_far: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Both together, number by number. What is empty is filled up first."""
    return _added(so_far or _NOTHING, more)


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(one)
    for name, value in other.items():
        if isinstance(value, Mapping):
            known = both.get(name)
            both[name] = _added(known if isinstance(known, Mapping) else {}, value)
        elif isinstance(value, int):
            both[name] = both.get(name, 0) + value
    return both

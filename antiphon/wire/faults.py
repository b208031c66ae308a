"""What is wrong with a request, said as OpenAI's API says it: short, with the path of the field.

Clients match on these codes and messages. Nothing of the client's text is repeated beyond a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from antiphon.errors import InvalidRequest

__all__ = [
    "bad_type",
    "bad_value",
    "from_validation",
    "join",
    "kind_of",
    "missing",
    "out_of_range",
    "too_long",
    "too_many",
]

_KINDS = {
    dict: "an object",
    list: "an array",
    tuple: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    type(None): "null",
}
#: What msgspec calls a type → what OpenAI's messages call it.
_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a decimal",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_PLACE = re.compile(r" - at (?:`key` in )?`\$?([^`]*)`$")
_EXPECTED = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_SHOWN = 40


def kind_of(value: Any) -> str:
    """The JSON kind of a value, with its article."""
    return _KINDS.get(type(value), "an unknown value")


def join(path: str, rest: str) -> str:
    """``input[0]`` and ``content`` make ``input[0].content``."""
    if not path or not rest or rest.startswith("["):
        return path + rest
    return f"{path}.{rest}"


def _quoted(values: Iterable[Any]) -> str:
    words = [f"'{value}'" for value in values]
    if len(words) < 2:
        return "".join(words)
    comma = "," if len(words) > 2 else ""
    return f"{', '.join(words[:-1])}{comma} and {words[-1]}"


def missing(path: str, hint: str = "") -> InvalidRequest:
    """A field that must be there is not."""
    return InvalidRequest(
        f"Missing required parameter: '{path}'.{hint}",
        param=path,
        code="missing_required_parameter",
    )


def bad_type(path: str, expected: str, got: str) -> InvalidRequest:
    """A field of the wrong JSON kind."""
    return InvalidRequest(
        f"Invalid type for '{path}': expected {expected}, but got {got} instead.",
        param=path,
        code="invalid_type",
    )


def bad_value(path: str, value: Any, supported: Iterable[Any] = ()) -> InvalidRequest:
    """A value that is none of those allowed."""
    shown = str(value)
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
    values = _quoted(supported)
    tail = f" Supported values are: {values}." if values else ""
    return InvalidRequest(f"Invalid value: '{shown}'.{tail}", param=path, code="invalid_value")


def out_of_range(path: str, value: float, low: float | None, high: float | None) -> InvalidRequest:
    """A number beyond its bounds; at least one of them is given and broken."""
    kind = "decimal" if isinstance(value, float) else "integer"
    below = low is not None and value < low
    bound = low if below else high
    side, sign, code = (
        ("below minimum", ">=", "below_min") if below else ("above maximum", "<=", "above_max")
    )
    return InvalidRequest(
        f"Invalid '{path}': {kind} {side} value. Expected a value {sign} {bound}, "
        f"but got {str(value)[:_SHOWN]} instead.",
        param=path,
        code=f"{kind}_{code}_value",
    )


def too_long(path: str, length: int, limit: int) -> InvalidRequest:
    """A string over its length."""
    return InvalidRequest(
        f"Invalid '{path}': string too long. Expected a string with maximum length {limit}, "
        f"but got a string with length {length} instead.",
        param=path,
        code="string_above_max_length",
    )


def too_many(path: str, length: int, limit: int) -> InvalidRequest:
    """An array over its length."""
    return InvalidRequest(
        f"Invalid '{path}': array too long. Expected an array with maximum length {limit}, "
        f"but got an array with length {length} instead.",
        param=path,
        code="array_above_max_length",
    )


def from_validation(
    error: msgspec.ValidationError, path: str, raw: Any, supported: Iterable[Any] = ()
) -> InvalidRequest:
    """msgspec's complaint about ``raw``, which stands at ``path``, in OpenAI's words."""
    text = str(error)
    place = _PLACE.search(text)
    at = join(path, place.group(1).lstrip(".") if place else "").replace("[...]", "")
    if (absent := _MISSING.search(text)) is not None:
        return missing(join(at, absent.group(1)))
    if (kinds := _EXPECTED.search(text)) is not None:
        wanted = " or ".join(
            _NAMES.get(name, name) for name in kinds.group(1).split(" | ") if name != "null"
        )
        return bad_type(at, wanted, _NAMES.get(kinds.group(2), kinds.group(2)))
    if text.startswith("Invalid "):
        return bad_value(at, _at(raw, place.group(1) if place else ""), supported)
    return InvalidRequest(f"Invalid '{at}'.", param=at, code="invalid_value")


def _at(raw: Any, place: str) -> Any:
    """The value msgspec speaks of."""
    for name, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", place):
        try:
            raw = raw[name] if name else raw[int(index)]
        except (KeyError, IndexError, TypeError):
            return "?"
    return raw

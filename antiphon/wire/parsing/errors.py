"""What is wrong with a request, said as OpenAI's API says it: short, with the path of the field.

Clients match on these codes and messages. Nothing of the client's text is repeated beyond a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from antiphon.errors import InvalidRequest

__all__ = [
    "bad_pattern",
    "bad_type",
    "bad_value",
    "duplicate",
    "empty",
    "from_validation",
    "kind_of",
    "missing",
    "out_of_range",
    "shortened",
    "too_long",
    "too_many",
    "too_many_properties",
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
_SHOWN = 40  # characters of a client's own text in a message
_ID_SHOWN = 64


def kind_of(value: Any) -> str:
    """The JSON kind of a value, with its article."""
    return _KINDS.get(type(value), "an unknown value")


def shortened(value: Any) -> str:
    """A value as a message may show it."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _quoted(values: Iterable[Any]) -> str:
    words = [f"'{value}'" for value in values]
    if len(words) < 2:
        return "".join(words)
    comma = "," if len(words) > 2 else ""
    return f"{', '.join(words[:-1])}{comma} and {words[-1]}"


# --- one maker a fault ---------------------------------------------------------------------------


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


def bad_value(path: str, value: str, supported: Iterable[Any] = ()) -> InvalidRequest:
    """A value that is none of those allowed."""
    values = _quoted(supported)
    tail = f" Supported values are: {values}." if values else ""
    return InvalidRequest(
        f"Invalid value: '{shortened(value)}'.{tail}", param=path, code="invalid_value"
    )


def duplicate(path: str, id: str) -> InvalidRequest:
    """Two items of one id. Clients look for the id, of which ours have 52 characters."""
    return InvalidRequest(
        f"Duplicate item found with id {id[:_ID_SHOWN]}. Remove duplicate items from your input and"
        " try again.",
        param=path,
    )


def bad_pattern(path: str, pattern: str) -> InvalidRequest:
    """A string that does not look as it must."""
    return _invalid(
        path,
        f"string does not match pattern. Expected a string that matches the pattern '{pattern}'.",
        "invalid_value",
    )


def out_of_range(path: str, kind: str, value: float, sign: str, bound: str) -> InvalidRequest:
    """A number beyond its bound. ``kind`` is ``integer`` or ``decimal``, ``sign`` what holds of
    those allowed."""
    side, code = (
        ("below minimum", "below_min") if sign[0] == ">" else ("above maximum", "above_max")
    )
    return _invalid(
        path,
        f"{kind} {side} value. Expected a value {sign} {bound}, "
        f"but got {shortened(value)} instead.",
        f"{kind}_{code}_value",
    )


def too_long(path: str, length: int, limit: int) -> InvalidRequest:
    """A string over its length."""
    return _too_much(path, "string", length, limit)


def too_many(path: str, length: int, limit: int) -> InvalidRequest:
    """An array over its length."""
    return _too_much(path, "array", length, limit)


def _too_much(path: str, kind: str, length: int, limit: int) -> InvalidRequest:
    a = kind_of([] if kind == "array" else "")
    return _invalid(
        path,
        f"{kind} too long. Expected {a} with maximum length {limit}, "
        f"but got {a} with length {length} instead.",
        f"{kind}_above_max_length",
    )


def too_many_properties(path: str, length: int, limit: int) -> InvalidRequest:
    """An object over its size."""
    return _invalid(
        path,
        f"too many properties. Expected an object with at most {limit} properties, "
        f"but got an object with {length} properties instead.",
        "object_above_max_properties",
    )


def empty(path: str, value: Any) -> InvalidRequest:
    """A string or an array that must hold something."""
    kind = "string" if isinstance(value, str) else "array"
    return _invalid(
        path,
        f"empty {kind}. Expected {kind_of(value)} with minimum length 1, "
        f"but got an empty {kind} instead.",
        f"empty_{kind}",
    )


def _invalid(path: str, what: str, code: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{path}': {what}", param=path, code=code)


# --- msgspec's complaints ------------------------------------------------------------------------

_PLACE = re.compile(r" - at (?:`key` in )?`\$?([^`]*)`$")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


def from_validation(
    error: msgspec.ValidationError, path: str, raw: Any, supported: Iterable[Any] = ()
) -> InvalidRequest:
    """msgspec's complaint about ``raw``, which stands at ``path``, in OpenAI's words.

    ``supported`` are the values allowed there, if it complains that a value is none of them.
    """
    text = str(error)
    found = _PLACE.search(text)
    place = found.group(1).replace("[...]", "") if found else ""
    at = path + (place if path else place.removeprefix("."))
    value = _value_at(raw, place)
    for pattern, said in _COMPLAINTS.items():
        if (match := re.match(pattern, text)) is not None:
            return said(match, at, value)
    if text.startswith("Invalid ") and isinstance(value, str):
        return bad_value(at, value, supported)
    return InvalidRequest(f"Invalid value for '{at}'.", param=at, code="invalid_value")


def _value_at(raw: Any, place: str) -> Any:
    for name, index in _STEP.findall(place):
        try:
            raw = raw[name] if name else raw[int(index)]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _absent(match: re.Match[str], at: str, value: Any) -> InvalidRequest:
    return missing(f"{at}.{match[1]}" if at else match[1])


def _other_kind(match: re.Match[str], at: str, value: Any) -> InvalidRequest:
    wanted = " or ".join(_NAMES.get(name, name) for name in match[1].split(" | ") if name != "null")
    return bad_type(at, wanted, _NAMES.get(match[2], match[2]))


def _other_size(match: re.Match[str], at: str, value: Any) -> InvalidRequest:
    sign, limit = match[1], int(match[2])
    if not isinstance(value, str | list | tuple):
        return _invalid(at, f"expected a length {sign} {limit}.", "invalid_value")
    if sign == ">=":
        return empty(at, value)
    return (too_long if isinstance(value, str) else too_many)(at, len(value), limit)


def _other_number(match: re.Match[str], at: str, value: Any) -> InvalidRequest:
    kind = "integer" if match[1] == "int" else "decimal"
    return out_of_range(at, kind, value, match[2], match[3].removesuffix(".0"))


def _other_pattern(match: re.Match[str], at: str, value: Any) -> InvalidRequest:
    return bad_pattern(at, match[1])


#: How msgspec says it → who says it in OpenAI's words: (match, path, value).
_COMPLAINTS: Mapping[str, Callable[[re.Match[str], str, Any], InvalidRequest]] = {
    r"Object missing required field `([^`]*)`": _absent,
    r"Expected `([^`]*)`, got `([^`]*)`": _other_kind,
    r"Expected `\w+` of length (<=|>=) (\d+)": _other_size,
    r"Expected `(int|float)` ([<>]=?) (\S+)": _other_number,
    r"Expected `str` matching regex '(.*)'": _other_pattern,
}

"""Errors of request validation in OpenAI's wording: short, with the path of the field.

Client programs may compare codes and messages with OpenAI's, so the wording must be the same.
Messages quote at most a few characters of the client's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from antiphon.errors import InvalidRequest, invalid_field

_JSON_TYPE_NAMES = {
    dict: "an object",
    list: "an array",
    tuple: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    type(None): "null",
}
#: msgspec's name of a type → OpenAI's name.
_MSGSPEC_TYPE_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a decimal",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_MAX_VALUE_CHARS = 40  # characters of a client's own text in a message
_MAX_ID_CHARS = 64


def unknown_parameter(param: str) -> InvalidRequest:
    """Return the error for a field that does not exist. ``param``: its path."""
    message = f"Unknown parameter: '{param}'."
    return InvalidRequest(message, param=param, code="unknown_parameter")


def json_type_name(value: object) -> str:
    """Return the JSON type of a value as words with an article, such as ``a string``."""
    return _JSON_TYPE_NAMES.get(type(value), "an unknown value")


def truncated(value: object) -> str:
    """Return a value as text. Long text is cut, so that it fits into an error message."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_VALUE_CHARS else text[:_MAX_VALUE_CHARS] + "…"


def _quoted(values: Iterable[object]) -> str:
    words = [f"'{value}'" for value in values]
    if len(words) < 2:
        return "".join(words)
    comma = "," if len(words) > 2 else ""
    return f"{', '.join(words[:-1])}{comma} and {words[-1]}"


# --- errors --------------------------------------------------------------------------------------


def missing_parameter(path: str, hint: str = "") -> InvalidRequest:
    """Return the error for a missing required field. ``hint``: text that is appended to the
    message."""
    return InvalidRequest(
        f"Missing required parameter: '{path}'.{hint}",
        param=path,
        code="missing_required_parameter",
    )


def mutually_exclusive(one: str, other: str) -> InvalidRequest:
    """Return the error for two fields of which a request may have only one."""
    return InvalidRequest(
        f"Mutually exclusive parameters: '{one}' and '{other}'. Ensure you are only providing one"
        " of them.",
        param=other,
        code="mutually_exclusive_parameters",
    )


def invalid_type(path: str, expected: str, got: str) -> InvalidRequest:
    """Return the error for a field of the wrong JSON type."""
    return InvalidRequest(
        f"Invalid type for '{path}': expected {expected}, but got {got} instead.",
        param=path,
        code="invalid_type",
    )


def invalid_value(path: str, value: str, supported: Iterable[object] = ()) -> InvalidRequest:
    """Return the error for a value that is not supported. ``supported``: the supported values, if
    they can be listed.
    """
    values = _quoted(supported)
    tail = f" Supported values are: {values}." if values else ""
    return InvalidRequest(
        f"Invalid value: '{truncated(value)}'.{tail}", param=path, code="invalid_value"
    )


def duplicate_item(path: str, id: str) -> InvalidRequest:
    """Return the error for two items with the same id. The message shows up to 64 characters of the
    id. Clients read the id from the message. Antiphon's own ids have 52 characters, so they are
    shown whole."""
    return InvalidRequest(
        f"Duplicate item found with id {id[:_MAX_ID_CHARS]}. Remove duplicate items from your input"
        " and try again.",
        param=path,
    )


def pattern_mismatch(path: str, pattern: str) -> InvalidRequest:
    """Return the error for a string that does not match ``pattern``."""
    return invalid_field(
        path,
        f"string does not match pattern. Expected a string that matches the pattern '{pattern}'.",
    )


def out_of_range(path: str, kind: str, value: float, sign: str, bound: str) -> InvalidRequest:
    """Return the error for a number out of range.

    ``kind``: ``integer`` or ``decimal``. ``sign`` and ``bound``: the condition that the number must
    satisfy, such as ``>=`` and ``1``.
    """
    side, code = (
        ("below minimum", "below_min") if sign[0] == ">" else ("above maximum", "above_max")
    )
    return invalid_field(
        path,
        f"{kind} {side} value. Expected a value {sign} {bound}, "
        f"but got {truncated(value)} instead.",
        f"{kind}_{code}_value",
    )


def too_long_error(path: str, length: int, limit: int) -> InvalidRequest:
    """Return the error for a string that is too long."""
    return _too_much(path, "string", length, limit)


def too_many(path: str, length: int, limit: int) -> InvalidRequest:
    """Return the error for an array with too many entries."""
    return _too_much(path, "array", length, limit)


def _too_much(path: str, kind: str, length: int, limit: int) -> InvalidRequest:
    a = json_type_name([] if kind == "array" else "")
    return invalid_field(
        path,
        f"{kind} too long. Expected {a} with maximum length {limit}, "
        f"but got {a} with length {length} instead.",
        f"{kind}_above_max_length",
    )


def too_many_properties(path: str, length: int, limit: int) -> InvalidRequest:
    """Return the error for an object with too many properties."""
    return invalid_field(
        path,
        f"too many properties. Expected an object with at most {limit} properties, "
        f"but got an object with {length} properties instead.",
        "object_above_max_properties",
    )


def empty_value(path: str, value: object) -> InvalidRequest:
    """Return the error for an empty string or array."""
    kind = "string" if isinstance(value, str) else "array"
    return invalid_field(
        path,
        f"empty {kind}. Expected {json_type_name(value)} with minimum length 1, "
        f"but got an empty {kind} instead.",
        f"empty_{kind}",
    )


# --- errors of msgspec ---------------------------------------------------------------------------

_PATH_SUFFIX = re.compile(r" - at (?:`key` in )?`\$?([^`]*)`$")
_PATH_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


def translate_validation_error(
    error: msgspec.ValidationError, path: str, raw: object, supported: Iterable[object] = ()
) -> InvalidRequest:
    """Translate a validation error of msgspec into OpenAI's wording.

    ``raw``: the value that msgspec could not convert. ``path``: path of this value in the body.
    ``supported``: the values allowed in the field, if the field has a list of values.
    """
    text = str(error)
    suffix = _PATH_SUFFIX.search(text)
    inner_path = suffix.group(1).replace("[...]", "") if suffix else ""
    at = path + (inner_path if path else inner_path.removeprefix("."))
    value = _value_at(raw, inner_path)
    for pattern, translate in _TRANSLATIONS.items():
        if (match := re.match(pattern, text)) is not None:
            if isinstance(value, dict) and "[...]" in text:  # msgspec does not name the key
                name = next((name for name in value if _may_be_meant(value[name], match)), "")
                at, value = f"{at}.{truncated(name)}", value.get(name)
            elif isinstance(value, dict) and "`key` in" in text:
                value = max(value, key=len, default="")
            return translate(match, at, value)
    if text.startswith("Invalid ") and isinstance(value, str):
        return invalid_value(at, value, supported)
    return InvalidRequest(f"Invalid value for '{at}'.", param=at, code="invalid_value")


def _may_be_meant(value: object, match: re.Match[str]) -> bool:
    """Whether an error about a value of an object can be about this value: it has the wrong type,
    or the wrong length."""
    groups = match.groups()
    if match.re.pattern == _LENGTH:
        return isinstance(value, str) and len(value) > int(groups[2])
    return len(groups) == 2 and json_type_name(value) == _MSGSPEC_TYPE_NAMES.get(groups[1])


def _value_at(raw: Any, path: str) -> Any:
    for name, index in _PATH_STEP.findall(path):
        try:
            raw = raw[name] if name else raw[int(index)]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _missing_field(match: re.Match[str], at: str, value: object) -> InvalidRequest:
    return missing_parameter(f"{at}.{match[1]}" if at else match[1])


def _wrong_type(match: re.Match[str], at: str, value: object) -> InvalidRequest:
    wanted = " or ".join(
        _MSGSPEC_TYPE_NAMES.get(name, name) for name in match[1].split(" | ") if name != "null"
    )
    return invalid_type(at, wanted, _MSGSPEC_TYPE_NAMES.get(match[2], match[2]))


def _wrong_length(match: re.Match[str], at: str, value: object) -> InvalidRequest:
    sign, limit = match[2], int(match[3])
    if isinstance(value, dict) and sign == "<=":
        return too_many_properties(at, len(value), limit)
    if not isinstance(value, str | list | tuple):
        return invalid_field(at, f"expected a length {sign} {limit}.")
    if sign == ">=":
        return empty_value(at, value)
    return (too_long_error if isinstance(value, str) else too_many)(at, len(value), limit)


def _wrong_range(match: re.Match[str], at: str, value: Any) -> InvalidRequest:
    kind = "integer" if match[1] == "int" else "decimal"
    return out_of_range(at, kind, value, match[2], match[3].removesuffix(".0"))


def _wrong_pattern(match: re.Match[str], at: str, value: object) -> InvalidRequest:
    return pattern_mismatch(at, match[1])


def _unknown_field(match: re.Match[str], at: str, value: object) -> InvalidRequest:
    name = truncated(match[1])
    return unknown_parameter(f"{at}.{name}" if at else name)


_LENGTH = r"Expected `(\w+)` of length (<=|>=) (\d+)"
#: Pattern of msgspec's message → function of (match, path, value) that returns our error.
_TRANSLATIONS: Mapping[str, Callable[[re.Match[str], str, Any], InvalidRequest]] = {
    r"Object missing required field `([^`]*)`": _missing_field,
    r"Expected `([^`]*)`, got `([^`]*)`": _wrong_type,
    r"Object contains unknown field `([^`]*)`": _unknown_field,
    _LENGTH: _wrong_length,
    r"Expected `(int|float)` ([<>]=?) (\S+)": _wrong_range,
    r"Expected `str` matching regex '(.*)'": _wrong_pattern,
}

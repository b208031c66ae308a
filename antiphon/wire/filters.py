"""Filters on the attributes of files: read from JSON, and asked whether they hold. No recursion
deeper than the body's own nesting; what a filter names and a file lacks does not hold.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.errors import (
    empty_value,
    invalid_type,
    invalid_value,
    json_type_name,
    missing_parameter,
    too_many,
)
from antiphon.wire.parsing.fields import read_object, read_tag

__all__ = ["Attributes", "Comparison", "Compound", "Filter", "matches", "read_filter"]

Attributes = Mapping[str, str | float | bool]

_MAX_FILTERS = 128  # filters within one


class Comparison(Struct, frozen=True):
    """One attribute against a value."""

    type: str
    key: str
    value: Any


class Compound(Struct, frozen=True):
    """All of some filters, or any of them."""

    type: Literal["and", "or"]
    filters: tuple[Comparison | Compound, ...]


Filter = Comparison | Compound


def _ordering(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Numbers with numbers, texts with texts; anything else has no order."""

    def holds(there: Any, asked: Any) -> bool:
        texts = isinstance(there, str) and isinstance(asked, str)
        return (texts or (_is_number(there) and _is_number(asked))) and compare(there, asked)

    return holds


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equals(there: Any, asked: Any) -> bool:
    return isinstance(there, bool) == isinstance(asked, bool) and bool(there == asked)


#: What a comparison means; ``there`` is what the file has.
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": _equals,
    "ne": lambda there, asked: not _equals(there, asked),
    "gt": _ordering(operator.gt),
    "gte": _ordering(operator.ge),
    "lt": _ordering(operator.lt),
    "lte": _ordering(operator.le),
    "in": lambda there, asked: any(_equals(there, one) for one in asked),
    "nin": lambda there, asked: not any(_equals(there, one) for one in asked),
}
_LIST_TYPES = ("in", "nin")
_TYPES = (*_COMPARE, "and", "or")


def matches(asked: Filter | None, attributes: Attributes) -> bool:
    """Whether a file with these attributes is meant."""
    if asked is None:
        return True
    if isinstance(asked, Compound):
        held = (matches(one, attributes) for one in asked.filters)
        return all(held) if asked.type == "and" else any(held)
    if asked.key not in attributes:
        return asked.type in ("ne", "nin")
    return _COMPARE[asked.type](attributes[asked.key], asked.value)


def read_filter(raw: Any, path: str) -> Filter:
    """The filter that ``raw`` describes. Raises ``InvalidRequest``."""
    fields = read_object(raw, path)
    kind = read_tag(fields, path, _TYPES)
    if kind in ("and", "or"):
        inner = fields.get("filters")
        if not isinstance(inner, list):
            raise _missing_or(inner, f"{path}.filters", "an array")
        if not inner:
            raise empty_value(f"{path}.filters", ())
        if len(inner) > _MAX_FILTERS:
            raise too_many(f"{path}.filters", len(inner), _MAX_FILTERS)
        read = (read_filter(one, f"{path}.filters[{at}]") for at, one in enumerate(inner))
        return Compound("and" if kind == "and" else "or", tuple(read))
    key, value = fields.get("key"), fields.get("value")
    if not isinstance(key, str):
        raise _missing_or(key, f"{path}.key", "a string")
    _check_value(kind, value, f"{path}.value")
    return Comparison(kind, key, value)


def _check_value(kind: str, value: Any, path: str) -> None:
    if kind in _LIST_TYPES:
        if not isinstance(value, list):
            raise _missing_or(value, path, "an array")
        for at, one in enumerate(value):
            if not isinstance(one, str | bool | int | float):
                raise invalid_type(f"{path}[{at}]", "a string or a number", json_type_name(one))
    elif not isinstance(value, str | bool | int | float):
        raise _missing_or(value, path, "a string, a number or a boolean")
    elif kind not in ("eq", "ne") and isinstance(value, bool):
        raise invalid_value(path, str(value).lower())


def _missing_or(value: Any, path: str, expected: str) -> InvalidRequest:
    return (
        missing_parameter(path)
        if value is None
        else invalid_type(path, expected, json_type_name(value))
    )

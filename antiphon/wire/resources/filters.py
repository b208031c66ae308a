"""Filters on the attributes of files: types, parser and evaluation.

If a file lacks the compared attribute, ``ne`` and ``nin`` are true and all other comparisons are
false. Nested filters are parsed and evaluated recursively. The nesting limit of request bodies
bounds the depth of this recursion.
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

_MAX_FILTERS = 128  # filters directly inside one compound filter


class Comparison(Struct, frozen=True):
    """A filter that compares one attribute of a file with a value. ``type``: the operator, such as
    ``eq``. ``key``: the name of the attribute."""

    type: str
    key: str
    value: Any


class Compound(Struct, frozen=True):
    """Several filters, joined by ``and`` or ``or``."""

    type: Literal["and", "or"]
    filters: tuple[Comparison | Compound, ...]


Filter = Comparison | Compound


def _ordering(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Return a version of ``compare`` that accepts values of all types. Two numbers or two texts
    are compared with ``compare``. For any other pair of values, the result is False."""

    def compare_same_type(actual: object, wanted: object) -> bool:
        texts = isinstance(actual, str) and isinstance(wanted, str)
        return (texts or (_is_number(actual) and _is_number(wanted))) and compare(actual, wanted)

    return compare_same_type


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equals(actual: object, wanted: object) -> bool:
    return isinstance(actual, bool) == isinstance(wanted, bool) and bool(actual == wanted)


#: Type of comparison → function that compares the file's value with the filter's value.
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": _equals,
    "ne": lambda actual, wanted: not _equals(actual, wanted),
    "gt": _ordering(operator.gt),
    "gte": _ordering(operator.ge),
    "lt": _ordering(operator.lt),
    "lte": _ordering(operator.le),
    "in": lambda actual, wanted: any(_equals(actual, one) for one in wanted),
    "nin": lambda actual, wanted: not any(_equals(actual, one) for one in wanted),
}
_LIST_TYPES = ("in", "nin")
_TYPES = (*_COMPARE, "and", "or")


def matches(filter: Filter | None, attributes: Attributes) -> bool:
    """Return whether a file with these attributes passes the filter. None passes every file."""
    if filter is None:
        return True
    if isinstance(filter, Compound):
        results = (matches(one, attributes) for one in filter.filters)
        return all(results) if filter.type == "and" else any(results)
    if filter.key not in attributes:
        return filter.type in ("ne", "nin")
    return _COMPARE[filter.type](attributes[filter.key], filter.value)


def read_filter(raw: object, path: str) -> Filter:
    """Read a filter. Raises ``InvalidRequest``."""
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


def _check_value(kind: str, value: object, path: str) -> None:
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


def _missing_or(value: object, path: str, expected: str) -> InvalidRequest:
    return (
        missing_parameter(path)
        if value is None
        else invalid_type(path, expected, json_type_name(value))
    )

"""Read fields that arrive as texts, as those of query strings and forms do, by the types of the
fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import Struct, UnsetType
from msgspec.structs import fields

from antiphon.wire.json_types import JsonObject

from .errors import invalid_type, invalid_value, truncated

_SUBSCRIPT = re.compile(r"\[\d*\]\Z")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def plain_name(name: str) -> str:
    """Return the name of a field without the subscript of a list, as in ``name[]``."""
    return _SUBSCRIPT.sub("", name)


def read_texts(pairs: Iterable[tuple[str, str]], cls: type[Struct]) -> JsonObject:
    """Return the fields of ``cls``, each with the type of JSON from which it can be converted.
    ``pairs``: names and texts.

    A list may be sent in each of the notations ``name[]=a&name[]=b``, ``name[0]=a&name[1]=b`` and
    ``name=a&name=b``. Of other fields, the last text counts. A field with an empty text counts as
    missing. Raises ``InvalidRequest``.
    """
    pairs = tuple(pairs)
    if not pairs:  # as in most requests
        return {}
    found = {name: _read(name, kind, pairs) for name, kind in _kinds(cls).items()}
    return {name: value for name, value in found.items() if value is not None}


@cache
def _kinds(cls: type[Struct]) -> Mapping[str, Any]:
    return {field.encode_name: _plain_type(field.type) for field in fields(cls)}


def _plain_type(kind: Any) -> Any:
    """Return a type without its bounds, and without null and UNSET."""
    if get_origin(kind) is Annotated:
        return _plain_type(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        arms = (arm for arm in get_args(kind) if arm not in (type(None), UnsetType))
        return _plain_type(next(arms))
    return kind


def _read(name: str, kind: Any, pairs: tuple[tuple[str, str], ...]) -> object:
    if get_origin(kind) is dict:
        return _mapping(name, pairs)
    values = [value for given, value in pairs if value and plain_name(given) == name]
    if get_origin(kind) is tuple:
        options = get_args(get_args(kind)[0])
        for value in values:
            if options and value not in options:
                raise invalid_value(name, value, options)
    if not values or get_origin(kind) is tuple:
        return values or None
    return _SCALARS.get(kind, _text)(name, values[-1])


def _text(name: str, text: str) -> str:
    return text


def _flag(name: str, text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise invalid_type(name, "a boolean", f"'{truncated(text)}'")
    return _FLAGS[text.lower()]


def _integer(name: str, text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise invalid_type(name, "an integer", f"'{truncated(text)}'")
    return int(text)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise invalid_type(name, "a number", f"'{truncated(text)}'") from None


_SCALARS: Mapping[type, Callable[[str, str], object]] = {
    bool: _flag,
    int: _integer,
    float: _number,
}


def _mapping(name: str, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a field of the form ``name[key]=value``, as values by their keys."""
    found = {}
    for given, value in pairs:
        if given == name:
            raise invalid_type(name, f"an object, as in '{name}[key]=value'", "a string")
        if given.startswith(f"{name}[") and given.endswith("]"):
            found[given[len(name) + 1 : -1]] = value
    return found

"""Functions that all parsers of the wire types share."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from antiphon.wire.json_types import JsonObject
from antiphon.wire.tags import tag_of

from .errors import (
    invalid_type,
    invalid_value,
    json_type_name,
    missing_parameter,
    too_many,
    translate_validation_error,
    truncated,
    unknown_parameter,
)
from .json_body import DEFAULT_LIMITS, BodyLimits, parse_json_object

_S = TypeVar("_S", bound=msgspec.Struct)
_ERROR_PATH = re.compile(r"`\$\.([^`]*)`$")


def classes_by_tag(classes: tuple[type[_S], ...]) -> Mapping[str, type[_S]]:
    """Return a mapping from tag to class. The tag of a class is the value of the field ``type`` in
    the JSON of its instances."""
    return {tag_of(cls): cls for cls in classes}


def drop_nulls(raw: JsonObject) -> JsonObject:
    """Drop null fields: null means "not given"."""
    return {name: value for name, value in raw.items() if value is not None}


def read_object(raw: object, path: str) -> JsonObject:
    """Return the fields of a JSON object. Null fields are dropped. Raises ``InvalidRequest`` for a
    value that is not an object."""
    if not isinstance(raw, dict):
        raise invalid_type(path, "an object", json_type_name(raw))
    return drop_nulls(raw)


def read_inner(fields: JsonObject, name: str, path: str) -> JsonObject:
    """Return the required field ``name`` of an object, which is an object. Raises
    ``InvalidRequest``."""
    require(fields, path, name)
    return read_object(fields[name], f"{path}.{name}")


def require(fields: Mapping[str, object], path: str, *names: str) -> None:
    """Raise ``InvalidRequest`` if an object lacks one of these fields. ``path``: the path of the
    object; "" for the body."""
    for name in names:
        if name not in fields:
            raise missing_parameter(f"{path}.{name}" if path else name)


def known_fields(raw: Mapping[str, object], names: Collection[str], path: str) -> JsonObject:
    """Return the fields of a JSON object. Null fields are dropped.

    Raises ``InvalidRequest`` for a field that is not in ``names``. Ignoring such a field could
    mislead the client. An empty array in an unknown field is allowed.
    """
    given = drop_nulls(dict(raw))
    for name, value in given.items():
        if name not in names and value != []:
            raise unknown_parameter(f"{path}.{truncated(name)}" if path else truncated(name))
    return {name: value for name, value in given.items() if name in names}


def read_array(raw: object, path: str, limit: int, expected: str = "an array") -> list[Any]:
    """Return an array of at most ``limit`` entries. Raises ``InvalidRequest``. ``expected``: the
    name of the expected type in the error message."""
    if not isinstance(raw, list):
        raise invalid_type(path, expected, json_type_name(raw))
    if len(raw) > limit:
        raise too_many(path, len(raw), limit)
    return raw


def read_objects(
    raw: object, path: str, limit: int, expected: str = "an array"
) -> Iterator[tuple[JsonObject, str]]:
    """Yield the objects of an array, each with its path. Their null fields are dropped. The
    arguments are those of ``read_array``. Raises ``InvalidRequest``."""
    for index, each in enumerate(read_array(raw, path, limit, expected)):
        at = f"{path}[{index}]"
        yield read_object(each, at), at


def read_choice(raw: object, path: str, allowed: Collection[str]) -> str:
    """Return ``raw`` if it is one of the ``allowed`` words. Raises ``InvalidRequest`` for any other
    value."""
    if not isinstance(raw, str) or raw not in allowed:
        raise invalid_value(path, str(raw), allowed)
    return raw


def read_string(fields: Mapping[str, Any], name: str, path: str) -> str:
    """Return the required field ``name`` of an object, which is a string. Raises
    ``InvalidRequest``."""
    value = fields.get(name)
    if value is None:
        raise missing_parameter(f"{path}.{name}")
    if not isinstance(value, str):
        raise invalid_type(f"{path}.{name}", "a string", json_type_name(value))
    return value


def read_tag(fields: JsonObject, path: str, allowed: Collection[str], name: str = "type") -> str:
    """Return the field ``name`` of an object, which determines its other fields. Raises
    ``InvalidRequest`` if the value is not in ``allowed``."""
    tag = read_string(fields, name, path)
    if tag not in allowed:
        raise invalid_value(f"{path}.{name}", tag, allowed)
    return tag


def convert(fields: JsonObject, cls: type[_S], path: str) -> _S:
    """Convert fields to an object of the class ``cls``. Raises ``InvalidRequest`` with the path of
    the faulty field."""
    try:
        return msgspec.convert(fields, cls)
    except msgspec.ValidationError as error:
        raise translate_validation_error(
            error, path, fields, _supported_values(cls, error)
        ) from None


def body_parser(
    cls: type[_S], *, refuses_unknown: bool = False
) -> Callable[[bytes, BodyLimits], _S]:
    """Return a parser for JSON bodies with the fields of ``cls``, which need no checks besides
    those of their types. ``refuses_unknown``: whether other fields are errors. Otherwise, they are
    ignored. The parser raises ``InvalidRequest``."""

    def parse(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> _S:
        raw = parse_json_object(body, limits)
        return convert(
            known_fields(raw, cls.__struct_fields__, "") if refuses_unknown else raw, cls, ""
        )

    return parse


def _supported_values(cls: type[msgspec.Struct], error: msgspec.ValidationError) -> tuple[Any, ...]:
    """Return the allowed values of the field that ``error`` names. Return an empty tuple if the
    field has no list of values."""
    path = _ERROR_PATH.search(str(error))
    kinds: tuple[Any, ...] = (cls,)
    for name in re.findall(r"[A-Za-z_]+|\[", path.group(1)) if path else ():
        kinds = tuple(inner for kind in kinds for inner in _inner_types(kind, name))
    return tuple(value for kind in kinds for value in _values_of(kind)) if path else ()


def _arms(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union; of any other type, the type itself."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _inner_types(kind: Any, name: str) -> list[Any]:
    """Return the types of a field. ``name``: the name of the field, or ``[`` for the entries of an
    array."""
    found: list[Any] = []
    for arm in _arms(kind):
        if name == "[":
            found += get_args(arm)[:1]
        elif isinstance(arm, type) and issubclass(arm, msgspec.Struct):
            config = arm.__struct_config__
            is_tag = name == config.tag_field
            found += [Literal[config.tag]] if is_tag else _hints(arm).get(name, ())
    return found


@lru_cache(maxsize=256)
def _hints(cls: type[msgspec.Struct]) -> dict[str, tuple[Any, ...]]:
    return {name: (hint,) for name, hint in get_type_hints(cls).items()}


def _values_of(kind: object) -> list[Any]:
    """Return the values of the literals in a type."""
    return [value for arm in _arms(kind) if get_origin(arm) is Literal for value in get_args(arm)]

"""Parse query strings into the types that document them.

Lists are accepted in all notations that clients use, such as ``name[]=a&name[]=b``,
``name[0]=a&name[1]=b`` and ``name=a&name=b``. Unknown parameters are ignored, and a parameter with
an empty value counts as missing. An invalid value is an error that names the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin
from urllib.parse import parse_qsl

from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields
from starlette.requests import Request

from antiphon.errors import InvalidRequest, unsupported_parameter
from antiphon.wire.cursors import PageOrder, PageParams
from antiphon.wire.parsing.errors import invalid_type, invalid_value, truncated
from antiphon.wire.parsing.fields import convert
from antiphon.wire.request import Include

_MAX_FIELDS = 200
_SUBSCRIPT = re.compile(r"\[\d*\]\Z")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_QueryT = TypeVar("_QueryT", bound=Struct)
_Pairs = list[tuple[str, str]]


class QueryParam(Struct, frozen=True, kw_only=True):
    """A query parameter as the OpenAPI document describes it. ``default`` is None if the parameter
    has no default."""

    name: str
    type: Any
    description: str
    is_required: bool
    default: Any


class OldestFirst(PageParams, frozen=True, kw_only=True):
    """The parameters of a list that begins with its oldest entry."""

    order: PageOrder = "asc"


#: A parameter that many endpoints accept, because OpenAI's clients send it.
_Include = Annotated[
    tuple[Include, ...],
    Meta(
        description="Additional data to include. This server always includes all data that it has."
    ),
]


class Including(Struct, frozen=True, kw_only=True):
    """The parameters of an endpoint that returns an item."""

    include: _Include = ()


class IncludingPage(PageParams, frozen=True, kw_only=True):
    """The parameters of a page of items."""

    include: _Include = ()


def read_query(request: Request, cls: type[_QueryT], *, refused: Collection[str] = ()) -> _QueryT:
    """Return the query parameters of a request. ``cls``: the type whose fields are the parameters.
    ``refused``: parameters that the endpoint does not support. Raises ``InvalidRequest``."""
    try:
        query = request.scope["query_string"].decode("latin-1")
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise InvalidRequest("Too many query parameters.") from None
    for name, value in pairs:
        if value and (plain := _SUBSCRIPT.sub("", name)) in refused:
            raise unsupported_parameter(plain)
    found = {param.name: _read(param, pairs) for param in params_of(cls)}
    return convert({name: value for name, value in found.items() if value is not None}, cls, "")


@cache
def params_of(cls: type[Struct]) -> tuple[QueryParam, ...]:
    """Return the query parameters that are the fields of a type. The last ``Meta`` of each field
    contains its description."""
    return tuple(map(_param, fields(cls)))


def _param(field: FieldInfo) -> QueryParam:
    kind, *bounds, described = get_args(field.type)
    if get_origin(kind) in (Union, UnionType):
        kind = next(arm for arm in get_args(kind) if arm is not type(None))
    for bound in bounds:
        kind = Annotated[kind, bound]
    return QueryParam(
        name=field.name,
        type=kind,
        description=described.description,
        is_required=field.required,
        default=field.default if isinstance(field.default, str | int) else None,
    )


def _read(param: QueryParam, pairs: _Pairs) -> Any:
    """Return the value of a parameter in the form that its type can be converted from. Returns None
    if the parameter is missing. Raises ``InvalidRequest``."""
    name, kind = param.name, param.type
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is dict:
        return _mapping(name, pairs)
    values = [value for given, value in pairs if value and _SUBSCRIPT.sub("", given) == name]
    if get_origin(kind) is tuple:
        options = get_args(get_args(kind)[0])
        for value in values:
            if options and value not in options:
                raise invalid_value(name, value, options)
        return values or None
    text = values[-1] if values else ""
    if kind is bool and text:
        if text.lower() not in _FLAGS:
            raise invalid_type(name, "a boolean", f"'{truncated(text)}'")
        return _FLAGS[text.lower()]
    if kind is int and text:
        if not _INTEGER.fullmatch(text):
            raise invalid_type(name, "an integer", f"'{truncated(text)}'")
        return int(text)
    return text or None


def _mapping(name: str, pairs: _Pairs) -> dict[str, str]:
    """Return a parameter of the form ``name[key]=value``, as values by their keys."""
    found = {}
    for given, value in pairs:
        if given == name:
            raise invalid_type(name, f"an object, as in '{name}[key]=value'", "a string")
        if given.startswith(f"{name}[") and given.endswith("]"):
            found[given[len(name) + 1 : -1]] = value
    return found

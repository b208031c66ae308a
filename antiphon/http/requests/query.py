"""Read the URL of a request: the ids in its path, and its query string, by the types that document
it. Unknown parameters are ignored."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin
from urllib.parse import parse_qsl

from msgspec import Meta, Struct
from msgspec.structs import FieldInfo, fields
from starlette.requests import Request

from antiphon.errors import InvalidRequest, unsupported_parameter
from antiphon.http.middleware.request_context import request_context
from antiphon.wire.cursors import PageOrder, PageParams
from antiphon.wire.parsing.fields import convert
from antiphon.wire.parsing.text_fields import plain_name, read_texts
from antiphon.wire.request import Include

_MAX_FIELDS = 200
_QueryT = TypeVar("_QueryT", bound=Struct)


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
        if value and plain_name(name) in refused:
            raise unsupported_parameter(plain_name(name))
    return convert(read_texts(pairs, cls), cls, "")


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


def tenant_of(request: Request) -> str:
    """Return the tenant of a request."""
    return request_context(request.scope).tenant


def path_param(name: str) -> Callable[[Request], str]:
    """Return a function that returns the parameter ``name`` in the path of a request."""
    return lambda request: str(request.path_params[name])


def object_key(name: str) -> Callable[[Request], tuple[str, str]]:
    """Return a function that returns the tenant of a request, and the id in its path. ``name``: the
    parameter with the id."""
    return lambda request: (tenant_of(request), str(request.path_params[name]))

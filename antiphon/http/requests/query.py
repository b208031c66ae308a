"""Parse query strings. Lists are accepted in all notations that clients use, such as
``name[]=a&name[]=b`` and ``name=a&name=b``.
Unknown parameters are ignored. An invalid value is an error that names the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl

from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.types import Scope

from antiphon.errors import InvalidRequest, unsupported_parameter
from antiphon.wire.cursors import PageParams
from antiphon.wire.parsing.errors import invalid_type, invalid_value, out_of_range, truncated
from antiphon.wire.request import Include

_MAX_FIELDS = 200
_DEFAULT_LIMIT, _MAX_LIMIT = 20, 100
_SUBSCRIPT = re.compile(r"\[\d*\]\Z")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class QueryParam(Struct, frozen=True, kw_only=True):
    """A query parameter as the OpenAPI document describes it. ``default`` is None if the parameter
    has no default."""

    name: str
    type: Any
    description: str
    default: Any = None


#: The parameters that ``Query.page_params`` reads.
PAGE_PARAMS = (
    QueryParam(
        name="limit",
        type=Annotated[int, Meta(ge=1, le=_MAX_LIMIT)],
        description="The largest number of entries.",
        default=_DEFAULT_LIMIT,
    ),
    QueryParam(
        name="order",
        type=Literal["asc", "desc"],
        description="`desc`: the newest entries first.",
        default="desc",
    ),
    QueryParam(name="after", type=str, description="The id after which the page starts."),
    QueryParam(name="before", type=str, description="The id before which the page ends."),
)
#: The parameters that ``Query.page_params(order="asc")`` reads.
OLDEST_FIRST_PARAMS = tuple(
    replace(each, default="asc") if each.name == "order" else each for each in PAGE_PARAMS
)
#: A parameter that many endpoints accept, because OpenAI's clients send it.
INCLUDE_PARAM = QueryParam(
    name="include",
    type=tuple[Include, ...],
    description="Additional data to include. This server always includes all data that it has.",
)


class Query:
    """The query parameters of a request. A list parameter has the form ``name[]=a&name[]=b``,
    ``name[0]=a`` or ``name=a``. Methods raise ``InvalidRequest`` for an invalid value."""

    def __init__(self, scope: Scope) -> None:
        value = scope["query_string"].decode("latin-1")
        self._values: dict[str, list[str]] = {}
        try:
            self._pairs = pairs = parse_qsl(
                value, keep_blank_values=True, max_num_fields=_MAX_FIELDS
            )
        except ValueError:
            raise InvalidRequest("Too many query parameters.") from None
        for name, value in pairs:
            self._values.setdefault(_SUBSCRIPT.sub("", name), []).append(value)

    def refuse(self, *names: str) -> None:
        """Raise ``InvalidRequest`` if the request has one of these parameters, which the endpoint
        does not support."""
        for name in names:
            if any(self._values.get(name, ())):
                raise unsupported_parameter(name)

    def choices(self, name: str, options: Collection[str]) -> tuple[str, ...]:
        """Return the values of a list parameter. Every value must be one of ``options``. Returns an
        empty tuple if the parameter is missing."""
        values = tuple(self._values.get(name, ()))
        for value in values:
            _check(name, value, options)
        return values

    def values(self, name: str) -> tuple[str, ...] | None:
        """Return the values of a list parameter, or None if the parameter is missing."""
        values = self._values.get(name)
        return None if values is None else tuple(values)

    def value(self, name: str) -> str | None:
        """Return the last value of the parameter. Returns None if the parameter is missing or its
        value is empty."""
        return self._values.get(name, [""])[-1] or None

    def choice(self, name: str, options: Collection[str], default: str) -> str:
        """Return the parameter's value, which must be one of ``options``. If the parameter is
        missing, return ``default``."""
        value = self.value(name) or default
        _check(name, value, options)
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean parameter. Returns False if the parameter is missing."""
        value = self.value(name)
        if value is None:
            return False
        if value.lower() not in _FLAGS:
            raise invalid_type(name, "a boolean", f"'{truncated(value)}'")
        return _FLAGS[value.lower()]

    def optional_flag(self, name: str) -> bool | None:
        """Return a boolean parameter. Returns None if the parameter is missing."""
        return None if self.value(name) is None else self.flag(name)

    def mapping(self, name: str) -> dict[str, str]:
        """Return a parameter of the form ``name[key]=value``, as values by their keys."""
        found = {}
        for each, value in self._pairs:
            if each == name:
                raise invalid_type(name, f"an object, as in '{name}[key]=value'", "a string")
            if each.startswith(f"{name}[") and each.endswith("]"):
                found[each[len(name) + 1 : -1]] = value
        return found

    def page_params(self, *, order: str = "desc") -> PageParams:
        """Return the parameters that select a page of a list: limit, order and cursors. ``order``:
        the order if the request does not name one."""
        return PageParams(
            limit=self.limit(),
            order=self.order(order),
            after=self.value("after"),
            before=self.value("before"),
        )

    def limit(self) -> int:
        """Return the maximum number of entries of a page."""
        limit = self.number("limit", low=1, high=_MAX_LIMIT)
        return _DEFAULT_LIMIT if limit is None else limit

    def order(self, default: str = "desc") -> str:
        """Return the order of a list: ``asc`` or ``desc``."""
        return self.choice("order", ("asc", "desc"), default)

    def number(self, name: str, *, low: int, high: int | None = None) -> int | None:
        """Return an integer parameter. It must lie between ``low`` and ``high``, both included.
        Returns None if the parameter is missing."""
        value = self.value(name)
        if value is None:
            return None
        if not re.fullmatch(r"-?[0-9]{1,18}", value):
            raise invalid_type(name, "an integer", f"'{truncated(value)}'")
        number = int(value)
        if number < low:
            raise out_of_range(name, "integer", number, ">=", str(low))
        if high is not None and number > high:
            raise out_of_range(name, "integer", number, "<=", str(high))
        return number


def _check(name: str, value: str, options: Collection[str]) -> None:
    if value not in options:
        raise invalid_value(name, value, options)

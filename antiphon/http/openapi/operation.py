"""What the OpenAPI document says about an endpoint, declared next to its handler.

Path and method come from the route, the summary from the first sentence of the handler's docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct

from antiphon.http.requests.query import QueryParam

__all__ = ["Form", "HeaderParam", "Operation", "operation", "operation_of"]

_ATTRIBUTE = "operation"
_HandlerT = TypeVar("_HandlerT", bound=Callable[..., Any])


class Form(Struct, frozen=True, kw_only=True):
    """A form. ``file``: the field with the file, or with several of them. ``fields``: a type whose
    fields are the other fields of the form, None if there are none.
    """

    file: str
    many: bool = False
    fields: Any = None


class HeaderParam(Struct, frozen=True, kw_only=True):
    """A request header that the endpoint reads."""

    name: str
    description: str


class Operation(Struct, frozen=True, kw_only=True):
    """An operation of the API.

    ``id``: its name in generated clients, as OpenAI's document has it where the endpoint is
    OpenAI's. ``answer``: the type of the JSON answer. ``messages_answer``: that of the answer to
    clients of the Messages API, if it is another one. ``media_type``: the media type of an answer
    that is not JSON. ``events``: the type of the events if the answer can be a stream. ``body``:
    the type of the JSON body. ``errors``: statuses besides those that every endpoint of its kind
    has. ``error_body``: the type of its errors, if it is not OpenAI's. ``status``: the status of
    success. ``also``: status → type of an answer that is no error body; None for content of
    ``media_type``, or none for a redirect. ``response_headers``: headers of a success besides
    ``x-request-id``. ``summary``: instead of the handler's docstring. ``security``: whether an API
    key is required, on a server with keys.
    """

    id: str
    answer: Any = None
    messages_answer: Any = None
    media_type: str = "application/json"
    events: Any = None
    body: Any = None
    body_required: bool = True
    form: Form | None = None
    query: tuple[QueryParam, ...] = ()
    headers: tuple[HeaderParam, ...] = ()
    errors: tuple[int, ...] = ()
    error_body: Any = None
    status: int = 200
    also: Mapping[int, Any] = {}
    response_headers: tuple[str, ...] = ()
    summary: str | None = None
    security: Literal["key", "open", "metrics"] = "key"


def operation(id: str, **fields: Any) -> Callable[[_HandlerT], _HandlerT]:
    """Attach an operation to a handler. ``fields``: those of ``Operation``."""

    def attach(handler: _HandlerT) -> _HandlerT:
        setattr(handler, _ATTRIBUTE, Operation(id=id, **fields))
        return handler

    return attach


def operation_of(endpoint: Any) -> Operation | None:
    """Return the operation of a handler, a class or an instance; None if it declares none."""
    found = getattr(endpoint, _ATTRIBUTE, None)
    return found if isinstance(found, Operation) else None

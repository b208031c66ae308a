"""What an endpoint declares next to its handler: its route, and its part of the OpenAPI document.

The summary is the first sentence of the handler's docstring. The type of a JSON answer is the type
that the handler returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import unwrap
from typing import Any, Literal, TypeVar, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from antiphon.limits.clients import Role

_HandlerT = TypeVar("_HandlerT", bound=Callable[..., Any])


class Form(Struct, frozen=True, kw_only=True):
    """A form that an endpoint accepts. ``file``: the form field with the file. ``has_many_files``:
    whether the field may hold several files. ``fields``: a type whose fields are the other form
    fields; None if the form has no other fields."""

    file: str
    has_many_files: bool = False
    fields: Any = None


class HeaderParam(Struct, frozen=True, kw_only=True):
    """A request header that the endpoint reads."""

    name: str
    description: str


#: The header of clients of the Messages API.
_VERSION_HEADER = HeaderParam(
    name="anthropic-version",
    description="If present, the answer has the form of Anthropic's API.",
)


class Permission(Struct, frozen=True):
    """Who may call an endpoint. If the server has API keys, these are clients with one of the
    ``roles``. Otherwise, they are the clients on the server's own machine. ``action``: what the
    endpoint does, for the error message, such as ``read the audit log``."""

    roles: tuple[Role, ...]
    action: str


class Operation(Struct, frozen=True, kw_only=True):
    """An operation of the API.

    - ``route``: its method and path, such as ``GET /v1/files``.
    - ``id``: its name in generated clients. For endpoints of OpenAI's API, this is the id in
      OpenAI's document.
    - ``answer``: the type of the JSON response. None means the type that the handler returns.
    - ``messages``: makes the answer for clients of the Messages API, if it has another form. It is
      either a function of what the handler returns, or a handler that takes the place of the first
      one (see ``messages_handler``).
    - ``media_type``: the media type of a response that is not JSON.
    - ``events``: the type of the events, if the response can be a stream. ``events_media_type``:
      the media type of the stream.
    - ``body``: the type of the JSON body.
    - ``query``: the type of the query parameters.
    - ``errors``: further error statuses. The usual ones, such as 500, are added automatically.
    - ``error_body``: the type of the error body, if it is not OpenAI's.
    - ``status``: the HTTP status of success.
    - ``other_responses``: other HTTP statuses that are not errors → their response types. None
      means the same content as for ``status``. For a redirect, None means no content.
    - ``response_headers``: headers of a successful response in addition to ``x-request-id``.
    - ``summary``: replaces the summary from the handler's docstring.
    - ``security``: who may call the endpoint on a server with keys: clients with an API key
      (``key``), everybody (``open``), or the clients that may read the metrics (``metrics``).
    - ``permission``: who may call the endpoint; None: every client.
    - ``is_action``: whether the path names an action on an object whose id may contain slashes,
      such as ``/antiphon/models/NAME/load``. Other methods of this path are then refused with 405,
      and do not reach the route of the object, which would take ``NAME/load`` for an id.
    """

    route: str
    id: str
    answer: Any = None
    messages: Callable[..., Any] | None = None
    media_type: str = "application/json"
    events: Any = None
    events_media_type: str = "text/event-stream"
    body: Any = None
    body_required: bool = True
    form: Form | None = None
    query: type[Struct] | None = None
    headers: tuple[HeaderParam, ...] = ()
    errors: tuple[int, ...] = ()
    error_body: Any = None
    status: int = 200
    other_responses: Mapping[int, Any] = {}
    response_headers: tuple[str, ...] = ()
    summary: str | None = None
    security: Literal["key", "open", "metrics"] = "key"
    permission: Permission | None = None
    is_action: bool = False

    @property
    def messages_answer(self) -> Any:
        """The response type for clients of the Messages API; None if it is ``answer``."""
        return None if self.messages is None else get_type_hints(self.messages)["return"]

    @property
    def request_headers(self) -> tuple[HeaderParam, ...]:
        """The headers that the endpoint reads, with the one that chooses the form of the answer."""
        return (*self.headers, *((_VERSION_HEADER,) if self.messages is not None else ()))


def operation(route: str, id: str, **fields: Any) -> Callable[[_HandlerT], _HandlerT]:
    """Return a decorator that attaches an ``Operation`` to a handler. ``fields``: the other fields
    of the operation. A handler is an async method that takes the request, and returns an ASGI app
    or a value that is sent as JSON."""

    def attach(handler: _HandlerT) -> _HandlerT:
        vars(handler)["operation"] = Operation(route=route, id=id, **fields)
        return handler

    return attach


def messages_handler(handler: Callable[..., Any]) -> Callable[[_HandlerT], _HandlerT]:
    """Return a decorator for the method that answers an operation for clients of the Messages API.
    ``handler``: the method of the same class that declares the operation."""

    def attach(method: _HandlerT) -> _HandlerT:
        vars(handler)["operation"] = replace(vars(handler)["operation"], messages=method)
        return method

    return attach


def operation_of(endpoint: Callable[..., Any]) -> Operation | None:
    """Return the operation that the endpoint of a route declares, with the type of its answer.
    ``endpoint``: a handler, or an ASGI app. Returns None if the endpoint declares no operation."""
    found = getattr(endpoint, "operation", None)
    if not isinstance(found, Operation):
        return None
    if found.answer is None and found.media_type == "application/json":
        return replace(found, answer=get_type_hints(unwrap(endpoint))["return"])
    return found

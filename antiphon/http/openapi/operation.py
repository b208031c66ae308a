"""The part of the OpenAPI document that an endpoint declares next to its handler.

Path and method come from the route. The summary is the first sentence of the handler's docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from msgspec import Struct

from antiphon.http.requests.query import QueryParam

_ATTRIBUTE = "operation"
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
VERSION_HEADER = HeaderParam(
    name="anthropic-version",
    description="If present, the answer has the form of Anthropic's API.",
)


class Operation(Struct, frozen=True, kw_only=True):
    """An operation of the API.

    - ``id``: its name in generated clients. For endpoints of OpenAI's API, this is the id in
      OpenAI's document.
    - ``answer``: the type of the JSON response.
    - ``messages_answer``: the response type for clients of the Messages API, if it differs from
      ``answer``.
    - ``media_type``: the media type of a response that is not JSON.
    - ``events``: the type of the events, if the response can be a stream. ``events_media_type``:
      the media type of the stream.
    - ``body``: the type of the JSON body.
    - ``errors``: further error statuses. The usual ones, such as 500, are added automatically.
    - ``error_body``: the type of the error body, if it is not OpenAI's.
    - ``status``: the HTTP status of success.
    - ``other_responses``: other HTTP statuses that are not errors → their response types. None
      means the same content as for ``status``. For a redirect, None means no content.
    - ``response_headers``: headers of a successful response in addition to ``x-request-id``.
    - ``summary``: replaces the summary from the handler's docstring.
    - ``security``: who may call the endpoint on a server with keys: clients with an API key
      (``key``), everybody (``open``), or the clients that may read the metrics (``metrics``).
    """

    id: str
    answer: Any = None
    messages_answer: Any = None
    media_type: str = "application/json"
    events: Any = None
    events_media_type: str = "text/event-stream"
    body: Any = None
    body_required: bool = True
    form: Form | None = None
    query: tuple[QueryParam, ...] = ()
    headers: tuple[HeaderParam, ...] = ()
    errors: tuple[int, ...] = ()
    error_body: Any = None
    status: int = 200
    other_responses: Mapping[int, Any] = {}
    response_headers: tuple[str, ...] = ()
    summary: str | None = None
    security: Literal["key", "open", "metrics"] = "key"


def operation(id: str, **fields: Any) -> Callable[[_HandlerT], _HandlerT]:
    """Return a decorator that attaches an ``Operation`` to a handler. ``fields``: the other fields
    of the operation."""

    def attach(handler: _HandlerT) -> _HandlerT:
        setattr(handler, _ATTRIBUTE, Operation(id=id, **fields))
        return handler

    return attach


def operation_of(endpoint: object) -> Operation | None:
    """Return the operation that the endpoint of a route declares. ``endpoint``: a handler method,
    or an ASGI app. Returns None if the endpoint declares no operation."""
    found = getattr(endpoint, _ATTRIBUTE, None)
    return found if isinstance(found, Operation) else None

"""Error middleware: the one place where errors become HTTP statuses and OpenAI's error body.

Every body is ``{"error": {"message", "type", "param", "code"}}`` with all four keys. A missing
``param`` or ``code`` is null, as in OpenAI's API. For clients that cannot read this format,
``error_forms.py`` rewrites the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.errors import (
    INTERNAL_ERROR,
    SERVICE_UNAVAILABLE,
    UNEXPECTED,
    BackendError,
    RequestError,
    RunError,
    StoreError,
    Unavailable,
    may_retry,
)
from antiphon.http.json_response import Reply, json_reply
from antiphon.http.streaming.disconnect import cut_off
from antiphon.limits.refusals import refusal_headers
from antiphon.stream.kinds import KINDS
from antiphon.support.disk import disk_obstacle
from antiphon.support.log import Log
from antiphon.wire.error_codes import ERROR_CODES
from antiphon.wire.error_reply import ErrorDetails, ErrorReply
from antiphon.wire.response import Response, ResponseError

from .error_forms import send_for_client
from .request_context import ClientDisconnected, request_context

#: Error code of a failed run → HTTP status. All other codes become 502: a model, an upstream or a
#: tool failed.
_FAILURES: Mapping[str, int] = {
    name: code.status
    for name, code in ERROR_CODES.items()
    if code.fails_run and name != "server_error"
}

#: ``response.error.type`` → HTTP status, whatever the code is.
_STATUSES: Mapping[str, int] = {
    "authentication_error": 401,
    "external_connector_error": 424,
    INTERNAL_ERROR: 500,
    SERVICE_UNAVAILABLE: 503,
}

_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
}


def error_reply(
    status: int,
    message: str,
    *,
    type: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Build an HTTP response with OpenAI's error body."""
    details = ErrorDetails(message=message, type=type, param=param, code=code)
    return json_reply(ErrorReply(error=details), status, headers)


def request_error_reply(error: RequestError) -> Reply:
    """Build the HTTP response for a request that is rejected before a run starts."""
    headers = refusal_headers(error)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return error_reply(
        error.status,
        error.message,
        type=error.type,
        param=error.param,
        code=error.code,
        headers=headers,
    )


def failed_response_reply(response: Response) -> Reply:
    """Build the HTTP response for a failed run that was not streamed. It has an error status, as in
    OpenAI's API.

    Clients that only read the output would not notice a 200 with ``status: "failed"``. All clients
    raise on an HTTP error, and many retry. If tools have run here, a retry could run them twice, so
    ``x-should-retry: false`` forbids it. If a transient failure has only cost output, a retry is
    asked for.
    """
    error = response.error
    assert error is not None
    headers: dict[str, str] = {}
    tools_ran = any(KINDS[type(item)].runs_here for item in response.output)
    if tools_ran or status_of(error) == 400 or error.exact_code == "insufficient_quota":
        headers["x-should-retry"] = "false"
    elif response.output:
        headers["x-should-retry"] = "true" if may_retry(error.message) else "false"
    elif status_of(error) in (429, 503):
        headers["retry-after"] = "1"
    return _failed(error, error.message, headers)


def run_error_reply(error: RunError) -> Reply:
    """Build the HTTP response for a failure outside a run, or for a run that fails before its first
    event."""
    headers: dict[str, str] = {}
    if isinstance(error, StoreError):
        headers["retry-after"] = "5"
    elif isinstance(error, Unavailable):
        headers["retry-after"] = "1"
    elif isinstance(error, BackendError):
        if error.permanent:
            headers["x-should-retry"] = "false"
        elif status_of(error) in (429, 503) or error.retry_after_s is not None:
            headers["retry-after"] = str(ceil(error.retry_after_s or 1))
    return _failed(error, error.client_message, headers)


def _failed(error: RunError | ResponseError, message: str, headers: Mapping[str, str]) -> Reply:
    status, code = status_of(error), _code_of(error)
    kind = type_of(status, error.type)
    if code == "insufficient_quota":
        kind = code
    elif status == 424:
        code = "http_error"
    return error_reply(
        status,
        message,
        type=kind,
        param=error.param,
        code=code,
        headers=headers,
    )


def status_of(error: RunError | ResponseError) -> int:
    """Return the HTTP status for the failure of a run."""
    return _STATUSES.get(error.type) or _FAILURES.get(_code_of(error), 502)


def _code_of(error: RunError | ResponseError) -> str:
    return error.exact_code if isinstance(error, ResponseError) else error.code


def type_of(status: int, default: str = "server_error") -> str:
    """Return OpenAI's error type for an HTTP status. For a status without its own error type,
    return ``default``."""
    return _TYPES.get(status, default)


def _routing_reply(error: HTTPException, scope: Scope) -> Reply:
    """Build the HTTP response for an error that Starlette's router raises, usually because the
    request has a wrong method."""
    if error.status_code != 405:
        return error_reply(error.status_code, error.detail)
    return error_reply(
        405,
        f"Not allowed to {scope['method']} on {scope['path']}.",
        code="method_not_supported",
        headers={"allow": ", ".join(sorted(_allowed_methods(scope)))},
    )


def _allowed_methods(scope: Scope) -> set[str]:
    """Return the methods that the path accepts.

    Several routes, each with one method, may have the same path. The methods of all these routes
    are returned, because Starlette's error names only the method of the first route.
    """
    routes: list[Route] = [each for each in scope["router"].routes if isinstance(each, Route)]
    path = scope["route"].path
    return {method for each in routes if each.path == path for method in each.methods or ()}


class ErrorMiddleware:
    """Turns exceptions into error responses. If the response has already started, no error response
    is sent; the started response is cut off.

    ``reraise``: whether an unexpected exception is raised again and not turned into an error
    response. Only tests set it.
    """

    def __init__(self, app: ASGIApp, *, log: Log, reraise: bool = False) -> None:
        self._app = app
        self._log = log
        self._reraise = reraise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        scope["app"] = self  # makes Starlette's router raise errors instead of answering them
        send = send_for_client(scope, send)
        try:
            return await self._app(scope, receive, send)
        except ClientDisconnected:
            raise
        except RequestError as error:
            reply = request_error_reply(error)
        except RunError as error:
            reply = run_error_reply(error)
        except OSError as error:
            reply = self._system_error_reply(error)
        except HTTPException as error:
            reply = _routing_reply(error, scope)
        except Exception:
            reply = self._unexpected_reply()
        if request_context(scope).status is None:
            await reply(scope, receive, send)
        elif scope["type"] == "http":
            await cut_off(scope)

    def _unexpected_reply(self) -> Reply:
        """Build the HTTP response for the exception that is being handled, which is a bug."""
        if self._reraise:
            raise
        self._log.exception("unexpected error")
        return error_reply(500, UNEXPECTED, type="server_error", code="server_error")

    def _system_error_reply(self, error: OSError) -> Reply:
        """Build the HTTP response for an error of the operating system. An obstacle of the
        disk, for example that of temporary files, is named."""
        obstacle = disk_obstacle(error)
        if not obstacle:
            return self._unexpected_reply()
        self._log.error("a file cannot be written or read", error=obstacle, file=error.filename)
        return run_error_reply(StoreError(f"A file could not be written or read: {obstacle}."))

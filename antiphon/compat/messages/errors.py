"""Convert errors of Antiphon to errors of the Messages API."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, UnsetType

from antiphon.errors import CONTEXT_LENGTH_EXCEEDED
from antiphon.wire.error_codes import ERROR_CODES
from antiphon.wire.json_types import JsonObject

from .types import MessageError, MessageErrorDetails

#: HTTP status → error type. All other statuses are ``invalid_request_error`` below 500, and
#: ``api_error`` from 500 on.
_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
#: Anthropic's SDKs read which features of a request with this error a thread does not support.
_THREAD_UNSUPPORTED = "thread_unsupported_request"


def message_error(
    status: int,
    message: str,
    code: str | None,
    request_id: str | None = None,
    *,
    param: str | None = None,
) -> MessageError:
    """Build an error of the Messages API. ``code``: the error code. Anthropic's SDKs read it in
    ``details``. ``param``: path of the field that caused the error.

    If a prompt is too long, the message begins with Anthropic's wording. Claude Code recognises
    this wording, compacts the conversation and tries again.
    """
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    if code == CONTEXT_LENGTH_EXCEEDED:
        message = f"prompt is too long: {message}"
    details: JsonObject | UnsetType = UNSET if code is None else {"error_code": code}
    if details is not UNSET and code == _THREAD_UNSUPPORTED:
        details["unsupported"] = [param]
    return MessageError(
        error=MessageErrorDetails(type=kind, message=message, details=details),
        request_id=request_id,
    )


def message_error_of_code(code: str, message: str) -> MessageError:
    """Build the error event for a response that failed after its stream had begun. ``code``:
    Antiphon's error code."""
    known = ERROR_CODES.get(code)
    return message_error(500 if known is None else known.status, message, code or None)

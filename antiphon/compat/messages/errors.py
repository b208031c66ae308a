"""Convert errors of Antiphon to errors of the Messages API."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.errors import CONTEXT_LENGTH_EXCEEDED
from antiphon.wire.error_codes import ERROR_CODES

from .types import MessageError, MessageErrorDetails

__all__ = ["message_error", "message_error_of_code"]

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


def message_error(
    status: int, message: str, code: str | None, request_id: str | None = None
) -> MessageError:
    """Build an error of the Messages API. ``code``: Antiphon's error code. It is not part of the
    result, because the Messages API has no such field.

    If a prompt is too long, the message begins with Anthropic's wording. Claude Code recognises
    this wording, compacts the conversation and tries again.
    """
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    if code == CONTEXT_LENGTH_EXCEEDED:
        message = f"prompt is too long: {message}"
    return MessageError(
        error=MessageErrorDetails(type=kind, message=message), request_id=request_id
    )


def message_error_of_code(code: str, message: str) -> MessageError:
    """Build the error event for a response that failed after its stream had begun. ``code``:
    Antiphon's error code."""
    known = ERROR_CODES.get(code)
    return message_error(500 if known is None else known.status, message, code)

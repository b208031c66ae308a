"""The JSON body of an HTTP error response."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["ErrorDetails", "ErrorReply"]


class ErrorDetails(Struct, frozen=True, kw_only=True):
    """The fields of an error.

    ``param``: the path of the faulty field, such as ``input[1].role``. ``code``: identifies the
    error for programs. Clients should not depend on the message.
    """

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(Struct, frozen=True, kw_only=True):
    """An HTTP error."""

    error: ErrorDetails

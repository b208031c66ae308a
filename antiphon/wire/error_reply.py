"""The body of an HTTP error."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["ErrorDetails", "ErrorReply"]


class ErrorDetails(Struct, frozen=True, kw_only=True):
    """``param``: the path of the faulty field, such as ``input[1].role``. ``code``: a name for
    programs; clients should not depend on the message.
    """

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(Struct, frozen=True, kw_only=True):
    """An HTTP error."""

    error: ErrorDetails

"""Every error Antiphon raises on purpose. Raised, never returned; translated once at each rim.

AntiphonError
├── SetupError                the operator must change something: one line, no traceback
├── RequestError              before a run: becomes an HTTP error in OpenAI's shape
│   ├── InvalidRequest  400   (UnreadableImage)
│   ├── Unauthorized    401
│   ├── Forbidden       403
│   ├── NotFound        404
│   ├── Conflict        409
│   ├── TooLarge        413
│   └── Overloaded      429 or 503, with the seconds to wait
├── RunError                  inside a run: becomes ``error`` and ``response.failed``; an HTTP
│   │                         error where nobody has heard of the run yet
│   ├── BackendError
│   ├── CannotContinue
│   ├── ToolError
│   └── Timeout
└── GrammarError              we broke the event grammar: our bug
"""

from __future__ import annotations

__all__ = [
    "CONTEXT_LENGTH_EXCEEDED",
    "AntiphonError",
    "BackendError",
    "CannotContinue",
    "Conflict",
    "Forbidden",
    "GrammarError",
    "InvalidRequest",
    "NotFound",
    "Overloaded",
    "RequestError",
    "RunError",
    "SetupError",
    "Timeout",
    "TooLarge",
    "ToolError",
    "Unauthorized",
    "UnreadableImage",
    "context_length_exceeded",
    "first_line",
]

#: OpenAI's code for a conversation that does not fit the model's context.
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
#: Characters of a refusal: it may repeat what a client sent, which may be megabytes.
_LONGEST = 1_000


class AntiphonError(Exception):
    """The root: catch it to catch all of ours."""


class SetupError(AntiphonError):
    """Something the operator must change; the message is the whole explanation, in one line."""


class RequestError(AntiphonError):
    """A request that gets no run. ``param`` is the path of the field, such as ``input[1].role``."""

    status = 400
    type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        if len(message) > _LONGEST:
            message = message[:_LONGEST] + "…"
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class InvalidRequest(RequestError):
    """The request cannot be honoured as it stands."""


class UnreadableImage(InvalidRequest):
    """An image that whoever was to see it cannot decode. ``content``: its bytes, by which the part
    of the request is found that it came with; ``why``: what is wrong with them."""

    def __init__(self, why: str, content: bytes) -> None:
        super().__init__(f"Invalid image: {why}.", param="input", code="image_parse_error")
        self.why = why
        self.content = content


class Unauthorized(RequestError):
    """No key, or a key we do not know."""

    status = 401


class Forbidden(RequestError):
    """A key we know, which may not do this."""

    status = 403


class NotFound(RequestError):
    """No such thing, or not this tenant's."""

    status = 404


class Conflict(RequestError):
    """True now, perhaps not later; clients retry it."""

    status = 409


class TooLarge(RequestError):
    """A body over the limit."""

    status = 413


class Overloaded(RequestError):
    """No room now. ``retry_after_s`` becomes the ``retry-after`` header."""

    status = 429
    type = "rate_limit_error"

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: int = 1,
        status: int = 429,
        code: str = "rate_limit_exceeded",
    ) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s
        self.status = status
        if status >= 500:
            self.type = "server_error"


class RunError(AntiphonError):
    """A run that cannot go on. ``code`` is one of ``response.error.code``; the message is shown.
    ``param``: the path of the request's field that it is about."""

    type = "server_error"

    def __init__(
        self, message: str, *, code: str = "server_error", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param


class BackendError(RunError):
    """The engine or the upstream failed. ``lasting``: asked again it would fail again.
    ``retry_after_s``: when to ask again, where that is known."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "server_error",
        param: str | None = None,
        lasting: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.lasting = lasting
        self.retry_after_s = retry_after_s


class CannotContinue(RunError):
    """The run was interrupted, and what answers it cannot go on from the middle."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The response was interrupted and cannot be continued: {why}.")


class ToolError(RunError):
    """A tool failed in a way its item cannot tell."""


class Timeout(RunError):
    """A run took longer than it may."""


class GrammarError(AntiphonError):
    """An event came where the grammar forbids it: a bug of ours, loud in tests."""


def context_length_exceeded(detail: str = "") -> InvalidRequest:
    """The error for a conversation that does not fit the model's context, in OpenAI's words.

    ``detail`` continues the first half of the sentence.
    """
    return InvalidRequest(
        f"Your input exceeds the context window of this model{detail}. Please adjust your input and"
        " try again.",
        param="input",
        code=CONTEXT_LENGTH_EXCEEDED,
    )


def first_line(error: BaseException) -> str:
    """What an error of other code says, in one line: its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

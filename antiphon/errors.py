"""All errors that Antiphon raises on purpose. The HTTP layer, the event stream and the command line
each report them in their own format. Names in parentheses are subclasses.

AntiphonError
├── SetupError                the operator must change something; shown without a traceback
├── RequestError              before a run: becomes an HTTP error in OpenAI's format
│   ├── InvalidRequest  400   (UnreadableImage)
│   ├── Unauthorized    401
│   ├── Forbidden       403
│   ├── NotFound        404
│   ├── Conflict        409
│   ├── TooLarge        413
│   ├── QuotaExceeded   429; a retry would fail too
│   └── Overloaded      429 or 503, with ``retry-after``
├── RunError                  during a run: becomes the events ``error`` and ``response.failed``.
│   │                         If no event was sent yet, it becomes an HTTP error. Its status is 502,
│   │                         or the status given below.
│   ├── BackendError
│   ├── ToolError             (ConnectorError: HTTP 424)
│   ├── StoreError            the store does not answer: HTTP 503
│   ├── InternalError         a bug in Antiphon: HTTP 500
│   ├── Unavailable           the server cannot finish the run: HTTP 503
│   │                         (CannotContinue, ConversationLost, PeerLost, ServerStopped)
│   ├── AccessRevoked         the API key is no longer valid: HTTP 401
│   └── Timeout
└── GrammarError              an event violates the event grammar: a bug in Antiphon
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "CONTEXT_LENGTH_EXCEEDED",
    "DISK_ERROR",
    "DISK_FULL",
    "DISK_OBSTACLES",
    "INTERNAL_ERROR",
    "READ_ONLY",
    "SERVICE_UNAVAILABLE",
    "UNEXPECTED",
    "AccessRevoked",
    "AntiphonError",
    "BackendError",
    "CannotContinue",
    "Conflict",
    "ConnectorError",
    "ConversationLost",
    "EngineLost",
    "Forbidden",
    "GrammarError",
    "InternalError",
    "InvalidRequest",
    "LoadInterrupted",
    "NotFound",
    "Overloaded",
    "PeerLost",
    "QuotaExceeded",
    "RequestError",
    "RunError",
    "ServerStopped",
    "SetupError",
    "StoreError",
    "Timeout",
    "TooLarge",
    "ToolError",
    "Unauthorized",
    "Unavailable",
    "UnreadableImage",
    "context_length_exceeded",
    "first_line",
    "invalid_field",
    "may_retry",
    "model_not_found",
    "models_hint",
    "retryable",
    "unsupported_model",
    "unsupported_parameter",
    "unsupported_value",
]

#: The causes of a ``StoreError`` that only the operator, or a deletion, can remove.
DISK_FULL = "the disk is full"
READ_ONLY = "the file system is read-only"
DISK_ERROR = "the disk reports an error"
DISK_OBSTACLES = (DISK_FULL, READ_ONLY, DISK_ERROR)
#: Names of models that an error lists.
_MAX_NAMES = 5
#: OpenAI's code for a conversation that does not fit the model's context.
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
#: OpenAI's error type of a server that cannot answer now.
SERVICE_UNAVAILABLE = "service_unavailable_error"
#: The error type of a bug in Antiphon, as opposed to a model, an upstream or a tool that failed.
INTERNAL_ERROR = "internal_server_error"
#: The message of a bug. Details are only logged.
UNEXPECTED = "The server had an error while processing your request."
#: Some clients retry a failure only if its message contains words such as these.
_RETRY_SENTENCE = "You can retry your request."
#: Messages are cut to this many characters: they may quote a client's input.
_MAX_MESSAGE_CHARS = 1_000


class AntiphonError(Exception):
    """The base class of all errors of this package."""


class SetupError(AntiphonError):
    """A problem that the operator must solve. The message is the whole explanation, in one line."""


class LoadInterrupted(SetupError):
    """The process of an engine ended while it loaded the model, for example because the system
    needed its memory."""


class RequestError(AntiphonError):
    """A request is rejected, and no run starts. ``param``: path of the field that caused the error,
    such as ``input[1].role``."""

    status = 400
    type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        if len(message) > _MAX_MESSAGE_CHARS:
            message = message[:_MAX_MESSAGE_CHARS] + "…"
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class InvalidRequest(RequestError):
    """The request is invalid or uses a feature that is not supported."""


class UnreadableImage(InvalidRequest):
    """An image cannot be decoded.

    ``content``: the bytes of the image. By these bytes, the server finds the part of the request
    that contains the image. ``reason``: the description of the problem.
    """

    def __init__(self, reason: str, content: bytes) -> None:
        super().__init__(f"Invalid image: {reason}.", param="input", code="image_parse_error")
        self.reason = reason
        self.content = content


class Unauthorized(RequestError):
    """The API key is missing or unknown."""

    status = 401


class Forbidden(RequestError):
    """The API key does not allow the request."""

    status = 403


class NotFound(RequestError):
    """The object does not exist, or belongs to another tenant."""

    status = 404


class Conflict(RequestError):
    """The request conflicts with the present state of an object, for example because another
    request is writing the object. Clients may retry the request later."""

    status = 409


class TooLarge(RequestError):
    """The body or a file exceeds a size limit."""

    status = 413


class QuotaExceeded(RequestError):
    """The tenant has reached a storage quota. The error code is OpenAI's ``insufficient_quota``, so
    clients show the error message and do not retry."""

    status = 429
    type = "insufficient_quota"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="insufficient_quota")


class Overloaded(RequestError):
    """The server has no capacity now, or a rate limit is reached. ``retry_after_s`` becomes the
    ``retry-after`` header."""

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
        message = message if code == "insufficient_quota" else retryable(message)
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s
        self.status = status
        if status >= 500:
            self.type = "server_error"


class RunError(AntiphonError):
    """A run failed. ``code``: the value of ``response.error.code``. ``param``: path of the request
    field that caused the failure. ``client_message``: the error message that clients get."""

    type = "server_error"
    #: The same request may succeed later.
    is_transient = False

    def __init__(
        self, message: str, *, code: str = "server_error", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param

    @property
    def client_message(self) -> str:
        """The error message for clients. For a transient failure, it includes a sentence such as
        ``You can retry your request.``, because some clients retry only if the message contains
        such words."""
        return retryable(self.message) if self.is_transient else self.message


class InternalError(RunError):
    """A bug in Antiphon: HTTP 500. The client does not get the details; they are only logged."""

    type = INTERNAL_ERROR

    def __init__(self) -> None:
        super().__init__(UNEXPECTED)


class BackendError(RunError):
    """The engine or the upstream failed.

    ``permanent``: whether a retry would also fail. ``retry_after_s``: seconds to wait before a
    retry; None if unknown. ``for_operator``: whether only the operator can remove the cause. If so,
    other requests to this model fail too.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "server_error",
        param: str | None = None,
        permanent: bool = False,
        retry_after_s: float | None = None,
        for_operator: bool = False,
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.permanent = permanent
        self.for_operator = for_operator
        self.retry_after_s = retry_after_s

    @property
    def is_transient(self) -> bool:  # type: ignore[override]
        return not self.permanent


class EngineLost(BackendError):
    """A generation broke off, and the next call of the engine can continue it. Either the process
    of an engine of this server ended, for example because the system needed its memory, or an
    upstream failed.

    ``failure``: the error of the upstream; None if it was a process. ``retry``: see
    ``Sampling.retry``.
    """

    def __init__(self, failure: BackendError | None = None, retry: object = None) -> None:
        super().__init__(
            "The engine is gone: its process ended." if failure is None else str(failure)
        )
        self.failure = failure
        self.retry = retry


class Unavailable(RunError):
    """The server cannot finish a run, for example because a process was stopped or lost its
    connection. The HTTP status is 503."""

    type = SERVICE_UNAVAILABLE
    is_transient = True


class CannotContinue(Unavailable):
    """The run was interrupted, and its backend cannot continue a partly generated response."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The response was interrupted and cannot be continued: {reason}.")


class ToolError(RunError):
    """A tool failed, or the container in which it runs failed. If a tool call raises this error,
    the call is marked as failed and the run continues."""


class ConnectorError(ToolError):
    """The tools of an MCP server cannot be listed. This error ends the response with HTTP 424 and
    OpenAI's error message. The error code is ``invalid_prompt``, because a client that receives
    this code in a stream stops and shows the message."""

    type = "external_connector_error"

    def __init__(self, message: str, *, param: str | None = "tools") -> None:
        super().__init__(message, code="invalid_prompt", param=param)


class StoreError(RunError):
    """The store does not answer, or its data is damaged. The operation may succeed later."""

    is_transient = True

    def __init__(self, message: str) -> None:
        super().__init__(message, code="server_is_overloaded")


class ConversationLost(Unavailable):
    """The response lost the lock of its conversation while the server had no connection to the
    store. Meanwhile, other responses may have been added to the conversation. So this response is
    not added."""

    def __init__(self) -> None:
        super().__init__(
            "Another response may have been added to the conversation while this one was made, so "
            "it was not added."
        )


class PeerLost(Unavailable):
    """Another process of the server does not answer. ``is_gone``: whether the process has certainly
    ended, because nothing listens at its address or the connection was closed. If ``is_gone`` is
    false, the process may still be running."""

    def __init__(self, *, is_gone: bool) -> None:
        super().__init__("Another process of the server does not answer.")
        self.is_gone = is_gone


class ServerStopped(Unavailable):
    """The server was stopped before the run ended."""


class AccessRevoked(RunError):
    """The API key of a run, or its tenant, no longer exists."""

    type = "authentication_error"


class Timeout(RunError):
    """A run exceeded its time limit."""


class GrammarError(AntiphonError):
    """An event violates the event grammar, the rules for which events may follow each other. This
    is a bug in Antiphon."""


def context_length_exceeded(detail: str = "") -> InvalidRequest:
    """Return the error for a conversation that exceeds the model's context, with OpenAI's error
    message.

    ``detail``: text that is added at the end of the message's first sentence.
    """
    return InvalidRequest(
        f"Your input exceeds the context window of this model{detail}. Please adjust your input and"
        " try again.",
        param="input",
        code=CONTEXT_LENGTH_EXCEEDED,
    )


def invalid_field(param: str, why: str, code: str = "invalid_value") -> InvalidRequest:
    """Return the error for a field whose value is refused. ``param``: the field's path. ``why``:
    the reason, a sentence that begins in lower case."""
    return InvalidRequest(f"Invalid '{param}': {why}", param=param, code=code)


def unsupported_parameter(
    param: str, hint: str = "", *, where: str = "by this server"
) -> InvalidRequest:
    """Return the error for a field that asks for a feature that Antiphon does not have. ``param``:
    its path. ``where``: what does not have the feature, such as ``in batches``."""
    return InvalidRequest(
        f"Unsupported parameter: '{param}' is not supported {where}.{hint}",
        param=param,
        code="unsupported_parameter",
    )


def unsupported_value(param: str, why: str) -> InvalidRequest:
    """Return the error for a valid value that this server does not support, or not together with
    other fields. ``why``: the end of the message, a sentence that may begin with the field."""
    return InvalidRequest(f"Unsupported value: {why}", param=param, code="unsupported_value")


def unsupported_model(message: str) -> InvalidRequest:
    """Return the error for a model that cannot do what a request asks for."""
    return InvalidRequest(message, param="model", code="unsupported_model")


def model_not_found(name: str, names: Sequence[str] = ()) -> NotFound:
    """Return the error for a model that is not served, or that this client may not use. The message
    begins like OpenAI's, since clients look for it. ``names``: the models that the client may
    use."""
    return NotFound(
        f"The model '{name}' does not exist or you do not have access to it.{models_hint(names)}",
        param="model",
        code="model_not_found",
    )


def models_hint(names: Sequence[str]) -> str:
    """Return the end of an error message that lists the models a client may use."""
    known = ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")
    return f" This server has: {known}." if names else ""


def retryable(message: str) -> str:
    """Return the message of a transient failure, followed by ``You can retry your request.``,
    because some clients retry only if the message contains such words. A message that already
    contains this sentence or ``try again in`` is returned unchanged."""
    return message if may_retry(message) else f"{message} {_RETRY_SENTENCE}"


def may_retry(message: str) -> bool:
    """Return whether the message of a failure says that the failure is transient."""
    return _RETRY_SENTENCE in message or "try again in" in message


def first_line(error: BaseException) -> str:
    """Return the first line of the message of another library's error. If the message is empty,
    return the name of the error's type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

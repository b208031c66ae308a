"""Read the results and the failures of MCP calls. Turn them into text for the model and into errors
for the output item."""

from __future__ import annotations

import http
import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from antiphon.support.text import truncate_middle
from antiphon.wire.json_types import JsonObject

from .endpoint import ADDRESS_REFUSED, BROKEN_OFF, UNSUPPORTED, RequestTrace

if TYPE_CHECKING:
    from mcp_types import CallToolResult

_PARSE_ERROR = -32700
_TIMED_OUT = -32001
_CLOSED = -32000
_INTERNAL = -32603
#: Errors about requests that the server has understood: wrong arguments, and a capability that the
#: client lacks. New servers send them with HTTP status 400.
_UNDERSTOOD = frozenset({-32602, -32021})
#: HTTP statuses of servers that did not process a request, because they do not know the session, or
#: want another access token.
_REFUSED = frozenset({401, 404})
#: The parameters in a header ``WWW-Authenticate``.
_CHALLENGE = re.compile(r'(?<!\w)(\w{1,40})="([\x21\x23-\x7e ]{1,300})"')
#: Parameter → how an error introduces it.
_TOLD: Mapping[str, str] = {
    "error": "error",
    "scope": "scopes",
    "resource_metadata": "metadata at",
}
#: The messages that the MCP SDK itself writes for HTTP errors, if the server sends no message.
_STAND_INS = ("Not Found", "Session terminated", "Server returned an error response")
#: The beginning of the SDK's message for an answer that it cannot parse. It quotes the answer.
_UNPARSED = "Failed to parse "
#: Characters of a server's message that the log gets.
_MAX_LOGGED = 200


class FailureDetails(Struct, frozen=True, kw_only=True):
    """The reason why an MCP call has no result.

    - ``error``: the error that the item of the call gets.
    - ``session_ended``: whether the MCP session cannot be used any more.
    - ``not_processed``: whether it is certain that the MCP server did not process the request.
    - ``can_retry``: whether a new session may help with such a request.
    """

    error: JsonObject
    session_ended: bool = False
    not_processed: bool = False
    can_retry: bool = False

    @property
    def may_pass(self) -> bool:
        """Whether a request that changes nothing may succeed if it is sent again."""
        return self.session_ended or self.error.get("code") in (_TIMED_OUT, 429, 502, 503, 504)

    @property
    def summary(self) -> str:
        """The beginning of the error, for the log: the server has perhaps written it."""
        return self.message.partition("\n")[0][:_MAX_LOGGED]

    @property
    def message(self) -> str:
        """The error as text."""
        if "code" in self.error and self.error["type"] == "http_error":
            return f"Http status code: {self.error['code']} ({self.error['message']})"
        return str(self.error["message"])


class McpFailure(Exception):
    """Raised if an MCP call fails and so returns no result. ``details`` describes the failure."""

    def __init__(self, details: FailureDetails) -> None:
        super().__init__(details.message)
        self.details = details


def describe_failure(error: BaseException, trace: RequestTrace) -> FailureDetails:
    """Return the details of a failed request to an MCP server. ``error``: an exception that the MCP
    SDK raised. ``trace``: the record of what the transport did for the request."""
    from mcp import MCPError

    if isinstance(error, McpFailure):
        return error.details
    root_error = _first_error(error)
    is_specific = isinstance(root_error, MCPError) and root_error.message not in _STAND_INS
    if trace.statuses and not (is_specific and trace.statuses[-1] >= 400):
        status = trace.statuses[-1]
        not_found = status == 404
        return FailureDetails(
            error=_http_error(status, trace.challenge),
            session_ended=not_found,
            not_processed=_was_refused(trace),
            can_retry=not_found and not trace.was_accepted,
        )
    if trace.transport_errors:
        reason = trace.transport_errors[-1]
        # The message may have arrived, and only its answer be requested again.
        not_processed = not trace.was_accepted and BROKEN_OFF not in trace.transport_errors
        return _protocol_failure(
            _CLOSED,
            f"The server is not available: {reason}.",
            session_ended=True,
            not_processed=not_processed,
            can_retry=not_processed and reason != ADDRESS_REFUSED,
        )
    if isinstance(root_error, TimeoutError):
        return _protocol_failure(_TIMED_OUT, "The server took too long.")
    if _is_invalid_answer(root_error):
        return _protocol_failure(_INTERNAL, "The server's answer is not valid.")
    if isinstance(root_error, MCPError):
        if root_error.code == _TIMED_OUT:
            return _protocol_failure(_TIMED_OUT, "The server took too long.")
        is_closed = root_error.code == _CLOSED
        not_processed = is_closed and not trace.was_sent
        return _protocol_failure(
            root_error.code,
            root_error.message,
            session_ended=is_closed,
            not_processed=not_processed or _was_refused(trace),
            can_retry=not_processed,
        )
    if isinstance(root_error, RuntimeError):  # the server contradicts its declared capabilities
        return _protocol_failure(_INTERNAL, str(root_error)[:500])
    if isinstance(root_error, OSError):
        return _protocol_failure(_CLOSED, "The server could not be started.", session_ended=True)
    return _protocol_failure(_CLOSED, "The session broke off.", session_ended=True)


def _is_invalid_answer(error: BaseException) -> bool:
    """Return whether the MCP SDK could not parse an answer, or its content."""
    from mcp import MCPError
    from pydantic import ValidationError

    if isinstance(error, MCPError):
        return error.code == _PARSE_ERROR and error.message.startswith(_UNPARSED)
    return isinstance(error, ValidationError)


def _was_refused(trace: RequestTrace) -> bool:
    return not _REFUSED.isdisjoint(trace.statuses[-1:]) and not trace.was_accepted


def refuses_version(details: FailureDetails, trace: RequestTrace) -> bool:
    """Return whether a server has perhaps rejected a request because it does not speak the
    protocol's version that the request uses. ``details``: the result of ``describe_failure``."""
    is_unsupported = not UNSUPPORTED.isdisjoint(trace.statuses[-1:])
    return is_unsupported and details.error.get("code") not in _UNDERSTOOD


def _first_error(error: BaseException) -> BaseException:
    """Return the first exception in an exception group. Other exceptions are returned unchanged."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _http_error(status: int, challenge: str) -> JsonObject:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    if status in (401, 403):
        phrase += _wanted(dict(_CHALLENGE.findall(challenge)))
    return {"type": "http_error", "code": status, "message": phrase}


def _wanted(challenge: Mapping[str, str]) -> str:
    """Return what a server that refused a request says about the access token that it wants, which
    a client can give in the request."""
    told = [f"{told} {challenge[name]}" for name, told in _TOLD.items() if challenge.get(name)]
    more = f" ({'; '.join(told)})" if told else ""
    field = "'authorization' ('authorization_token' in the Messages API)"
    return f": give an access token of this MCP server in {field}{more}"


def _protocol_failure(code: int, message: str, **marks: bool) -> FailureDetails:
    error = {"type": "mcp_protocol_error", "code": code, "message": message}
    return FailureDetails(error=error, **marks)


# --- results -------------------------------------------------------------------------------------


def tool_error(result: CallToolResult, max_bytes: int) -> JsonObject:
    """Return the error for the output item of a call that the tool reports as failed. ``result``:
    the tool's result, which contains the error texts. The texts are truncated to ``max_bytes`` in
    total."""
    texts = [text for block in result.content if (text := _block_text(block))]
    content = [
        {"type": "text", "text": truncate_middle(text, max_bytes // len(texts))} for text in texts
    ]
    return {"type": "mcp_tool_execution_error", "content": content}


def result_text(result: CallToolResult) -> str:
    """Return the result of a tool of an MCP server as text.

    Servers that follow the specification send structured content also as text, so the text is
    enough. If a result contains no text, its structured content is returned as JSON.
    """
    texts = [text for block in result.content if (text := _block_text(block))]
    if not texts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(texts)


def _block_text(block: Any) -> str:
    return _BLOCKS[block.type](block)


def _blob_text(kind: str, mime: str | None, encoded: str) -> str:
    size = len(encoded) * 3 // 4 - encoded[-2:].count("=")
    return f"[{kind} of type {mime or 'unknown'}, {size} bytes]"


def _resource_text(block: Any) -> str:
    from mcp_types import TextResourceContents

    inner = block.resource
    if isinstance(inner, TextResourceContents):
        return inner.text
    return f"{inner.uri} {_blob_text('contents', inner.mime_type, inner.blob)}"


def _link_text(block: Any) -> str:
    description = f": {block.description}" if block.description else ""
    return f"[{block.title or block.name}]({block.uri}){description}"


#: The ``type`` of a block of content → its text.
_BLOCKS: Mapping[str, Callable[[Any], str]] = {
    "text": lambda block: str(block.text),
    "image": lambda block: _blob_text("image", block.mime_type, block.data),
    "audio": lambda block: _blob_text("audio", block.mime_type, block.data),
    "resource": _resource_text,
    "resource_link": _link_text,
}

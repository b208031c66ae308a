"""What came of a call, as its item shows it and as a model is told: contents, and failures by kind.
It knows no sessions.
"""

from __future__ import annotations

import http
import json
from collections.abc import Callable, Mapping
from typing import Any

import mcp_types as mt
from mcp import MCPError
from msgspec import Struct
from pydantic import ValidationError

from antiphon.text import truncate_middle

from .transport import ADDRESS_REFUSED, RequestTrace

__all__ = ["FailureDetails", "McpFailure", "describe_failure", "result_text", "tool_error"]

Json = dict[str, Any]

_TIMED_OUT = -32001
_CLOSED = -32000
_INTERNAL = -32603
#: What the SDK says where HTTP says that something is wrong, and the server says no more.
_STAND_INS = ("Not Found", "Session terminated", "Server returned an error response")


class FailureDetails(Struct, frozen=True, kw_only=True):
    """Why there is no result. ``error`` is for the item. ``is_over``: the session is.
    ``is_unheard``: the server did not take the request up, so it may be sent again."""

    error: Json
    session_ended: bool = False
    can_retry: bool = False

    @property
    def message(self) -> str:
        """In words."""
        if "code" in self.error and self.error["type"] == "http_error":
            return f"Http status code: {self.error['code']} ({self.error['message']})"
        return str(self.error["message"])


class McpFailure(Exception):
    """There is no result."""

    def __init__(self, details: FailureDetails) -> None:
        super().__init__(details.message)
        self.details = details


def describe_failure(error: BaseException, trace: RequestTrace) -> FailureDetails:
    """Of whatever the SDK raised. ``noted``: what HTTP said meanwhile."""
    if isinstance(error, McpFailure):
        return error.details
    found = _first_error(error)
    told = isinstance(found, MCPError) and found.message not in _STAND_INS
    if trace.statuses and not (told and trace.statuses[-1] >= 400):
        status = trace.statuses[-1]
        gone = status == 404
        return FailureDetails(error=_http_error(status), session_ended=gone, can_retry=gone)
    if trace.transport_errors:
        why = trace.transport_errors[-1]
        unheard = why not in (ADDRESS_REFUSED, "the connection broke off")
        return _protocol_failure(
            _CLOSED, f"The server cannot be asked: {why}.", session_ended=True, can_retry=unheard
        )
    if isinstance(found, TimeoutError):
        return _protocol_failure(_TIMED_OUT, "The server took too long.")
    if isinstance(found, MCPError):
        if found.code == _TIMED_OUT:
            return _protocol_failure(_TIMED_OUT, "The server took too long.")
        over = found.code == _CLOSED
        return _protocol_failure(
            found.code, found.message, session_ended=over, can_retry=over and not trace.sent
        )
    if isinstance(found, ValidationError):
        return _protocol_failure(_INTERNAL, "The server's answer is not valid.")
    if isinstance(found, RuntimeError):  # what it says of itself and what it does differ
        return _protocol_failure(_INTERNAL, str(found)[:500])
    if isinstance(found, OSError):
        return _protocol_failure(_CLOSED, "The server could not be started.", session_ended=True)
    return _protocol_failure(_CLOSED, "The session broke off.", session_ended=True)


def _first_error(error: BaseException) -> BaseException:
    """The first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _http_error(status: int) -> Json:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return {"type": "http_error", "code": status, "message": phrase}


def _protocol_failure(code: int, message: str, **marks: bool) -> FailureDetails:
    error = {"type": "mcp_protocol_error", "code": code, "message": message}
    return FailureDetails(error=error, **marks)


# --- results -------------------------------------------------------------------------------------


def tool_error(result: mt.CallToolResult, max_bytes: int) -> Json:
    """The error of a tool that says that it failed, in so many bytes."""
    texts = [text for block in result.content if (text := _block_text(block))]
    content = [
        {"type": "text", "text": truncate_middle(text, max_bytes // len(texts))} for text in texts
    ]
    return {"type": "mcp_tool_execution_error", "content": content}


def result_text(result: mt.CallToolResult) -> str:
    """All of it in words. Structured content is repeated in texts, where servers follow the
    specification; where they do not, it is written out."""
    texts = [text for block in result.content if (text := _block_text(block))]
    if not texts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(texts)


def _block_text(block: Any) -> str:
    return _BLOCKS[type(block)](block)


def _blob_text(kind: str, mime: str | None, encoded: str) -> str:
    size = len(encoded) * 3 // 4 - encoded[-2:].count("=")
    return f"[{kind} of type {mime or 'unknown'}, {size} bytes]"


def _resource_text(block: Any) -> str:
    inner = block.resource
    if isinstance(inner, mt.TextResourceContents):
        return inner.text
    return f"{inner.uri} {_blob_text('contents', inner.mime_type, inner.blob)}"


def _link_text(block: Any) -> str:
    about = f": {block.description}" if block.description else ""
    return f"[{block.title or block.name}]({block.uri}){about}"


_BLOCKS: Mapping[type[Any], Callable[[Any], str]] = {
    mt.TextContent: lambda block: str(block.text),
    mt.ImageContent: lambda block: _blob_text("image", block.mime_type, block.data),
    mt.AudioContent: lambda block: _blob_text("audio", block.mime_type, block.data),
    mt.EmbeddedResource: _resource_text,
    mt.ResourceLink: _link_text,
}

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

from .transport import REFUSED, Seen

__all__ = ["Failure", "Fault", "failure", "refused_by_tool", "text_of"]

Json = dict[str, Any]

_TIMED_OUT = -32001
_CLOSED = -32000
_INTERNAL = -32603
#: What the SDK says where HTTP says that something is wrong, and the server says no more.
_STAND_INS = ("Not Found", "Session terminated", "Server returned an error response")


class Fault(Struct, frozen=True, kw_only=True):
    """Why there is no result. ``error`` is for the item. ``is_over``: the session is.
    ``is_unheard``: the server did not take the request up, so it may be sent again."""

    error: Json
    is_over: bool = False
    is_unheard: bool = False

    @property
    def message(self) -> str:
        """In words."""
        if "code" in self.error and self.error["type"] == "http_error":
            return f"Http status code: {self.error['code']} ({self.error['message']})"
        return str(self.error["message"])


class Failure(Exception):
    """There is no result."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def failure(error: BaseException, noted: Seen) -> Fault:
    """Of whatever the SDK raised. ``noted``: what HTTP said meanwhile."""
    if isinstance(error, Failure):
        return error.fault
    found = _found(error)
    told = isinstance(found, MCPError) and found.message not in _STAND_INS
    if noted.statuses and not (told and noted.statuses[-1] >= 400):
        status = noted.statuses[-1]
        gone = status == 404
        return Fault(error=_http(status), is_over=gone, is_unheard=gone)
    if noted.broken:
        why = noted.broken[-1]
        unheard = why not in (REFUSED, "the connection broke off")
        return _protocol(
            _CLOSED, f"The server cannot be asked: {why}.", is_over=True, is_unheard=unheard
        )
    if isinstance(found, TimeoutError):
        return _protocol(_TIMED_OUT, "The server took too long.")
    if isinstance(found, MCPError):
        if found.code == _TIMED_OUT:
            return _protocol(_TIMED_OUT, "The server took too long.")
        over = found.code == _CLOSED
        return _protocol(
            found.code, found.message, is_over=over, is_unheard=over and not noted.sent
        )
    if isinstance(found, ValidationError):
        return _protocol(_INTERNAL, "The server's answer is not valid.")
    if isinstance(found, RuntimeError):  # what it says of itself and what it does differ
        return _protocol(_INTERNAL, str(found)[:500])
    if isinstance(found, OSError):
        return _protocol(_CLOSED, "The server could not be started.", is_over=True)
    return _protocol(_CLOSED, "The session broke off.", is_over=True)


def _found(error: BaseException) -> BaseException:
    """The first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _http(status: int) -> Json:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return {"type": "http_error", "code": status, "message": phrase}


def _protocol(code: int, message: str, **marks: bool) -> Fault:
    error = {"type": "mcp_protocol_error", "code": code, "message": message}
    return Fault(error=error, **marks)


# --- results -------------------------------------------------------------------------------------


def refused_by_tool(result: mt.CallToolResult, room: int) -> Json:
    """The error of a tool that says that it failed, in so many bytes."""
    texts = [text for block in result.content if (text := _block(block))]
    content = [
        {"type": "text", "text": truncate_middle(text, room // len(texts))} for text in texts
    ]
    return {"type": "mcp_tool_execution_error", "content": content}


def text_of(result: mt.CallToolResult) -> str:
    """All of it in words. Structured content is repeated in texts, where servers follow the
    specification; where they do not, it is written out."""
    texts = [text for block in result.content if (text := _block(block))]
    if not texts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(texts)


def _block(block: Any) -> str:
    return _BLOCKS[type(block)](block)


def _blob(kind: str, mime: str | None, encoded: str) -> str:
    size = len(encoded) * 3 // 4 - encoded[-2:].count("=")
    return f"[{kind} of type {mime or 'unknown'}, {size} bytes]"


def _resource(block: Any) -> str:
    inner = block.resource
    if isinstance(inner, mt.TextResourceContents):
        return inner.text
    return f"{inner.uri} {_blob('contents', inner.mime_type, inner.blob)}"


def _linked(block: Any) -> str:
    about = f": {block.description}" if block.description else ""
    return f"[{block.title or block.name}]({block.uri}){about}"


_BLOCKS: Mapping[type[Any], Callable[[Any], str]] = {
    mt.TextContent: lambda block: str(block.text),
    mt.ImageContent: lambda block: _blob("image", block.mime_type, block.data),
    mt.AudioContent: lambda block: _blob("audio", block.mime_type, block.data),
    mt.EmbeddedResource: _resource,
    mt.ResourceLink: _linked,
}

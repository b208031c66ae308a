"""Error bodies for clients that do not read OpenAI's error format.

- Clients of the Messages API get Anthropic's error format, and the request id in the header
  ``request-id``.
- Clients of Ollama's API get an object with a text. Some of them would show an object as
  ``[object Object]``.
- ``@ai-sdk/open-responses`` gets empty strings instead of null. In OpenAI's format, ``param`` and
  ``code`` are null if they do not apply. This client cannot read null: it would show the status
  line instead of the message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from starlette.types import Message, Scope, Send

from antiphon.compat.messages.errors import message_error
from antiphon.wire.json_types import JsonObject

from .request_context import header, request_context, route_path

#: Part of the user agent of the client that requires strings.
_STRICT_CLIENT = b"ai-sdk/open-responses"
_MESSAGES_PATH = "/v1/messages/"
_OLLAMA_PATH = "/api/"

#: Takes the HTTP status and the ``error`` object of a body, and returns the new body.
_Rewrite = Callable[[int, JsonObject], Any]


def is_messages_client(scope: Scope) -> bool:
    """Return whether the request comes from a client of the Messages API."""
    is_messages_path = f"{route_path(scope)}/".startswith(_MESSAGES_PATH)
    return is_messages_path or header(scope, b"anthropic-version") is not None


def send_for_client(scope: Scope, send: Send) -> Send:
    """Return ``send`` itself for clients that read OpenAI's error format. For other clients, return
    a wrapper of ``send`` that rewrites error bodies in the format that the client reads."""
    if scope["type"] != "http":
        return send
    if route_path(scope).startswith(_OLLAMA_PATH):
        return _rewriting(send, _ollama_error)
    if is_messages_client(scope):
        id = request_context(scope).id
        return _rewriting(_with_request_id(send, id), partial(_anthropic_error, id))
    if _STRICT_CLIENT in (header(scope, b"user-agent") or b""):
        return _rewriting(send, _with_strings)
    return send


def _with_request_id(send: Send, id: str) -> Send:
    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {
                **message,
                "headers": [*message.get("headers", ()), (b"request-id", id.encode())],
            }
        await send(message)

    return send_with_id


def _rewriting(send: Send, rewrite: _Rewrite) -> Send:
    """Return a wrapper of ``send`` that rewrites error bodies. An error body must be sent in one
    ASGI message."""
    start: Message = {}

    async def send_rewritten(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            start.update(message)
        elif start and message["type"] == "http.response.body":
            body = _rewritten(message.get("body", b""), start["status"], rewrite)
            headers = [each for each in start["headers"] if each[0].lower() != b"content-length"]
            start["headers"] = [*headers, (b"content-length", str(len(body)).encode())]
            await send({**start})
            start.clear()
            await send({**message, "body": body})
        else:
            await send(message)

    return send_rewritten


def _rewritten(body: bytes, status: int, rewrite: _Rewrite) -> bytes:
    """Rewrite an error body that has OpenAI's format. Any other body is returned unchanged."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body
    error = value.get("error") if isinstance(value, dict) else None
    return msgspec.json.encode(rewrite(status, error)) if isinstance(error, dict) else body


def _with_strings(status: int, error: JsonObject) -> Any:
    return {"error": {name: "" if field is None else field for name, field in error.items()}}


def _anthropic_error(request_id: str, status: int, error: JsonObject) -> Any:
    message, code = _with_param(error), error.get("code")
    return message_error(status, message, code, request_id, param=error.get("param"))


def _ollama_error(status: int, error: JsonObject) -> Any:
    if error.get("code") == "model_not_found":  # the whole text is known to clients
        return {"error": error["message"]}
    return {"error": _with_param(error)}


def _with_param(error: JsonObject) -> str:
    """Return the message of an error for a format without a field for ``param``."""
    message, param = str(error.get("message")), error.get("param")
    return f"{param}: {message}" if param and f"'{param}" not in message else message

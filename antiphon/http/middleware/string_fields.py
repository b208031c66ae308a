"""Error bodies for clients that cannot read null in them.

OpenAI's errors have null in ``param`` and ``code`` where these do not apply.
``@ai-sdk/open-responses`` requires strings, and otherwise shows the status line instead of the
message.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import Message, Scope, Send

from .request_context import header

__all__ = ["send_for_client"]

#: Part of the user agents of such clients.
_STRICT_CLIENTS = (b"ai-sdk/open-responses",)


def send_for_client(scope: Scope, send: Send) -> Send:
    """Return ``send``, which replaces null in error bodies if the client requires strings."""
    agent = header(scope, b"user-agent") or b""
    if scope["type"] != "http" or not any(name in agent for name in _STRICT_CLIENTS):
        return send
    start: Message = {}

    async def send_strings(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            start.update(message)
        elif start and message["type"] == "http.response.body":
            body = _with_strings(message.get("body", b""))
            headers = [each for each in start["headers"] if each[0].lower() != b"content-length"]
            start["headers"] = [*headers, (b"content-length", str(len(body)).encode())]
            await send({**start})
            start.clear()
            await send({**message, "body": body})
        else:
            await send(message)

    return send_strings


def _with_strings(body: bytes) -> bytes:
    """Replace null in the fields of an error; other bodies stay as they are."""
    try:
        value: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return body
    for name, field in error.items():
        error[name] = "" if field is None else field
    return msgspec.json.encode(value)

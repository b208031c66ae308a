"""An ASGI app that answers RPC calls of other Antiphon servers over HTTP.

A call is a POST request with the encoded message. The response is a stream of frames. An empty
frame means that the call still runs. If the caller disconnects, its call is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeAlias

import msgspec
from starlette.types import Receive, Scope, Send

from antiphon.support.fair_threads import current_tenant
from antiphon.support.tasks import BackgroundTasks

from .frames import encode_length
from .messages import CallMessage
from .signatures import CallSigner, content_digest

CALLS_PATH = "/antiphon/calls/"
#: Seconds without an answer after which an empty frame is sent.
KEEPALIVE_S = 10.0
#: Bodies with at least this many bytes are hashed in a thread.
_THREAD_BYTES = 1 << 20
_decode = msgspec.msgpack.Decoder(CallMessage).decode

#: Runs a call and yields its encoded answers.
AnswerCall: TypeAlias = Callable[[CallMessage], AsyncGenerator[bytes, None]]


class HttpCallEndpoint:
    """The ASGI app that answers RPC calls. ``find``: called with the id of a process. It returns
    the function that answers calls to this process, or None if this server has no such process.
    ``max_bytes``: the maximum size of a request body."""

    def __init__(
        self, signer: CallSigner, find: Callable[[str], AnswerCall | None], *, max_bytes: int
    ) -> None:
        self._signer = signer
        self._find = find
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner = scope["path"].rpartition("/")[2]
        headers = {
            name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]
        }
        digest = self._signer.check(owner, headers) if scope["method"] == "POST" else None
        if digest is None:
            return await _refuse(send, 401)
        body = await self._read(receive)
        if body is None:
            return await _refuse(send, 413)
        is_large = len(body) >= _THREAD_BYTES
        found = await asyncio.to_thread(content_digest, body) if is_large else content_digest(body)
        if found != digest:
            return await _refuse(send, 401)
        answer = self._find(owner)
        if answer is None:
            return await _refuse(send, 404)
        try:
            message = _decode(body)
        except msgspec.MsgspecError:
            return await _refuse(send, 400)
        current_tenant.set(message.tenant)
        async with aclosing(answer(message)) as answers:
            await _stream(answers, receive, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the request body. Returns None if the body is too large or the caller has
        disconnected."""
        body = bytearray()
        while len(body) <= self._max_bytes:
            event = await receive()
            if event["type"] != "http.request":
                return None
            body += event.get("body", b"")
            if not event.get("more_body"):
                return bytes(body) if len(body) <= self._max_bytes else None
        return None


def is_call(scope: Scope) -> bool:
    """Return whether an ASGI request is an RPC call, which ``HttpCallEndpoint`` must answer."""
    path: str = scope.get("path", "")
    return scope["type"] == "http" and path.startswith(scope.get("root_path", "") + CALLS_PATH)


async def _refuse(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _stream(answers: AsyncGenerator[bytes, None], receive: Receive, send: Send) -> None:
    """Send each answer of an RPC call as one frame of the HTTP response: the length, then the
    answer. Stop after the last answer, or when the caller disconnects."""
    headers = [(b"content-type", b"application/octet-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    tasks = BackgroundTasks("answers to another server")
    gone = tasks.start(_wait_for_disconnect(receive), is_awaited=True)
    pending: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            pending = pending or tasks.start(_next_answer(answers), is_awaited=True)
            await asyncio.wait(
                (pending, gone), timeout=KEEPALIVE_S, return_when=asyncio.FIRST_COMPLETED
            )
            if gone.done():
                return
            payload: bytes | None = b""
            if pending.done():
                payload, pending = pending.result(), None
            if payload is None:
                break
            frame = encode_length(payload) + payload
            await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        await tasks.close()


async def _next_answer(answers: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(answers, None)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""Clients over plain ASGI messages, which read as slowly as a test wants and may disconnect."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any

from starlette.types import ASGIApp

#: The terminal events of a response.
TERMINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")


async def _end_app(
    app_task: asyncio.Task[None],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Wait until the app has ended. If the test has failed, cancel the app first, because the
    reason may be that the app does not notice the disconnect."""
    if error is None:
        await app_task
        return
    app_task.cancel()
    await asyncio.gather(app_task, return_exceptions=True)


class StreamingClient:
    """One streamed request: ``async with StreamingClient(app, **body) as client``.

    Output of the server waits until the test reads it, as with a full socket.
    """

    def __init__(self, app: ASGIApp, **body: Any) -> None:
        self._app = app
        self._body = json.dumps({"input": "hi", "stream": True, **body}).encode()
        self._incoming = False
        self._disconnected = asyncio.Event()
        self._output: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)
        self._frames: deque[bytes] = deque()
        self.status: int | None = None
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> StreamingClient:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/responses",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        await self._exits.enter_async_context(asyncio.timeout(60))
        self._app_task = asyncio.create_task(self._app(scope, self._receive, self._send))
        self._exits.push_async_exit(partial(_end_app, self._app_task))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.disconnect()
        await self._exits.__aexit__(kind, error, trace)

    def disconnect(self) -> None:
        """Disconnect. Further output is lost."""
        self._disconnected.set()
        while not self._output.empty():
            self._output.get_nowait()

    async def event(self) -> dict[str, Any]:
        """Return the next event of the stream."""
        while not self._frames:
            self._frames.extend((await self._output.get()).split(b"\n\n")[:-1])
        data = self._frames.popleft().split(b"data: ", 1)[1]
        event: dict[str, Any] = json.loads(data)
        return event

    async def rest(self) -> list[dict[str, Any]]:
        """Return the remaining events, up to the terminal event."""
        events = [await self.event()]
        while events[-1]["type"] not in TERMINAL_EVENTS:
            events.append(await self.event())
        return events

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the server's writes."""
        while not self._app_task.done() or not self._output.empty():
            next_output = asyncio.ensure_future(self._output.get())
            await asyncio.wait((next_output, self._app_task), return_when=asyncio.FIRST_COMPLETED)
            if next_output.done():
                yield next_output.result()
            else:
                next_output.cancel()

    async def _receive(self) -> Any:
        if not self._incoming:
            self._incoming = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["body"] and not self._disconnected.is_set():
            await self._output.put(message["body"])


class WebSocketClient:
    """A WebSocket connection to a server in this process."""

    def __init__(self, app: ASGIApp, **headers: str) -> None:
        self._app = app
        self._headers = [(b"host", b"localhost")] + [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._output: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> WebSocketClient:
        scope = {
            "type": "websocket",
            "path": "/v1/responses",
            "query_string": b"",
            "headers": self._headers,
            "extensions": {"websocket.http.response": {}},
        }
        await self._exits.enter_async_context(asyncio.timeout(60))
        self._incoming.put_nowait({"type": "websocket.connect"})
        self._app_task = asyncio.create_task(self._app(scope, self._incoming.get, self._output.put))
        self._exits.push_async_exit(partial(_end_app, self._app_task))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.disconnect()
        await self._exits.__aexit__(kind, error, trace)

    def disconnect(self) -> None:
        """Disconnect."""
        self._incoming.put_nowait({"type": "websocket.disconnect", "code": 1001})

    async def message(self) -> dict[str, Any]:
        """Return the server's next ASGI message."""
        return await self._output.get()

    def send(self, frame: str | bytes | Mapping[str, Any]) -> None:
        """Send a frame; a mapping is sent as JSON."""
        if isinstance(frame, bytes):
            return self._incoming.put_nowait({"type": "websocket.receive", "bytes": frame})
        text = frame if isinstance(frame, str) else json.dumps(frame)
        self._incoming.put_nowait({"type": "websocket.receive", "text": text})

    def create(self, **body: Any) -> None:
        """Send ``response.create``."""
        self.send({"type": "response.create", "model": "tiny", "input": "hi", **body})

    async def event(self) -> dict[str, Any]:
        """Return the next frame."""
        while (message := await self.message())["type"] == "websocket.accept":
            pass
        assert message["type"] == "websocket.send", message
        event: dict[str, Any] = json.loads(message["text"])
        return event

    async def events(self) -> list[dict[str, Any]]:
        """Return all events of one response, or the one error frame."""
        events = [await self.event()]
        while "error" not in events[0] and events[-1]["type"] not in TERMINAL_EVENTS:
            events.append(await self.event())
        return events

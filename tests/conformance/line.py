"""A client as slow, and as rude, as a test wants it: the app is spoken to message by message."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any

from starlette.types import ASGIApp

__all__ = ["ENDS", "Line", "Wire"]


#: The events that end a response.
ENDS = ("response.completed", "response.incomplete", "response.failed")


class Line:
    """``async with Line(app, **body) as line``: one streamed request. What the server says is
    taken only when it is asked for; until then it waits, as it would for a full socket."""

    def __init__(self, app: ASGIApp, **body: Any) -> None:
        self._app = app
        self._body = json.dumps({"input": "hi", "stream": True, **body}).encode()
        self._asked = False
        self._gone = asyncio.Event()
        self._said: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)
        self._frames: deque[bytes] = deque()
        self.status: int | None = None

    async def __aenter__(self) -> Line:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/responses",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
        }
        self._patience = asyncio.timeout(10)
        await self._patience.__aenter__()
        self._exchange = asyncio.create_task(self._app(scope, self._receive, self._send))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hang_up()
        await self._exchange
        await self._patience.__aexit__(kind, error, trace)

    def hang_up(self) -> None:
        """Leave. Whatever the server still says is lost."""
        self._gone.set()
        while not self._said.empty():
            self._said.get_nowait()

    async def event(self) -> dict[str, Any]:
        """The next event of the stream."""
        while not self._frames:
            self._frames.extend((await self._said.get()).split(b"\n\n")[:-1])
        data = self._frames.popleft().split(b"data: ", 1)[1]
        event: dict[str, Any] = json.loads(data)
        return event

    async def rest(self) -> list[dict[str, Any]]:
        """All that is still to come, to the event that ends the response."""
        events = [await self.event()]
        while events[-1]["type"] not in ENDS:
            events.append(await self.event())
        return events

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """What the server says, as it says it."""
        while not self._exchange.done() or not self._said.empty():
            said = asyncio.ensure_future(self._said.get())
            await asyncio.wait((said, self._exchange), return_when=asyncio.FIRST_COMPLETED)
            if said.done():
                yield said.result()
            else:
                said.cancel()

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["body"] and not self._gone.is_set():
            await self._said.put(message["body"])


class Wire:
    """A WebSocket to a server in this process: frames in, frames out."""

    def __init__(self, app: ASGIApp, **headers: str) -> None:
        self._app = app
        self._headers = [(b"host", b"localhost")] + [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        self._asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def __aenter__(self) -> Wire:
        scope = {
            "type": "websocket",
            "path": "/v1/responses",
            "query_string": b"",
            "headers": self._headers,
            "extensions": {"websocket.http.response": {}},
        }
        self._patience = asyncio.timeout(10)
        await self._patience.__aenter__()
        self._asked.put_nowait({"type": "websocket.connect"})
        self._exchange = asyncio.create_task(self._app(scope, self._asked.get, self._said.put))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.hang_up()
        await self._exchange
        await self._patience.__aexit__(kind, error, trace)

    def hang_up(self) -> None:
        """Leave."""
        self._asked.put_nowait({"type": "websocket.disconnect", "code": 1001})

    async def message(self) -> dict[str, Any]:
        """What the server says next, in ASGI's terms."""
        return await self._said.get()

    def send(self, frame: str | bytes | Mapping[str, Any]) -> None:
        """A frame; a mapping as JSON."""
        if isinstance(frame, bytes):
            return self._asked.put_nowait({"type": "websocket.receive", "bytes": frame})
        text = frame if isinstance(frame, str) else json.dumps(frame)
        self._asked.put_nowait({"type": "websocket.receive", "text": text})

    def create(self, **body: Any) -> None:
        """Ask for a response."""
        self.send({"type": "response.create", "model": "tiny", "input": "hi", **body})

    async def event(self) -> dict[str, Any]:
        """The next frame."""
        while (message := await self.message())["type"] == "websocket.accept":
            pass
        assert message["type"] == "websocket.send", message
        event: dict[str, Any] = json.loads(message["text"])
        return event

    async def events(self) -> list[dict[str, Any]]:
        """All that is said of one response, or the one error frame instead of it."""
        events = [await self.event()]
        while "error" not in events[0] and events[-1]["type"] not in ENDS:
            events.append(await self.event())
        return events

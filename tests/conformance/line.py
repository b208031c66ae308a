"""A client as slow, and as rude, as a test wants it: the app is spoken to message by message."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any

from starlette.types import ASGIApp

__all__ = ["Line"]


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

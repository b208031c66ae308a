"""A receiver of webhooks on loopback, and a run store that says what becomes of its letters."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from msgspec import Struct

from antiphon.store.records import DueWebhook
from antiphon.store.runs import RunStore

__all__ = ["SECRETS", "SILENCE", "Heard", "Receiver", "Told"]

SECRETS = tuple("whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))

#: For an answer that does not come.
SILENCE = 0


class Heard(Struct, frozen=True):
    """A delivery as it arrived."""

    body: bytes
    headers: dict[str, str]


class Receiver:
    """It gives its answers in turn; the last one stays. ``url`` once it is ``listening``."""

    def __init__(self, *answers: int) -> None:
        self._answers = list(answers)
        self.heard: asyncio.Queue[Heard] = asyncio.Queue()
        self.count = 0
        self.url = ""
        #: Answers other than ``SILENCE`` wait for it.
        self.open = asyncio.Event()
        self.open.set()

    async def _hear(self, request: web.Request) -> web.Response:
        self.count += 1
        status = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self.heard.put_nowait(Heard(await request.read(), dict(request.headers)))
        if status == SILENCE:
            await asyncio.Event().wait()
        await self.open.wait()
        return web.Response(status=status, headers={"location": self.url})

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Receiver]:
        app = web.Application()
        app.router.add_post("/hook", self._hear)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        try:
            async with asyncio.timeout(20):
                yield self
        finally:
            await runner.cleanup()


class Told:
    """The letters of a run store. ``news``: when each is due again, or None when it is settled."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self.news: asyncio.Queue[float | None] = asyncio.Queue()
        #: Raised by the next looks.
        self.broken: list[Exception] = []

    async def take_due_webhooks(
        self, now: float, retry_at: float, *, limit: int
    ) -> tuple[DueWebhook, ...]:
        if self.broken:
            raise self.broken.pop()
        return await self._store.take_due_webhooks(now, retry_at, limit=limit)

    async def postpone_webhook(self, event_id: str, until: float) -> None:
        await self._store.postpone_webhook(event_id, until)
        self.news.put_nowait(until)

    async def delete_webhook(self, event_id: str) -> None:
        await self._store.delete_webhook(event_id)
        self.news.put_nowait(None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

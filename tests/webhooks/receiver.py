"""A webhook receiver on loopback, and a run store that reports the outcome of each delivery."""

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

SECRETS = tuple("whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))

#: Status that stands for a response that never comes.
NO_RESPONSE = 0


class Delivery(Struct, frozen=True):
    """A delivery as it arrived."""

    body: bytes
    headers: dict[str, str]


class Receiver:
    """Answers with the given statuses in turn; the last one repeats.

    ``url`` is set while it is ``listening``.
    """

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        self.count = 0
        self.url = ""
        #: Responses wait for this event.
        self.open = asyncio.Event()
        self.open.set()

    async def _receive(self, request: web.Request) -> web.Response:
        self.count += 1
        status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        self.deliveries.put_nowait(Delivery(await request.read(), dict(request.headers)))
        if status == NO_RESPONSE:
            await asyncio.Event().wait()
        await self.open.wait()
        return web.Response(status=status, headers={"location": self.url})

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Receiver]:
        app = web.Application()
        app.router.add_post("/hook", self._receive)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        try:
            async with asyncio.timeout(60):
                yield self
        finally:
            await runner.cleanup()


class RecordingRunStore:
    """A run store that records what happens to webhooks.

    ``outcomes``: when a webhook is due again, or None when it is deleted.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self.outcomes: asyncio.Queue[float | None] = asyncio.Queue()
        #: Raised by the next calls of ``take_due_webhooks``.
        self.errors: list[Exception] = []

    async def take_due_webhooks(
        self, now: float, retry_at: float, *, limit: int
    ) -> tuple[DueWebhook, ...]:
        if self.errors:
            raise self.errors.pop()
        return await self._store.take_due_webhooks(now, retry_at, limit=limit)

    async def settle_webhook(self, event_id: str, retry_at: float | None) -> None:
        await self._store.settle_webhook(event_id, retry_at)
        self.outcomes.put_nowait(retry_at)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

"""Readers of event logs when the server stops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.errors import ServerStopped
from antiphon.runs.background.event_log_reader import EventLogReader
from antiphon.store.common.subscriptions import Subscriptions
from antiphon.store.records import EventBatch, EventPage


class OneRun:
    """A store with one run that has not ended."""

    def __init__(self, *batches: EventBatch) -> None:
        self.runs = self
        self._batches = batches
        self._subscriptions = Subscriptions()
        self.subscribe = self._subscriptions.subscribe

    async def events(self, tenant: str, response_id: str, after: int, *, limit: int) -> Any:
        left = tuple(batch for batch in self._batches if batch.last > after)
        return EventPage(batches=left, ended=False)


async def test_stopped_reader_yields_what_is_stored_and_then_fails() -> None:
    line = b'{"type":"response.queued","sequence_number":0}'
    reader = EventLogReader(OneRun(EventBatch(first=0, count=1, lines=line + b"\n")))  # type: ignore[arg-type]
    seen = asyncio.Event()
    lines = []

    async def follow() -> None:
        async for each in reader.follow("t", "resp_1"):
            lines.extend(each)
            seen.set()

    following = asyncio.create_task(follow())
    await seen.wait()
    reader.stop()
    with pytest.raises(ServerStopped):
        await following
    assert [bytes(each) for each in lines] == [line]
    with pytest.raises(ServerStopped):
        await reader.wait("t", "resp_1")

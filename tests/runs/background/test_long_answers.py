"""A long background answer takes little more memory than the answer."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from antiphon.backends.base import DeltaSink, Reply
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.http.streaming.sse import frame_pieces
from antiphon.inference.conversation import Conversation, Options, ResumePoint
from antiphon.runs.service import Service
from antiphon.store.sqlite.store import SqliteStore
from antiphon.stream.deltas import Close, Delta, Finish, Open, Text
from antiphon.testing.replies import push_all
from antiphon.wire.items import Message
from antiphon.wire.parsing.requests import parse_create_response
from antiphon.wire.response import Usage
from tests.runs.scripted_service import make_service

#: Deltas of an answer, and the length of each.
COUNT, LENGTH = 1_000, 6_000
SIZE = COUNT * LENGTH


class LongBackend(ScriptedBackend):
    """Answers with a long text."""

    async def prepare(self, conversation: Conversation, options: Options) -> Any:
        return LongReply()


class LongReply(Reply):
    input_tokens = 1
    prompt_tokens = None

    def resume(self, point: ResumePoint) -> Reply:
        return self

    async def pump(self, sink: DeltaSink) -> None:
        await push_all(self.deltas(), sink)

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        yield (Open(Message(role="assistant", content=())),)
        for number in range(COUNT):
            yield (Text(f"{number:06d}".ljust(LENGTH, "x")),)
            if number % 50 == 0:
                await asyncio.sleep(0)
        yield (Close(), Finish("stop", Usage()))


async def test_long_answer_takes_few_copies(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "a.db")
    service = make_service(LongBackend(), store)
    service.start()
    request = parse_create_response(b'{"input": "hi", "background": true}')
    gc.collect()
    tracemalloc.start(1)
    try:
        run = await service.enqueue("t", request)
        async with asyncio.timeout(60):
            async for _ in service.event_logs.follow("t", run.response.id):
                pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * SIZE, f"{peak / SIZE:.1f} times its size"
    response = await service.retrieve("t", run.response.id)
    assert response.status == "completed"
    (message,) = response.output
    assert isinstance(message, Message)
    assert sum(len(getattr(part, "text", "")) for part in message.content) == SIZE
    await service.drain(0)
    await store.close()


async def test_reading_a_long_answer_takes_one_copy(tmp_path: Path) -> None:
    """Of the events that each hold the whole text, a follower has one at a time, once. The least of
    three peaks counts: a thread of the store that waits for a processor still holds its last event.
    """
    store = await SqliteStore.open(tmp_path / "a.db")
    service = make_service(LongBackend(), store)
    service.start()
    run = await service.enqueue("t", parse_create_response(b'{"input": "hi", "background": true}'))
    async with asyncio.timeout(60):
        await service.event_logs.wait("t", run.response.id)
        peaks = [await _peak_of_reading(service, run.response.id) for _ in range(3)]
    assert min(peaks) < 1.7 * SIZE, f"{min(peaks) / SIZE:.1f} times its size"
    await service.drain(0)
    await store.close()


async def _peak_of_reading(service: Service, response_id: str) -> int:
    """Follow a response and return the peak of the memory in bytes."""
    sent = 0
    gc.collect()
    tracemalloc.start(1)
    try:
        async for lines in service.event_logs.follow("t", response_id):
            sent += sum(map(len, frame_pieces(lines)))
            del lines
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sent > 5 * SIZE
    return peak

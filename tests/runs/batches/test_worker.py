"""The worker for batches: failures of the store while lines run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

from antiphon.errors import StoreError
from antiphon.limits.clients import ANYONE
from antiphon.limits.key_ring import KeyRing
from antiphon.resources.batches import Batches
from antiphon.resources.file_storage.files import Files
from antiphon.runs.background.event_log_reader import EventLogReader
from antiphon.runs.batches.line_runs import LineRuns
from antiphon.runs.batches.lines import LineReply, split_lines
from antiphon.runs.batches.worker import BatchWorker, LineRequest
from antiphon.store.batches import BatchStore
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.resources.batches import Batch, CreateBatch

WAIT_S = 20.0
LINE = b'{"custom_id": "%d", "method": "POST", "url": "/v1/responses", "body": {}}\n'


async def chunks(*pieces: bytes) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece


async def test_lines_may_be_split_anywhere() -> None:
    found = [each async for each in split_lines(chunks(b"a", b"b\n\n \nc", b"\nd"))]
    assert found == [(1, b"ab"), (4, b"c"), (5, b"d")]


async def test_batch_continues_after_the_store_failed(monkeypatch: Any) -> None:
    store, ids = MemoryStore(), iter(range(99))
    files = Files(store, clock=lambda: 1000.0, ids=lambda prefix: f"{prefix}_{next(ids)}")
    batches = Batches(
        store.values, files, clock=lambda: 1000.0, ids=lambda prefix: f"{prefix}_{next(ids)}"
    )
    worker = BatchWorker(
        batches,
        files,
        KeyRing(),
        LineRuns(store, EventLogReader(store), worker=cast(Any, None), end=cast(Any, None)),
        owner="a",
        lease_s=0.05,
        lines_at_a_time=3,
        clock=lambda: 1000.0,
    )
    add_chunk, failures = BatchStore.add_chunk, [StoreError("The store is gone.")]

    async def fail_once(self: BatchStore, *args: Any) -> bool:
        if failures:
            raise failures.pop()
        return await add_chunk(self, *args)

    monkeypatch.setattr(BatchStore, "add_chunk", fail_once)
    monkeypatch.setattr("antiphon.runs.batches.results._CHUNK_S", 0)

    async def execute(request: LineRequest) -> LineReply:
        return LineReply(200, "req_1", b"{}")

    worker.serve(execute, lambda: 0)
    worker.start()
    request = CreateBatch(input_file_id="", endpoint="/v1/responses", completion_window="24h")
    content = b"".join(LINE % number for number in range(20))
    batch = await batches.create_from_lines("t", request, content, ANYONE, prefix="batch")
    worker.wake_up()
    ended = await end_of(batches, batch)
    await worker.drain()
    assert ended.status == "completed" and ended.request_counts.completed == 20
    assert not failures


async def end_of(batches: Batches, batch: Batch) -> Batch:
    async with asyncio.timeout(WAIT_S):
        while (found := await batches.retrieve("t", batch.id)).status != "completed":
            await asyncio.sleep(0.01)
    return found

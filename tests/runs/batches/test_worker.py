"""The worker for batches: failures of the store while lines run."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator
from tempfile import SpooledTemporaryFile
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from antiphon.errors import Overloaded, StoreError
from antiphon.limits.clients import ANYONE
from antiphon.limits.key_ring import KeyRing
from antiphon.resources.batches import Batches
from antiphon.resources.file_storage.contents import StoredFile
from antiphon.resources.file_storage.files import Files
from antiphon.runs.background.event_log_reader import EventLogReader
from antiphon.runs.batches.line_runs import LineRuns
from antiphon.runs.batches.lines import LineReply, find_lines, split_lines
from antiphon.runs.batches.worker import BatchWorker, LineRequest
from antiphon.store.batches import BatchRecord, BatchStore
from antiphon.store.files import FileQuery
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.resources.batches import Batch, CreateBatch

WAIT_S = 20.0
LINE = b'{"custom_id": "%d", "method": "POST", "url": "/v1/responses", "body": {}}\n'


def new_worker(*, lines_at_a_time: int, lease_s: float = 5) -> tuple[Batches, BatchWorker]:
    """Return the batches of a new store, and a worker that does not run yet."""
    store, ids = MemoryStore(), iter(range(999))
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
        lease_s=lease_s,
        lines_at_a_time=lines_at_a_time,
        clock=lambda: 1000.0,
        on_ended=AsyncMock(),
    )
    return batches, worker


async def chunks(*pieces: bytes) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        yield piece


async def test_lines_may_be_split_anywhere() -> None:
    content = b"ab\n\n \nc\nd"
    for cut in range(len(content)):
        pieces = content[:cut], content[cut:]
        assert [each async for each in split_lines(chunks(*pieces))] == [b"ab", b" ", b"c", b"d"]
        places = [each async for each in find_lines(chunks(*pieces))]
        found = [(number, content[start : start + size]) for number, start, size in places]
        assert found == [(1, b"ab"), (4, b"c"), (5, b"d")]


async def test_lines_of_all_batches_share_a_limited_memory(monkeypatch: Any) -> None:
    """However many tenants have batches, and however long their lines wait to be repeated."""
    monkeypatch.setattr("antiphon.runs.batches.worker._MAX_BYTES", 3 * len(LINE))
    batches, worker = new_worker(lines_at_a_time=2)
    waiting, are_three = list[str](), asyncio.Event()

    async def execute(request: LineRequest) -> LineReply:
        waiting.append(request.tenant)
        if len(waiting) == 3:
            are_three.set()
        return LineReply(429, "req_1", b"{}")

    request = CreateBatch(input_file_id="", endpoint="/v1/responses", completion_window="24h")
    content = b"".join(LINE % number for number in range(6))
    for each in range(8):
        await batches.create_from_lines(f"t{each}", request, content, ANYONE, prefix="batch")
    with capture_logs():
        worker.serve(execute, lambda: 0)
        worker.start()
        async with asyncio.timeout(WAIT_S):
            await are_three.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        await worker.drain()
    assert len(waiting) == len(set(waiting)) == 3


async def test_batch_continues_after_the_store_failed(monkeypatch: Any) -> None:
    batches, worker = new_worker(lease_s=0.05, lines_at_a_time=3)
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


@pytest.mark.parametrize(("lease_s", "is_taken"), [(-1, True), (30, False), (9000, True)])
async def test_batch_of_a_dead_server_is_taken_over_after_the_clock_was_set_back(
    lease_s: float, is_taken: bool
) -> None:
    batches, worker = new_worker(lines_at_a_time=1)
    request = CreateBatch(input_file_id="", endpoint="/v1/responses", completion_window="24h")
    batch = await batches.create_from_lines("t", request, LINE % 1, ANYONE, prefix="batch")

    def claim(record: BatchRecord) -> None:
        record.owner, record.lease_until = "dead", 1000.0 + lease_s

    await batches.store.update("t", batch.id, claim)
    assert await worker._take("t", batch.id) is is_taken


async def test_tenants_take_turns() -> None:
    """A tenant with many batches delays another one by the lines that run, and only few of its
    batches are executed at a time."""
    batches, worker = new_worker(lines_at_a_time=2)
    gate, order = asyncio.Event(), []

    async def execute(request: LineRequest) -> LineReply:
        order.append((request.tenant, request.key.rsplit("_", 1)[0]))
        await gate.wait()
        return LineReply(200, "req_1", b"{}")

    request = CreateBatch(input_file_id="", endpoint="/v1/responses", completion_window="24h")
    content = b"".join(LINE % number for number in range(6))
    flood = [
        await batches.create_from_lines("flood", request, content, ANYONE, prefix="batch")
        for _ in range(4)
    ]
    worker.serve(execute, lambda: 0)
    worker.start()
    async with asyncio.timeout(WAIT_S):
        while len(order) < 2:
            await asyncio.sleep(0)
    victim = await batches.create_from_lines("t", request, LINE % 1, ANYONE, prefix="batch")
    await batches.cancel("flood", flood[3].id)
    worker.wake_up()
    while (await batches.retrieve("flood", flood[3].id)).status != "cancelled":
        await asyncio.sleep(0.01)  # although two others of the tenant run
    gate.set()
    await end_of(batches, victim)
    for each in flood[:3]:
        await end_of(batches, each, "flood")
    await worker.drain()
    assert [tenant for tenant, _ in order].index("t") <= 4
    firsts = list(dict.fromkeys(batch for tenant, batch in order if tenant == "flood"))
    # Two batches of the tenant run at a time. So the third one begins after the end of another.
    assert len(firsts) == 3
    assert [batch for _, batch in order].index(firsts[2]) >= 7


async def test_a_tenant_has_a_limited_number_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.resources.batches._MAX_UNENDED", 1)
    store, ids = MemoryStore(), iter(range(99))
    files = Files(store, clock=lambda: 1000.0, ids=lambda prefix: f"{prefix}_{next(ids)}")
    batches = Batches(
        store.values, files, clock=lambda: 1000.0, ids=lambda prefix: f"{prefix}_{next(ids)}"
    )
    request = CreateBatch(input_file_id="", endpoint="/v1/responses", completion_window="24h")
    for tenant in "ab":
        await batches.create_from_lines(tenant, request, LINE % 1, ANYONE, prefix="batch")
    with pytest.raises(Overloaded, match="1 batches that have not ended"):
        await batches.create_from_lines("a", request, LINE % 1, ANYONE, prefix="batch")
    assert len((await files.list("a", FileQuery())).data) == 1


async def end_of(batches: Batches, batch: Batch, tenant: str = "t") -> Batch:
    async with asyncio.timeout(WAIT_S):
        while (found := await batches.retrieve(tenant, batch.id)).status != "completed":
            await asyncio.sleep(0.01)
    return found


async def test_one_input_file_is_loaded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tenants have batches, their files are not in memory together."""
    batches, worker = new_worker(lines_at_a_time=2)
    loading, opened, open_file = [], list[int](), Files.open

    async def counting_open(self: Files, tenant: str, file_id: str) -> StoredFile:
        loading.append(file_id)
        opened.append(len(loading))
        await asyncio.sleep(0)
        found = await open_file(self, tenant, file_id)
        loading.remove(file_id)
        return found

    monkeypatch.setattr(Files, "open", counting_open)
    monkeypatch.setattr("antiphon.runs.batches.worker._MAX_SPOOLED", 10)

    async def execute(request: LineRequest) -> LineReply:
        return LineReply(200, "req_1", b"{}")

    request = CreateBatch(input_file_id="", endpoint="/v1/responses", completion_window="24h")
    content = b"".join(LINE % number for number in range(6))
    tenants = [f"t{number}" for number in range(8)]
    made = [
        await batches.create_from_lines(each, request, content, ANYONE, prefix="batch")
        for each in tenants
    ]
    worker.serve(execute, lambda: 0)
    worker.start()
    for tenant, batch in zip(tenants, made, strict=True):
        ended = await end_of(batches, batch, tenant)
        assert ended.status == "completed" and ended.request_counts.completed == 6
    await worker.drain()
    assert len(opened) == 2 * len(tenants) and set(opened) == {1}


@pytest.mark.parametrize("failing", ["write", "seek"])
async def test_full_folder_for_temporary_files_interrupts_a_batch(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, worker = new_worker(lines_at_a_time=2)
    failures = [failing, "close"]  # what is not written yet is written when the file is closed

    class FullFolder(SpooledTemporaryFile[bytes]):
        def fail(self, method: str) -> None:
            if failures[:1] == [method]:
                del failures[0]
                raise OSError(errno.ENOSPC, "No space left on device")

        def write(self, data: Any) -> int:
            self.fail("write")
            return super().write(data)

        def seek(self, *args: int) -> int:
            self.fail("seek")
            return super().seek(*args)

        def close(self) -> None:
            super().close()
            self.fail("close")

    async def execute(request: LineRequest) -> LineReply:
        return LineReply(200, "req_1", b"{}")

    monkeypatch.setattr("antiphon.runs.batches.worker.SpooledTemporaryFile", FullFolder)
    monkeypatch.setattr("antiphon.runs.batches.worker._FAILURE_S", 0)
    request = CreateBatch(input_file_id="", endpoint="/v1/responses", completion_window="24h")
    batch = await batches.create_from_lines("t", request, LINE % 1, ANYONE, prefix="batch")
    worker.serve(execute, lambda: 0)
    worker.start()
    with capture_logs() as logs:
        assert (await end_of(batches, batch)).status == "completed"
    await worker.drain()
    assert [line["error"] for line in logs] == ["The folder for temporary files: the disk is full."]
    assert not failures

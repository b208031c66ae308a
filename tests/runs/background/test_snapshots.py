"""Snapshots of running responses: each poll reads only new events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.runs.background import snapshots
from antiphon.runs.background.event_codec import encode_batch
from antiphon.runs.background.snapshots import Snapshots
from antiphon.store.records import Append, Claim, ClaimQuery, EventBatch, NewRun, RunEnd
from antiphon.stream.kinds import KINDS
from antiphon.stream.writer import ResponseWriter
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.store_checks.runs import ended_response, job, queued_response
from antiphon.wire.items import Message


class CountedRuns:
    """A run store that counts the events it returns."""

    def __init__(self, runs: Any) -> None:
        self._runs = runs
        self.events_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runs, name)

    async def events(self, *arguments: Any, **options: Any) -> Any:
        page = await self._runs.events(*arguments, **options)
        self.events_read += sum(batch.count for batch in page.batches) if page else 0
        return page


class Running:
    """A running response whose text grows."""

    def __init__(self, name: str = "a") -> None:
        self.name = name
        self.response = replace(queued_response(name).response, created_at=1)
        self.writer = ResponseWriter(self.response, ids=lambda prefix: f"{prefix}_{name}")
        self.item: Any = None
        self.claim: Claim | None = None

    async def start(self, store: Any) -> None:
        self.store = store
        self.writer.create()
        stored = replace(queued_response(self.name), response=self.response)
        await store.runs.create(
            NewRun(job=job(self.name), stored=stored, batch=encode_batch(self.writer.take()))
        )
        (self.claim,) = await store.runs.claim(
            ClaimQuery(owner="one", models=["m"], limit=1, lease_s=3_600)
        )
        self.writer.start()
        self.item = self.writer.open(Message(role="assistant", content=()))

    async def write(self, words: Sequence[str]) -> None:
        for word in words:
            self.item.write(word)
        batch = encode_batch(self.writer.take())
        assert self.claim is not None
        assert not await self.store.runs.append((Append(self.claim, batch),))


def counted_store() -> Any:
    store: Any = MemoryStore()
    store.runs = CountedRuns(store.runs)
    return store


async def test_poll_reads_only_new_events() -> None:
    store, run = counted_store(), Running()
    await run.start(store)
    read = Snapshots(store, KINDS)
    await run.write(["word "] * 2_000)
    assert await read.read("t", run.response) == run.writer.response
    first = store.runs.events_read
    for _ in range(5):
        await run.write(["more "])
        assert await read.read("t", run.response) == run.writer.response
    assert first >= 2_000 and store.runs.events_read - first <= 10


async def test_concurrent_polls_agree() -> None:
    store, run = counted_store(), Running()
    await run.start(store)
    await run.write(["word "] * 1_200)
    read = Snapshots(store, KINDS)
    found = await asyncio.gather(*(read.read("t", run.response) for _ in range(5)))
    assert found == [run.writer.response] * 5


async def test_ended_run_has_no_snapshot() -> None:
    store, run = counted_store(), Running()
    await run.start(store)
    await run.write(["word "])
    read = Snapshots(store, KINDS)
    assert await read.read("t", run.response) is not None
    assert run.claim is not None
    await store.runs.end(
        run.claim,
        RunEnd(stored=ended_response("a"), batch=EventBatch(first=99, count=0, lines=b"")),
    )
    assert await read.read("t", run.response) is None
    assert len(read) == 0


async def test_response_created_again_has_its_own_snapshot() -> None:
    store, run = counted_store(), Running()
    await run.start(store)
    await run.write(["old "] * 50)
    read = Snapshots(store, KINDS)
    await read.read("t", run.response)
    await store.delete("t", run.response.id)
    again = Running()
    again.response = replace(run.response, created_at=2)
    again.writer = ResponseWriter(again.response, ids=lambda prefix: f"{prefix}_2")
    await again.start(store)
    await again.write(["new "])
    assert await read.read("t", again.response) == again.writer.response


async def test_states_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_MAX_BYTES", 1_000)
    store = counted_store()
    read = Snapshots(store, KINDS)
    for name in "abc":
        run = Running(name)
        await run.start(store)
        await run.write(["word "] * 50)
        assert await read.read("t", run.response) == run.writer.response
    assert len(read) == 1

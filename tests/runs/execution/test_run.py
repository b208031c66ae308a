"""A run: how it ends, cancellation, and storing before announcing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from array import array
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import pytest
from structlog.testing import capture_logs

from antiphon.backends.base import Backend, DeltaSink, Reply
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import BackendError, Overloaded, RunError
from antiphon.inference.conversation import Conversation, Options, PromptTokens, ResumePoint
from antiphon.runs.execution.run import EventSink, ReaderGone, Run
from antiphon.store.records import ConversationLock, StoredResponse
from antiphon.store.usage import UsageRecord
from antiphon.stream.deltas import Close, Delta, Finish, Open, SampledTokens, Text
from antiphon.stream.event_grammar import check
from antiphon.stream.fold import fold
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.replies import push_all
from antiphon.upstream.replicas import ReplicaPool
from antiphon.upstream.retries import RetryPolicy, UpstreamHealth
from antiphon.wire import events as ev
from antiphon.wire.items import Message
from antiphon.wire.response import Usage
from tests.runs.scripted_service import RecordingSink, create, events_of, make_service

ANSWER = Open(Message(role="assistant", content=()))


class Gated(Backend, Reply):
    """A backend and its reply: writes a word, waits for the gate, and writes another."""

    context_size = None
    recommended_options: Mapping[str, Any] = {}
    input_tokens = 3
    prompt_tokens: PromptTokens | None = PromptTokens(ids=(1, 2, 3), fingerprint="f")

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.left = asyncio.Event()

    async def prepare(self, conversation: Conversation, options: Options) -> Gated:
        return self

    def resume(self, point: ResumePoint) -> Gated:
        assert not point.sampled_ids
        return self

    async def _deltas(self) -> AsyncGenerator[Delta, None]:
        self.begun.set()
        try:
            yield SampledTokens((10, 11))
            yield ANSWER
            yield Text("one ")
            await self.gate.wait()
            yield SampledTokens((12,))
            yield Text("two")
            yield Close()
            yield Finish("stop", Usage(input_tokens=3, output_tokens=3, total_tokens=6))
        finally:
            self.left.set()

    async def pump(self, sink: DeltaSink) -> None:
        await push_all(self.deltas(), sink)

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        async with aclosing(self._deltas()) as deltas:
            async for delta in deltas:
                yield (delta,)

    async def close(self) -> None: ...


def _leave_at(kind: type[ev.Event]) -> Callable[[RecordingSink], None]:
    def on_write(sink: RecordingSink) -> None:
        if any(isinstance(event, kind) for event in sink.events):
            raise ReaderGone

    return on_write


async def leave_after_a_word(run: Run) -> None:
    async with asyncio.timeout(60):
        with pytest.raises(ReaderGone):
            await run.drive(RecordingSink(_leave_at(ev.OutputTextDelta)))


async def test_run_cancelled_before_its_start_ends_cancelled() -> None:
    run = await create(make_service(Gated()))
    async with asyncio.timeout(60):
        with pytest.raises(ReaderGone):
            await run.drive(RecordingSink(_leave_at(ev.Created)))
    assert run.response.status == "cancelled"


@pytest.mark.requirement("D-81", "VN-51")
async def test_plain_and_streamed_responses_are_equal() -> None:
    service = make_service(ScriptedBackend(["Hello there"]))
    plain = await (await create(service)).drive()
    run = await create(service)
    events = await events_of(run)
    check(events)
    streamed = fold(events)
    assert streamed == run.response
    assert [i.content for i in plain.output] == [i.content for i in streamed.output]  # type: ignore[union-attr]
    assert (plain.status, plain.usage) == (streamed.status, streamed.usage)


async def test_disconnected_reader_stops_the_model() -> None:
    backend = Gated()
    run = await create(make_service(backend))
    await leave_after_a_word(run)
    async with asyncio.timeout(60):
        await backend.left.wait()


async def test_cancelled_plain_reader_cancels_the_run() -> None:
    backend = Gated()
    run = await create(make_service(backend))
    reader = asyncio.create_task(run.drive())
    for _ in range(5):
        await asyncio.sleep(0)
    reader.cancel()
    async with asyncio.timeout(60):
        await backend.left.wait()
        with pytest.raises(asyncio.CancelledError):
            await reader


async def test_cancelled_response_is_not_stored() -> None:
    backend, store = Gated(), MemoryStore()
    service = make_service(backend, store)
    run = await create(service)
    await leave_after_a_word(run)
    await service.drain(5)
    assert run.response.status == "cancelled"
    assert await store.load("t", run.id) is None


@pytest.mark.requirement("API-PERSIST-FIRST")
async def test_response_is_stored_before_its_terminal_event() -> None:
    order: list[str] = []

    class Watched(MemoryStore):
        async def save(
            self,
            tenant: str,
            stored: StoredResponse,
            *,
            lock: ConversationLock | None = None,
            usage: UsageRecord | None = None,
        ) -> bool:
            await asyncio.sleep(0)
            is_saved = await super().save(tenant, stored, lock=lock, usage=usage)
            order.append("saved")
            return is_saved

    def on_write(sink: RecordingSink) -> None:
        order.extend("told" for event in sink.events if isinstance(event, ev.Completed))

    run = await create(make_service(ScriptedBackend(["Hello"]), Watched()))
    await run.drive(RecordingSink(on_write))
    assert order == ["saved", "told"]


async def test_store_error_fails_the_response() -> None:
    class Full(MemoryStore):
        async def save(
            self,
            tenant: str,
            stored: StoredResponse,
            *,
            lock: ConversationLock | None = None,
            usage: UsageRecord | None = None,
        ) -> bool:
            raise RunError("The store could not be written.")

    events = await events_of(await create(make_service(ScriptedBackend(["Hello"]), Full())))
    check(events)
    assert isinstance(events[-1], ev.Failed)
    assert events[-1].response.error is not None
    assert events[-1].response.completed_at is None


async def test_failed_response_is_stored() -> None:
    store = MemoryStore()
    run = await create(make_service(ScriptedBackend([BackendError("It broke.")]), store))
    response = await run.drive()
    assert response.status == "failed"
    stored = await store.load("t", run.id)
    assert stored is not None and stored.response == response
    assert response.usage is not None


async def test_unexpected_exception_is_not_shown_to_clients() -> None:
    class Broken(Gated):
        async def _deltas(self) -> AsyncGenerator[Delta, None]:
            yield ANSWER
            raise KeyError("secret/path")

    events = await events_of(await create(make_service(Broken())))
    check(events)
    assert isinstance(events[-1], ev.Failed)
    assert "secret" not in str(events[-1])


async def test_unexpected_engine_error_is_logged() -> None:
    broken = BackendError("The engine failed: it broke")
    broken.__cause__ = cause = KeyError("where")
    for failure, logged in ((broken, [cause]), (BackendError("It was asked too much."), [])):
        with capture_logs() as logs:
            await events_of(await create(make_service(ScriptedBackend([failure]))))
        assert [each["exc_info"] for each in logs if each["event"] == "run failed"] == logged


async def test_invalid_deltas_fail_the_run_with_legal_events() -> None:
    class Senseless(Gated):
        async def _deltas(self) -> AsyncGenerator[Delta, None]:
            yield Text("out of nowhere")

    events = await events_of(await create(make_service(Senseless())))
    check(events)
    assert isinstance(events[-1], ev.Failed)


async def test_run_fails_at_its_time_limit() -> None:
    events = await events_of(await create(make_service(Gated(), timeout_s=0.01)))
    check(events)
    final = events[-1]
    assert isinstance(final, ev.Failed) and final.response.error is not None
    assert "longer" in final.response.error.message
    assert [getattr(item, "status", "") for item in final.response.output] == ["incomplete"]


async def test_keepalives_are_sent_while_the_model_is_silent() -> None:
    backend = Gated()
    run = await create(make_service(backend, keepalive_s=0.005))

    def on_write(sink: RecordingSink) -> None:
        if sum(isinstance(event, ev.Keepalive) for event in sink.events) >= 3:
            backend.gate.set()

    sink = RecordingSink(on_write)
    async with asyncio.timeout(60):
        await run.drive(sink)
    events = sink.events
    check(events)
    assert isinstance(events[0], ev.Created)
    assert isinstance(events[-1], ev.Completed)


class Refused(Gated):
    """A reply whose upstream refuses the request while ``gate`` is closed."""

    may_fail_early = True

    def __init__(self, error: BackendError | None = None) -> None:
        super().__init__()
        self._error = error

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        pool = ReplicaPool(["http://upstream"], asyncio.get_running_loop().time)
        policy = RetryPolicy(pool, self._wait, UpstreamHealth())
        policy.next_replica()
        await policy.wait_before_retry(BackendError("busy", retry_after_s=1))
        if self._error is not None:
            raise self._error
        policy.accept()
        async with aclosing(super().deltas()) as deltas:
            async for batch in deltas:
                yield batch

    async def _wait(self, seconds: float) -> None:
        self.begun.set()
        await self.gate.wait()


@pytest.mark.requirement("UP-WORDS")
async def test_nothing_is_announced_while_the_upstream_refuses() -> None:
    """Neither the first events nor a keepalive are sent, though both are due."""
    for error in (None, BackendError("busy", code="rate_limit_exceeded")):
        backend, sink = Refused(error), RecordingSink()
        run = await create(make_service(backend, keepalive_s=0.002, first_delta_wait_s=0.001))
        loop, checked = asyncio.get_running_loop(), asyncio.Event()
        driver = asyncio.create_task(run.drive(sink))
        async with asyncio.timeout(60):
            await backend.begun.wait()
            loop.call_later(0.02, checked.set)  # behind the timers of the run
            await checked.wait()
            assert sink.events == []
            backend.gate.set()
            if error is None:
                assert (await driver).status == "completed"
                check(sink.events)
                assert isinstance(sink.events[0], ev.Created)
            else:
                with pytest.raises(BackendError):
                    await driver
                assert sink.events == []


async def test_slow_reader_slows_the_model() -> None:
    delta_count = 0

    class Endless(Gated):
        async def _deltas(self) -> AsyncGenerator[Delta, None]:
            nonlocal delta_count
            yield ANSWER
            for _ in range(100_000):
                delta_count += 1
                yield Text("word ")

    class Slow(EventSink):
        async def write(self, events: tuple[ev.Event, ...]) -> None:
            await asyncio.Event().wait()

    run = await create(make_service(Endless()))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run.drive(Slow())
    assert delta_count == 0


async def test_drain_fails_running_responses() -> None:
    backend = Gated()
    service = make_service(backend)
    run = await create(service)
    reader = asyncio.create_task(events_of(run))
    async with asyncio.timeout(60):
        await backend.begun.wait()
        await service.drain(0)
        events = await reader
    check(events)
    assert isinstance(events[-1], ev.Failed)
    assert not service.is_ready


async def test_stored_tokens_are_those_the_turn_added() -> None:
    backend, store = Gated(), MemoryStore()
    backend.gate.set()
    service = make_service(backend, store)
    first = await (await create(service)).drive()
    stored = await store.load("t", first.id)
    assert stored is not None and stored.tokens is not None
    assert stored.tokens.base == 0
    assert array("I", stored.tokens.ids).tolist() == [1, 2, 3, 10, 11, 12]
    backend.prompt_tokens = PromptTokens(ids=(1, 2, 3, 10, 11, 12, 20), fingerprint="f")
    second = await (await create(service, previous_response_id=first.id)).drive()
    stored = await store.load("t", second.id)
    assert stored is not None and stored.tokens is not None
    assert stored.tokens.base == 6
    assert array("I", stored.tokens.ids).tolist() == [20, 10, 11, 12]


async def test_finished_run_is_freed_without_garbage_collection() -> None:
    class Holding(EventSink):
        run: Run | None = None

    backend = Gated()
    backend.gate.set()
    run = await create(make_service(backend, keepalive_s=60))
    sink = Holding()
    sink.run = run
    removed = weakref.ref(sink)
    gc.disable()
    try:
        await run.drive(sink)
        del run, sink
        assert removed() is None
    finally:
        gc.enable()


async def test_nothing_is_generated_that_cannot_be_stored() -> None:
    backend, store = ScriptedBackend(["Hello!"]), MemoryStore()
    service = make_service(backend, store)
    await store.close()
    with pytest.raises(Overloaded) as refused:
        await create(service)
    assert refused.value.status == 503 and not backend.requests
    run = await create(service, store=False)
    assert (await run.drive()).status == "completed"


async def test_failed_response_has_a_code_that_clients_know() -> None:
    failure = BackendError("The model could not be loaded.", code="model_not_loaded")
    *_, error, failed = await events_of(await create(make_service(ScriptedBackend([failure]))))
    assert isinstance(error, ev.Error) and isinstance(failed, ev.Failed)
    assert error.code == error.error.code == "model_not_loaded"
    ended = failed.response.error
    assert ended is not None and (ended.code, ended.original_code) == (
        "server_error",
        "model_not_loaded",
    )

"""Calls that only read start while the model still writes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from antiphon.backends.base import DeltaSink, Reply
from antiphon.errors import BackendError
from antiphon.inference.conversation import Conversation, Options
from antiphon.runs.execution.recorder import Recorder
from antiphon.runs.execution.run import ReaderGone
from antiphon.runs.tool_loop.executor import ToolLimits
from antiphon.runs.tool_loop.journal import CallJournal
from antiphon.runs.tool_loop.loop import ToolLoop
from antiphon.runs.tool_loop.turn import ToolCall
from antiphon.stream.deltas import Close, Delta, Open, Progress, Text, finish_of
from antiphon.stream.event_grammar import check
from antiphon.stream.writer import ResponseWriter
from antiphon.support.push import send
from antiphon.tools.base import CallContext, ToolFunction, ToolProgress, ToolResult
from antiphon.wire import items as it
from antiphon.wire.response import Response, Usage
from antiphon.wire.tools import Function
from tests.conformance.scripts import call, finish, message_deltas

from .test_loop import LoopRun

Effects = Literal["none", "idempotent", "any"]


class Model:
    """A model that writes one batch each time ``write`` is called. Its last turn is an answer."""

    context_size: int | None = None

    def __init__(self) -> None:
        self.batches: asyncio.Queue[tuple[Delta, ...] | Exception] = asyncio.Queue()
        self.conversations: list[Conversation] = []

    async def prepare(self, conversation: Conversation, options: Options) -> Reply:
        self.conversations.append(conversation)
        return _ModelReply(self, is_answer=len(self.conversations) > 1)

    def write(self, *deltas: Delta) -> None:
        self.batches.put_nowait(deltas)


class _ModelReply(Reply):
    input_tokens = 1

    def __init__(self, model: Model, *, is_answer: bool) -> None:
        self._model = model
        self._is_answer = is_answer

    async def pump(self, sink: DeltaSink) -> None:
        if self._is_answer:
            await send(sink, (*message_deltas("So it is."), finish()))
            return
        while True:
            batch = await self._model.batches.get()
            if isinstance(batch, Exception):
                raise batch
            await send(sink, batch)
            if finish_of(batch) is not None:
                return


class World:
    """A tool loop with a model and a tool that the test controls."""

    def __init__(self, effects: Effects = "none", **changes: Any) -> None:
        self.model = Model()
        self.running: list[str] = []
        self.ended = Counter[str]()
        self.may_end = asyncio.Event()
        self._has_changed = asyncio.Event()
        function = ToolFunction(
            tool=Function(name="look"),
            initial_item=it.WebSearchCall(action={"type": "search"}),
            handler=self._look,
            effects=effects,
        )
        loop = LoopRun(functions=(function,))
        self.spec = replace(loop.spec, prepare=self.model.prepare, **changes)  # type: ignore[arg-type]
        self.deltas: list[Delta] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def _look(
        self, arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        self.running.append(arguments)
        self._has_changed.set()
        yield ToolProgress("searching")
        try:
            await self.may_end.wait()
            yield ToolResult(text=f"seen {arguments}", fields={"action": {"type": "search"}})
        finally:
            self.ended[arguments] += 1
            self._has_changed.set()

    async def start(self) -> asyncio.Task[None]:
        """Read the reply of the loop in a task."""
        reply = ToolLoop(
            await self.model.prepare(self.spec.conversation, self.spec.options), self.spec
        )

        def read(batch: tuple[Delta, ...]) -> None:
            self.deltas += batch
            self._has_changed.set()

        return asyncio.create_task(reply.pump(read))

    async def until(self, condition: Any) -> None:
        """Wait until ``condition`` returns true."""
        async with asyncio.timeout(60):
            while not condition():
                self._has_changed.clear()
                await self._has_changed.wait()

    def texts(self) -> list[str]:
        return [delta.text for delta in self.deltas if isinstance(delta, Text)]


def look(number: int) -> list[Delta]:
    return call(f'{{"n":{number}}}', name="look")


async def finished(task: asyncio.Task[None]) -> None:
    async with asyncio.timeout(60):
        await task


async def test_calls_start_while_the_model_writes() -> None:
    world = World()
    task = await world.start()
    world.model.write(*look(1))
    await world.until(lambda: world.running == ['{"n":1}'])
    world.model.write(*look(2))
    await world.until(lambda: len(world.running) == 2)
    world.model.write(*message_deltas("Meanwhile."))
    await world.until(lambda: "Meanwhile." in world.texts())
    assert not world.ended and len(world.model.conversations) == 1
    progress = [delta for delta in world.deltas if isinstance(delta, Progress)]
    assert len(progress) == 4, "two of the items, and two of the tools"
    world.may_end.set()
    await world.until(lambda: len(world.ended) == 2)
    assert not [delta for delta in world.deltas if isinstance(delta, Close) and delta.key]
    world.model.write(finish())
    await finished(task)
    assert len(world.running) == 2
    outputs = [item for item in world.model.conversations[1].items if item.type.endswith("output")]
    assert [item.output for item in outputs] == ['seen {"n":1}', 'seen {"n":2}']  # type: ignore[attr-defined]
    check_events(world.deltas)


def check_events(deltas: Iterable[Delta]) -> None:
    """Check that the events of these deltas are legal."""
    numbers = iter(range(1000))
    writer = ResponseWriter(
        Response(id="resp_1", created_at=1, model="m"),
        ids=lambda prefix: f"{prefix}_{next(numbers)}",
    )
    writer.create()
    writer.start()
    recorder = Recorder(writer)
    recorder.record(deltas)
    writer.finalize("completed", at=2, usage=Usage())
    writer.emit_terminal()
    check(writer.take())


@pytest.mark.parametrize("effects", ["any", "idempotent"])
async def test_calls_with_effects_wait_for_the_end_of_the_reply(effects: Effects) -> None:
    world = World(effects)
    world.may_end.set()
    task = await world.start()
    world.model.write(*look(1))
    world.model.write(*message_deltas("Wait."))
    await world.until(lambda: "Wait." in world.texts())
    assert world.running == []
    world.model.write(finish())
    await finished(task)
    assert world.running == ['{"n":1}']


@pytest.mark.parametrize("how", ["cancelled", "failed", "length"])
async def test_reply_that_breaks_off_stops_its_calls(how: str) -> None:
    world = World()
    task = await world.start()
    world.model.write(*look(1))
    await world.until(lambda: world.running)
    if how == "cancelled":
        task.cancel()
    elif how == "failed":
        world.model.batches.put_nowait(BackendError("It broke."))
    else:
        world.model.write(finish("length"))
    async with asyncio.timeout(60):
        await asyncio.wait([task])
    assert world.ended == {'{"n":1}': 1} and len(world.model.conversations) == 1
    assert not [delta for delta in world.deltas if isinstance(delta, Close) and delta.key]
    if how == "length":
        await task
        check_events(world.deltas)
    elif how == "failed":
        assert isinstance(task.exception(), BackendError)


async def test_few_calls_run_at_a_time() -> None:
    world = World(limits=ToolLimits(max_parallel_calls=2))
    task = await world.start()
    world.model.write(*look(1), *look(2), *look(3))
    world.model.write(*message_deltas("There."))
    await world.until(lambda: "There." in world.texts() and len(world.running) == 2)
    world.may_end.set()
    await world.until(lambda: len(world.running) == 3)
    world.model.write(finish())
    await finished(task)
    assert len([delta for delta in world.deltas if isinstance(delta, Open) and delta.key]) == 3


async def test_early_call_of_a_lost_run_does_not_start() -> None:
    class Lost(CallJournal):
        async def begin(self, calls: Any) -> None:
            raise ReaderGone

    world = World(journal=Lost())
    task = await world.start()
    world.model.write(*look(1), finish())
    async with asyncio.timeout(60):
        with pytest.raises(ReaderGone):
            await task
    assert world.running == []


async def test_early_call_is_journaled_once() -> None:
    class Recording(CallJournal):
        def __init__(self) -> None:
            self.begun: list[str] = []

        async def begin(self, calls: Iterable[ToolCall]) -> None:
            self.begun += [call.item_id for call in calls]

    journal = Recording()
    world = World(journal=journal)
    world.may_end.set()
    task = await world.start()
    world.model.write(*look(1), finish())
    await finished(task)
    opened = [d.item.id for d in world.deltas if isinstance(d, Open) and d.key]
    assert journal.begun == opened and len(opened) == 1

"""The journal of tool calls: what becomes of a call when another process takes over its run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.errors import RunError
from antiphon.inference.conversation import ResumePoint
from antiphon.runs.execution.run import ReaderGone
from antiphon.runs.tool_loop.journal import CallJournal, StoredCallJournal
from antiphon.store.journal import JournalEntry
from antiphon.store.records import NewRun
from antiphon.stream.deltas import Checkpoint, Close, Open
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.replies import deltas_of
from antiphon.testing.store_checks.runs import batch, job, queued_response
from antiphon.tools.base import CallContext, FollowUpItem, ToolFunction, ToolProgress, ToolResult
from antiphon.wire import items as it
from antiphon.wire.tools import Function

from .test_loop import LoopRun, function, look, message_deltas

RUNNING = it.McpCall(id="mcp_1", server_label="s", name="look", arguments="{}")


class Tool:
    """A tool that hangs until ``may_end`` is set. ``keys``: the idempotency keys of its calls.
    ``notes``: the notes that its calls had. ``note``: the note that its next call keeps."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.notes: list[bytes] = []
        self.note = b""
        self.started = asyncio.Event()
        self.may_end = asyncio.Event()

    async def run(
        self, arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        self.keys.append(context.idempotency_key)
        self.notes.append(context.note)
        if self.note and not context.note:
            assert await context.keep_note(self.note)
        self.started.set()
        await self.may_end.wait()
        yield ToolResult(text="done", fields={"output": "done"})


class Takeover:
    """A run that dies while its tool works, and the process that takes it over."""

    def __init__(self, **changes: Any) -> None:
        self.store = MemoryStore()
        self.tool = Tool()
        self.changes = changes

    def journal(self, attempt: str) -> StoredCallJournal:
        return StoredCallJournal(
            self.store.journal, "t", "resp_1", attempt=attempt, clock=lambda: 1.0
        )

    async def begin_run(self) -> None:
        run = NewRun(job=job("1"), stored=queued_response("1"), batch=batch(0))
        await self.store.runs.create(run)

    def loop(self, attempt: str, *scripts: Any) -> LoopRun:
        functions = (function(self.tool.run, **self.changes),)
        return LoopRun(*scripts, functions=functions, journal=self.journal(attempt))

    async def die(self, *, ended: bool = False) -> it.McpCall:
        """Run a call until its tool has started, and kill the process. ``ended``: kill it when the
        tool has ended instead. Returns the item of the call."""
        await self.begin_run()
        loop = self.loop("one", look(), message_deltas("never"))
        if ended:
            self.tool.may_end.set()
        opened: list[it.Item] = []

        async def read() -> None:
            async with aclosing(deltas_of(await loop.tool_loop())) as deltas:
                async for delta in deltas:
                    if isinstance(delta, Open):
                        opened.append(delta.item)
                    if ended and isinstance(delta, Close) and delta.key:
                        await asyncio.sleep(0)  # the tool's task stores its result
                        return

        reader = asyncio.create_task(read())
        async with asyncio.timeout(60):
            await self.tool.started.wait()
            if not ended:
                reader.cancel()
            await asyncio.wait([reader])
        (item,) = opened
        assert isinstance(item, it.McpCall) and self.tool.keys == [item.id]
        self.tool.may_end.set()
        return replace(item, arguments="{}")

    async def take_over(self, item: it.Item, **changes: Any) -> LoopRun:
        loop = self.loop("two", look(), message_deltas("Well."))
        loop.spec = replace(loop.spec, **changes)
        reply = (await loop.tool_loop()).resume(ResumePoint((1, 2), (3,), (), (item,)))
        async with asyncio.timeout(60):
            async with aclosing(deltas_of(reply)) as deltas:
                async for delta in deltas:
                    loop.deltas.append(delta)
        return loop


def closing(loop: LoopRun) -> Close:
    (closed,) = loop.closed_calls
    return closed


async def test_call_that_may_have_been_done_is_reported_as_unknown() -> None:
    takeover = Takeover()
    item = await takeover.die()
    loop = await takeover.take_over(item)
    assert len(takeover.tool.keys) == 1
    closed = closing(loop)
    assert (closed.key, closed.status) == (item.id, "failed")
    assert closed.result["error"]["message"].startswith("unknown: ")
    last = loop.conversation(1)[-1]
    assert isinstance(last, it.McpCall) and "unknown" in str(last.error)


@pytest.mark.parametrize("effects", ["none", "idempotent"])
async def test_call_that_may_run_again_runs_again_with_its_key(effects: str) -> None:
    takeover = Takeover(effects=effects)
    item = await takeover.die()
    loop = await takeover.take_over(item)
    assert takeover.tool.keys == [item.id, item.id]
    closed = closing(loop)
    assert (closed.key, closed.status, closed.result) == (item.id, "completed", {"output": "done"})
    assert loop.tool_outputs() == ["done"] and loop.opened_types == ["message"]


@pytest.mark.parametrize("ended", [False, True])
async def test_call_that_kept_a_note_continues_with_it(ended: bool) -> None:
    takeover = Takeover()
    takeover.tool.note = b"task 1"
    item = await takeover.die(ended=ended)
    loop = await takeover.take_over(item)
    assert takeover.tool.notes == ([b""] if ended else [b"", b"task 1"])
    assert closing(loop).result["output"] == "done"


async def test_request_decides_about_a_call_that_may_have_been_done() -> None:
    takeover = Takeover()
    item = await takeover.die()
    loop = await takeover.take_over(item, on_interruption="retry")
    assert takeover.tool.keys == [item.id, item.id] and closing(loop).status == "completed"
    takeover = Takeover()
    item = await takeover.die()
    with pytest.raises(RunError, match="'look' ran"):
        await takeover.take_over(item, on_interruption="fail")
    assert len(takeover.tool.keys) == 1


async def test_call_that_was_done_keeps_its_result() -> None:
    takeover = Takeover()
    item = await takeover.die(ended=True)
    loop = await takeover.take_over(item)
    assert len(takeover.tool.keys) == 1
    closed = closing(loop)
    assert closed.status == "completed" and closed.result["output"] == "done"
    last = loop.conversation(1)[-1]
    assert isinstance(last, it.McpCall) and last.output == "done"


async def test_call_that_has_not_started_never_starts() -> None:
    """A process that is slow must not start the call after the takeover."""
    takeover = Takeover()
    await takeover.begin_run()
    loop = takeover.loop("one", look(), message_deltas("never"))
    item: it.Item | None = None
    async with aclosing(deltas_of(await loop.tool_loop())) as deltas:
        with pytest.raises(ReaderGone):
            async for delta in deltas:
                if isinstance(delta, Open):
                    item = replace(delta.item, arguments="{}")
                if isinstance(delta, Checkpoint):
                    assert item is not None
                    continued = await takeover.take_over(item)
    assert takeover.tool.keys == []
    assert "It was not done" in str(closing(continued).result["error"])


async def test_journal_says_whether_the_response_has_ended() -> None:
    takeover = Takeover()
    await takeover.begin_run()
    call: Any = SimpleNamespace(item_id="mcp_1")
    assert not await takeover.journal("one").has_ended(call)
    await takeover.store.delete("t", "resp_1")
    assert await takeover.journal("two").has_ended(call)
    assert await CallJournal().has_ended(call)


async def test_call_does_not_start_after_the_end_of_its_run() -> None:
    takeover = Takeover()
    loop = takeover.loop("one", look(), message_deltas("never"))
    with pytest.raises(ReaderGone):
        await loop.all()
    assert takeover.tool.keys == []


async def test_foreground_call_is_not_journaled() -> None:
    tool = Tool()
    tool.may_end.set()
    loop = await LoopRun(look(), message_deltas("Well."), run=tool.run).all()
    opened = next(d for d in loop.deltas if isinstance(d, Open) and d.key)
    assert tool.keys == [opened.item.id]


# --- calls whose output is a separate item -------------------------------------------------------


LISTED = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}


async def shell(
    arguments: str, context: CallContext
) -> AsyncGenerator[ToolProgress | FollowUpItem | ToolResult, None]:
    yield FollowUpItem(
        it.ShellCallOutput(call_id=context.call_id, output=()), {"action": {"commands": ["ls"]}}
    )
    yield ToolProgress("output.delta", {"command_index": 0, "delta": {"stdout": "a"}})
    yield ToolResult(fields={"output": (LISTED,)})


SHELL = ToolFunction(
    tool=Function(name="look"),
    initial_item=it.ShellCall(call_id="", action={}),
    handler=shell,
    failed_status="incomplete",
)
CALL = it.ShellCall(id="sh_1", call_id="c1", action={"commands": ["ls"]})
OUTPUT = it.ShellCallOutput(id="sho_1", call_id="c1", output=(), status="in_progress")


@pytest.mark.parametrize(
    ("done", "open_items"),
    [((), (CALL,)), ((CALL,), (OUTPUT,)), ((CALL,), ())],
    ids=["call", "output", "between"],
)
@pytest.mark.parametrize("what", ["unknown", "done", "retry"])
async def test_separate_output_is_recovered(
    done: tuple[it.Item, ...], open_items: tuple[it.Item, ...], what: Any
) -> None:
    """The shell call was interrupted before its output was opened, while it was written, or just
    between both."""
    takeover = Takeover()
    await takeover.begin_run()
    loop = LoopRun(look(), message_deltas("Well."), functions=(SHELL,))
    intent = b'{"name":"look","namespace":null,"arguments":"{}","call_id":"c1"}'
    entry = JournalEntry(key="sh_1", response_id="resp_1", attempt="one", intent=intent)
    await takeover.store.journal.begin("t", [entry], 1)
    if what == "done":
        items = msgspec.json.encode((CALL, replace(OUTPUT, id="", output=(LISTED,))))
        await takeover.store.journal.settle("t", "sh_1", None, items)
    changes = {"on_interruption": "retry"} if what == "retry" else {}
    loop.spec = replace(loop.spec, journal=takeover.journal("two"), **changes)
    point = ResumePoint((1, 2), (3,), done, open_items)
    reply = (await loop.tool_loop()).resume(point)
    async with asyncio.timeout(60):
        loop.deltas = [delta async for delta in deltas_of(reply)]
    (last,) = [item for item in loop.conversation(1) if isinstance(item, it.ShellCallOutput)]
    assert loop.opened_types.count("shell_call_output") == (OUTPUT not in open_items)
    if what == "unknown" or (what == "retry" and not open_items):
        assert "unknown" in last.output[-1]["stderr"]
    else:
        assert last.output[-1]["stdout"] == "a" and last.call_id == "c1"

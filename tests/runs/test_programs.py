"""Programs in the tool loop: concurrent calls, interruptions, cancellation."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import InvalidRequest, ToolError
from antiphon.inference.conversation import Conversation, Options, ResumePoint
from antiphon.runs.request.tool_selection import ServerTool, ToolSelection
from antiphon.runs.tool_loop.executor import ToolLimits
from antiphon.runs.tool_loop.loop import ToolLoop, ToolLoopSpec
from antiphon.sandbox.javascript import JavaScript
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.stream.deltas import Close, Delta, Finish, Open
from antiphon.testing.replies import batches_of, deltas_of
from antiphon.tools.allowed_callers import callable_by_programs
from antiphon.tools.base import (
    CallContext,
    ResponseContext,
    ToolFunction,
    ToolProgress,
    ToolProvider,
    ToolResult,
    Toolset,
)
from antiphon.tools.programs.provider import ProgramProvider
from antiphon.wire import items as it
from antiphon.wire import tools as tl
from tests.conformance.scripts import custom_call_deltas, finish, message_deltas

ONLY = ("programmatic",)
PROGRAMS = tl.ProgrammaticToolCalling()
SERVER = tl.Mcp(server_label="s", server_url="https://example.org", allowed_callers=ONLY)
STOCK = tl.Function(name="stock", allowed_callers=ONLY)


class Look(ToolProvider[Any]):
    """``Provider`` of one function, ``s.look``; ``run`` runs it."""

    def __init__(self, run: Any) -> None:
        self._run = run

    @asynccontextmanager
    async def open(self, tool: Any, opening: ResponseContext) -> AsyncIterator[Toolset]:
        function = tl.Function(name="look", parameters={"type": "object"})
        shell = it.McpCall(server_label="s", name="look", arguments="", status="in_progress")
        offer = ToolFunction(
            tool=function, initial_item=shell, handler=self._run, streams_text=True, namespace="s"
        )
        yield Toolset(functions=(offer,))


@pytest.fixture(scope="module")
def javascript() -> Iterator[JavaScript]:
    javascript = JavaScript(step_s=5)
    yield javascript
    javascript.close()


def program(code: str) -> list[Delta]:
    return custom_call_deltas(code, name="program")


class LoopRun:
    """A tool loop with programs over scripted replies, and its deltas."""

    def __init__(self, javascript: JavaScript, *scripts: Any, run: Any, **limits: Any) -> None:
        #: The first script is for the rendering before the tools are open.
        self.backend = ScriptedBackend([message_deltas("never"), *scripts])
        numbers = itertools.count(1)
        self.programs = ProgramProvider(
            javascript, Encryptor([EncryptionKey.from_secret(bytes(32))]), clock=lambda: 1.0
        )
        self.spec = ToolLoopSpec(
            conversation=Conversation(
                (it.Message(role="user", content=(it.InputText(text="hi"),)),)
            ),
            options=Options(),
            tools=ToolSelection(
                server_tools=(
                    ServerTool("mcp", SERVER, Look(run), "tools[0]"),
                    ServerTool("programmatic_tool_calling", PROGRAMS, self.programs, "tools[1]"),
                ),
                program_functions=callable_by_programs([STOCK]),
            ),
            prepare=self.backend.prepare,
            limits=ToolLimits(**limits),
            ids=lambda prefix: f"{prefix}_{next(numbers)}",
            tenant="t",
            response_id="resp_1",
        )
        self.deltas: list[Delta] = []

    async def tool_loop(self) -> ToolLoop:
        reply = await self.backend.prepare(self.spec.conversation, self.spec.options)
        return ToolLoop(reply, self.spec)

    async def all(self, started: ResumePoint | None = None) -> LoopRun:
        reply = await self.tool_loop()
        async with asyncio.timeout(60):
            deltas = deltas_of(reply if started is None else reply.resume(started))
            self.deltas = [delta async for delta in deltas]
        return self

    @property
    def opened_items(self) -> list[it.Item]:
        return [delta.item for delta in self.deltas if isinstance(delta, Open)]

    @property
    def opened_types(self) -> list[str]:
        return [str(item.__struct_config__.tag) for item in self.opened_items]

    @property
    def output(self) -> it.ProgramOutput:
        (found,) = [item for item in self.opened_items if isinstance(item, it.ProgramOutput)]
        return found

    def program_item(self, code: str, call_id: str = "call_p") -> it.Program:
        """Return the item of a program."""
        composed = self.programs.compose((), ResponseContext(tenant="t", response_id="r", items=()))
        return it.Program(id="prg_1", call_id=call_id, **composed.functions[0].parse_fields(code))


async def echo(
    arguments: str, context: CallContext
) -> AsyncGenerator[ToolProgress | ToolResult, None]:
    text = f"seen {arguments}"
    yield ToolResult(text=text, fields={"output": text})


async def fails(
    arguments: str, context: CallContext
) -> AsyncGenerator[ToolProgress | ToolResult, None]:
    raise ToolError("Nobody is there.")
    yield ToolResult()


async def test_calls_of_a_program_run_concurrently(javascript: JavaScript) -> None:
    both = asyncio.Barrier(2)

    async def meet(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        assert context.caller is not None
        await both.wait()
        yield ToolResult(fields={"output": arguments})

    code = "text(await Promise.all([tools.s.look({n: 1}), tools.s.look({n: 2})]))"
    loop = await LoopRun(javascript, program(code), message_deltas("Done."), run=meet).all()
    assert loop.opened_types == ["program", "mcp_call", "mcp_call", "program_output", "message"]
    assert json.loads(loop.output.result) == ['{"n":1}', '{"n":2}']


async def test_parallel_calls_of_programs_are_limited(javascript: JavaScript) -> None:
    running = most = 0

    async def counts(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        yield ToolResult(fields={"output": arguments})

    code = "await Promise.all([1, 2, 3, 4, 5].map(n => tools.s.look({n})))"
    calls = [*program(code), *program(code)]
    loop = LoopRun(
        javascript, [*calls, finish()], message_deltas("Done."), run=counts, max_parallel_calls=2
    )
    await loop.all()
    assert most == 2 and loop.opened_types.count("program_output") == 2


async def test_failed_call_throws_an_exception_in_the_program(javascript: JavaScript) -> None:
    code = "try { await tools.s.look({}) } catch (e) { text('caught: ' + e.message) }"
    loop = await LoopRun(javascript, program(code), message_deltas("Done."), run=fails).all()
    assert loop.output.result == "caught: Nobody is there."
    assert loop.output.status == "completed"


async def test_program_is_stopped_at_the_call_timeout(javascript: JavaScript) -> None:
    async def hangs(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        await asyncio.Event().wait()
        yield ToolResult()

    code = "await tools.s.look({})"
    loop = await LoopRun(
        javascript, program(code), message_deltas("Hm."), run=hangs, call_timeout_s=0.2
    ).all()
    assert loop.output.status == "incomplete" and "took too long" in loop.output.result
    assert loop.opened_types[-1] == "message"


async def test_long_program_output_is_truncated(javascript: JavaScript) -> None:
    code = "text('x'.repeat(1e6))"
    loop = await LoopRun(javascript, program(code), message_deltas("Hm."), run=echo).all()
    assert "characters left out" in loop.output.result and len(loop.output.result) < 40_000


@pytest.mark.parametrize("code", ["await tools.s.look({})", "for (;;) {}"])
async def test_cancelled_reader_stops_the_program(javascript: JavaScript, code: str) -> None:
    stopped, started = asyncio.Event(), asyncio.Event()

    async def hangs(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        yield ToolResult()

    loop = LoopRun(javascript, program(code), message_deltas("Hm."), run=hangs)
    reply = await loop.tool_loop()

    async def read() -> None:
        async with aclosing(batches_of(reply)) as deltas:
            async for known in deltas:
                if any(isinstance(delta, Close) for delta in known) and "for" in code:
                    started.set()

    reader = asyncio.create_task(read())
    async with asyncio.timeout(60):
        await started.wait()
        reader.cancel()
        await asyncio.wait([reader])
        assert reader.cancelled()
        if "for" not in code:
            assert stopped.is_set()
        else:  # its thread is free before the time limit
            stage = await javascript.advance("return 1", ())
            assert stage.output == "1"


# --- after an interruption -----------------------------------------------------------------------

TWO = "text(await Promise.allSettled([tools.s.look({n: 1}), tools.s.look({n: 2})]))"


def program_call(program: it.Program, **fields: Any) -> it.McpCall:
    caller = it.ProgramCaller(program.call_id)
    return it.McpCall(server_label="s", name="look", caller=caller, **fields)


def settled(output: it.ProgramOutput) -> Sequence[str]:
    return [each.get("value", "failed") for each in json.loads(output.result)]


async def test_interrupted_call_is_not_repeated(javascript: JavaScript) -> None:
    ran: list[str] = []

    async def counts(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        ran.append(arguments)
        yield ToolResult(fields={"output": "again"})

    loop = LoopRun(javascript, message_deltas("Well."), run=counts)
    program_item = loop.program_item(TWO)
    done = program_call(program_item, id="mcp_1", arguments='{"n":1}', output="one")
    running = program_call(program_item, id="mcp_2", arguments='{"n":2}', status="in_progress")
    await loop.all(ResumePoint((), (), (program_item, done), (running,)))
    assert ran == [] and settled(loop.output) == ["one", "failed"]
    assert loop.opened_types == ["program_output", "message"]
    closed = next(delta for delta in loop.deltas if isinstance(delta, Close) and delta.key)
    assert (closed.key, closed.status) == ("mcp_2", "failed")


async def test_resumed_program_runs_calls_that_were_not_emitted(javascript: JavaScript) -> None:
    loop = LoopRun(javascript, message_deltas("Well."), run=echo)
    program_item = loop.program_item(TWO)
    done = program_call(program_item, id="mcp_1", arguments='{"n":1}', output="one")
    await loop.all(ResumePoint((), (), (program_item, done)))
    assert settled(loop.output) == ["one", 'seen {"n":2}']
    assert loop.opened_types == ["mcp_call", "program_output", "message"]


async def test_resumed_program_waits_for_the_client(javascript: JavaScript) -> None:
    loop = LoopRun(javascript, message_deltas("never"), run=echo)
    program_item = loop.program_item("await tools.stock({})")
    caller = it.ProgramCaller(program_item.call_id)
    call = it.FunctionCall(id="fc_1", call_id="c", name="stock", arguments="{}", caller=caller)
    await loop.all(ResumePoint((), (), (program_item, call)))
    assert loop.opened_types == [] and isinstance(loop.deltas[-1], Finish)


async def test_program_that_was_interrupted_before_its_start_is_run(javascript: JavaScript) -> None:
    loop = LoopRun(javascript, message_deltas("Well."), run=echo)
    writing = it.FunctionCall(id="fc_1", call_id="c", name="other", arguments="{")
    await loop.all(ResumePoint((), (), (loop.program_item("text(1)"),), (writing,)))
    assert loop.opened_types == ["program_output", "message"] and loop.output.result == "1"
    (closed, *_) = [delta for delta in loop.deltas if isinstance(delta, Close) and delta.key]
    assert (closed.key, closed.status) == ("fc_1", "incomplete")


async def test_program_that_was_being_written_is_not_continued(javascript: JavaScript) -> None:
    """The item does not contain the code so far. The model begins again, with or without tokens."""
    loop = LoopRun(javascript, message_deltas("Well."), run=echo)
    writing = it.Program(id="prg_1", call_id="c", code="", fingerprint="")
    await loop.all(ResumePoint((1,), (2,), (), (writing,)))
    assert loop.opened_types == ["program_output", "message"]
    assert loop.output.call_id == "c" and "was not done" in loop.output.result
    closed = next(delta for delta in loop.deltas if isinstance(delta, Close) and delta.key)
    assert (closed.key, closed.status) == ("prg_1", "incomplete")


async def test_calls_of_a_program_are_emitted_before_they_run(javascript: JavaScript) -> None:
    opened_types: list[str] = []

    async def looks(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        assert opened_types.count("mcp_call") == 2
        yield ToolResult(fields={"output": arguments})

    loop = LoopRun(javascript, program(TWO), message_deltas("Done."), run=looks)
    reply = await loop.tool_loop()
    async for delta in deltas_of(reply):
        for _ in range(3):
            await asyncio.sleep(0)
        if isinstance(delta, Open):
            opened_types.append(str(delta.item.__struct_config__.tag))
            if isinstance(delta.item, it.ProgramOutput):
                assert settled(delta.item) == ['{"n":1}', '{"n":2}']
    assert opened_types[-1] == "message"


async def test_program_of_another_tenant_is_rejected(javascript: JavaScript) -> None:
    loop = LoopRun(javascript, run=echo)
    program_item = loop.program_item("text(1)")

    async def check(program: it.Program, tenant: str) -> None:
        opening = ResponseContext(tenant=tenant, response_id="r", items=(program,))
        await loop.programs.check_access(PROGRAMS, opening, "tools[0]")

    await check(program_item, "t")
    for wrong, tenant in ((program_item, "u"), (replace(program_item, code="text(2)"), "t")):
        with pytest.raises(InvalidRequest, match="cannot continue"):
            await check(wrong, tenant)

"""Turns in which programs run: calls side by side, interruptions, and whoever leaves."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.backends.base import flatten
from antiphon.backends.scripted import ScriptedBackend
from antiphon.conversation import Conversation, Options, ResumePoint
from antiphon.errors import InvalidRequest, ToolError
from antiphon.runs.request.tool_selection import ServerTool, ToolSelection
from antiphon.runs.tool_loop.executor import ToolLimits
from antiphon.runs.tool_loop.loop import ToolLoop, ToolLoopSpec
from antiphon.sandbox.javascript import JavaScript
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.stream.deltas import Close, Delta, Finish, Open
from antiphon.tools.allowed_callers import callable_by_programs
from antiphon.tools.base import (
    CallContext,
    ResponseContext,
    ToolFunction,
    ToolProgress,
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


class Look:
    """``Provider`` of one function, ``s.look``; ``run`` runs it."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def check(self, tool: Any, path: str) -> None: ...

    def leading_item(self, tool: Any, opening: ResponseContext) -> it.Item | None:
        return None

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


class Told:
    """Turns over scripts, and what came of them."""

    def __init__(self, javascript: JavaScript, *scripts: Any, run: Any, **limits: Any) -> None:
        #: The first one is for the prompt that is checked before the tools are open.
        self.backend = ScriptedBackend([message_deltas("never"), *scripts])
        numbers = itertools.count(1)
        self.programs = ProgramProvider(
            javascript, Encryptor([EncryptionKey.from_secret(bytes(32))]), clock=lambda: 1.0
        )
        self.work = ToolLoopSpec(
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

    async def turns(self) -> ToolLoop:
        reply = await self.backend.prepare(self.work.conversation, self.work.options)
        return ToolLoop(reply, self.work)

    async def all(self, begun: ResumePoint | None = None) -> Told:
        reply = await self.turns()
        async with asyncio.timeout(10):
            deltas = (reply if begun is None else reply.resume(begun)).deltas()
            self.deltas = [delta async for delta in flatten(deltas)]
        return self

    @property
    def opened(self) -> list[it.Item]:
        return [delta.item for delta in self.deltas if isinstance(delta, Open)]

    @property
    def kinds(self) -> list[str]:
        return [str(item.__struct_config__.tag) for item in self.opened]

    @property
    def output(self) -> it.ProgramOutput:
        (found,) = [item for item in self.opened if isinstance(item, it.ProgramOutput)]
        return found

    def written(self, code: str, call_id: str = "call_p") -> it.Program:
        """The program as it stands in a conversation."""
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
    told = await Told(javascript, program(code), message_deltas("Done."), run=meet).all()
    assert told.kinds == ["program", "mcp_call", "mcp_call", "program_output", "message"]
    assert json.loads(told.output.result) == ['{"n":1}', '{"n":2}']


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
    told = Told(
        javascript, [*calls, finish()], message_deltas("Done."), run=counts, max_parallel_calls=2
    )
    await told.all()
    assert most == 2 and told.kinds.count("program_output") == 2


async def test_failed_call_throws_an_exception_in_the_program(javascript: JavaScript) -> None:
    code = "try { await tools.s.look({}) } catch (e) { text('caught: ' + e.message) }"
    told = await Told(javascript, program(code), message_deltas("Done."), run=fails).all()
    assert told.output.result == "caught: Nobody is there."
    assert told.output.status == "completed"


async def test_program_is_stopped_at_the_call_timeout(javascript: JavaScript) -> None:
    async def hangs(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        await asyncio.Event().wait()
        yield ToolResult()

    code = "await tools.s.look({})"
    told = await Told(
        javascript, program(code), message_deltas("Hm."), run=hangs, call_timeout_s=0.2
    ).all()
    assert told.output.status == "incomplete" and "took too long" in told.output.result
    assert told.kinds[-1] == "message"


async def test_long_program_output_is_truncated(javascript: JavaScript) -> None:
    code = "text('x'.repeat(1e6))"
    told = await Told(javascript, program(code), message_deltas("Hm."), run=echo).all()
    assert "characters left out" in told.output.result and len(told.output.result) < 40_000


@pytest.mark.parametrize("code", ["await tools.s.look({})", "for (;;) {}"])
async def test_cancelled_reader_stops_the_program(javascript: JavaScript, code: str) -> None:
    stopped, begun = asyncio.Event(), asyncio.Event()

    async def hangs(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        yield ToolResult()

    told = Told(javascript, program(code), message_deltas("Hm."), run=hangs)
    reply = await told.turns()

    async def read() -> None:
        async with aclosing(reply.deltas()) as deltas:
            async for known in deltas:
                if any(isinstance(delta, Close) for delta in known) and "for" in code:
                    begun.set()

    reader = asyncio.create_task(read())
    async with asyncio.timeout(5):
        await begun.wait()
        reader.cancel()
        await asyncio.wait([reader])
        assert reader.cancelled()
        if "for" not in code:
            assert stopped.is_set()
        else:  # its thread is free again long before its time is over
            stage = await javascript.advance("return 1", ())
            assert stage.output == "1"


# --- after an interruption -----------------------------------------------------------------------

TWO = "text(await Promise.allSettled([tools.s.look({n: 1}), tools.s.look({n: 2})]))"


def called(program: it.Program, **fields: Any) -> it.McpCall:
    caller = it.ProgramCaller(program.call_id)
    return it.McpCall(server_label="s", name="look", caller=caller, **fields)


def settled(output: it.ProgramOutput) -> Sequence[str]:
    return [each.get("value", "failed") for each in json.loads(output.result)]


async def test_what_was_running_is_not_run_again(javascript: JavaScript) -> None:
    ran: list[str] = []

    async def counts(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        ran.append(arguments)
        yield ToolResult(fields={"output": "again"})

    told = Told(javascript, message_deltas("Well."), run=counts)
    written = told.written(TWO)
    done = called(written, id="mcp_1", arguments='{"n":1}', output="one")
    running = called(written, id="mcp_2", arguments='{"n":2}', status="in_progress")
    await told.all(ResumePoint((), (), (written, done), (running,)))
    assert ran == [] and settled(told.output) == ["one", "failed"]
    assert told.kinds == ["program_output", "message"]
    closed = next(delta for delta in told.deltas if isinstance(delta, Close) and delta.key)
    assert (closed.key, closed.status) == ("mcp_2", "failed")


async def test_resumed_program_runs_calls_that_were_not_emitted(javascript: JavaScript) -> None:
    told = Told(javascript, message_deltas("Well."), run=echo)
    written = told.written(TWO)
    done = called(written, id="mcp_1", arguments='{"n":1}', output="one")
    await told.all(ResumePoint((), (), (written, done)))
    assert settled(told.output) == ["one", 'seen {"n":2}']
    assert told.kinds == ["mcp_call", "program_output", "message"]


async def test_resumed_program_waits_for_the_client(javascript: JavaScript) -> None:
    told = Told(javascript, message_deltas("never"), run=echo)
    written = told.written("await tools.stock({})")
    caller = it.ProgramCaller(written.call_id)
    asked = it.FunctionCall(id="fc_1", call_id="c", name="stock", arguments="{}", caller=caller)
    await told.all(ResumePoint((), (), (written, asked)))
    assert told.kinds == [] and isinstance(told.deltas[-1], Finish)


async def test_program_that_was_interrupted_before_its_start_is_run(javascript: JavaScript) -> None:
    told = Told(javascript, message_deltas("Well."), run=echo)
    writing = it.FunctionCall(id="fc_1", call_id="c", name="other", arguments="{")
    await told.all(ResumePoint((), (), (told.written("text(1)"),), (writing,)))
    assert told.kinds == ["program_output", "message"] and told.output.result == "1"
    (closed, *_) = [delta for delta in told.deltas if isinstance(delta, Close) and delta.key]
    assert (closed.key, closed.status) == ("fc_1", "incomplete")


async def test_calls_of_a_program_are_emitted_before_they_run(javascript: JavaScript) -> None:
    heard: list[str] = []

    async def looks(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        assert heard.count("mcp_call") == 2
        yield ToolResult(fields={"output": arguments})

    told = Told(javascript, program(TWO), message_deltas("Done."), run=looks)
    reply = await told.turns()
    async for delta in flatten(reply.deltas()):
        for _ in range(3):
            await asyncio.sleep(0)
        if isinstance(delta, Open):
            heard.append(str(delta.item.__struct_config__.tag))
            if isinstance(delta.item, it.ProgramOutput):
                assert settled(delta.item) == ['{"n":1}', '{"n":2}']
    assert heard[-1] == "message"


async def test_program_of_another_tenant_is_rejected(javascript: JavaScript) -> None:
    told = Told(javascript, run=echo)
    written = told.written("text(1)")

    async def admitted(program: it.Program, tenant: str) -> None:
        opening = ResponseContext(tenant=tenant, response_id="r", items=(program,))
        await told.programs.check_access(PROGRAMS, opening, "tools[0]")

    await admitted(written, "t")
    for wrong, tenant in ((written, "u"), (replace(written, code="text(2)"), "t")):
        with pytest.raises(InvalidRequest, match="cannot continue"):
            await admitted(wrong, tenant)

"""The tool loop: turns, limits, failures and resuming."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.backends.base import Reply
from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.errors import InvalidRequest, ToolError
from antiphon.inference.conversation import Conversation, Options, ResumePoint, ToolChoice, ToolName
from antiphon.runs.request.tool_selection import ToolSelection, async_functions
from antiphon.runs.tool_loop import loop as module
from antiphon.runs.tool_loop.executor import ToolLimits
from antiphon.runs.tool_loop.loop import ToolLoop, ToolLoopSpec
from antiphon.stream.deltas import Checkpoint, Close, Delta, Finish, Open, Progress, Text
from antiphon.testing.engine import ScriptedEngine
from antiphon.testing.replies import deltas_of
from antiphon.tools.base import CallContext, ToolFunction, ToolProgress, ToolResult
from antiphon.wire import items as it
from antiphon.wire.tools import Custom, Function
from tests.conformance.scripts import (
    call,
    custom_call_deltas,
    finish,
    message_deltas,
    reasoning_deltas,
)

LOOK = Function(name="look")
ASK = Function(name="ask")
ASYNC_ASK = Function(name="ask", async_=True)


def function(run: Any, **more: Any) -> ToolFunction:
    shell = it.McpCall(server_label="s", name="look", arguments="")
    return ToolFunction(tool=LOOK, initial_item=shell, handler=run, streams_text=True, **more)


async def echo(
    arguments: str, context: CallContext
) -> AsyncGenerator[ToolProgress | ToolResult, None]:
    yield ToolProgress("in_progress")
    yield ToolResult(text=f"seen {arguments}", fields={"output": f"seen {arguments}"})


def look(arguments: str = "{}") -> list[Delta]:
    return call(arguments, name="look")


class LoopRun:
    """A tool loop over scripted replies, and its deltas."""

    def __init__(self, *scripts: Any, run: Any = echo, **changes: Any) -> None:
        self.backend = ScriptedBackend(scripts, context_size=changes.pop("context_size", None))
        numbers = itertools.count(1)
        options = changes.pop("options", Options(tools=(LOOK, ASK)))
        self.spec = ToolLoopSpec(
            conversation=Conversation((user_message("hi"),)),
            options=options,
            tools=ToolSelection(
                visible_tools=options.tools,
                request_tools=options.tools,
                search_functions=changes.pop("functions", (function(run),)),
                async_functions=async_functions(options.tools),
            ),
            prepare=self.backend.prepare,
            limits=ToolLimits(**changes.pop("limits", {})),
            ids=lambda prefix: f"{prefix}_{next(numbers)}",
            tenant="t",
            response_id="resp_1",
            context_size=self.backend.context_size,
            **changes,
        )
        self.deltas: list[Delta] = []

    async def tool_loop(self) -> ToolLoop:
        reply = await self.backend.prepare(self.spec.conversation, self.spec.options)
        return ToolLoop(reply, self.spec)

    async def all(self) -> LoopRun:
        async with asyncio.timeout(60):
            tool_loop = await self.tool_loop()
            self.deltas = [delta async for delta in deltas_of(tool_loop)]
        return self

    @property
    def opened_types(self) -> list[str]:
        return [str(d.item.__struct_config__.tag) for d in self.deltas if isinstance(d, Open)]

    @property
    def closed_calls(self) -> list[Close]:
        return [d for d in self.deltas if isinstance(d, Close) and d.key]

    @property
    def finish(self) -> Finish:
        assert isinstance(self.deltas[-1], Finish)
        assert sum(isinstance(delta, Finish) for delta in self.deltas) == 1
        return self.deltas[-1]

    def conversation(self, turn: int) -> tuple[it.Item, ...]:
        return self.backend.requests[turn][0].items

    def tool_outputs(self, turn: int = 1) -> list[str]:
        """The outputs of calls that the model sees in a turn."""
        found = [i for i in self.conversation(turn) if isinstance(i, it.FunctionCallOutput)]
        return [item.output for item in found if isinstance(item.output, str)]


def user_message(text: str) -> it.Message:
    return it.Message(id="", role="user", content=(it.InputText(text=text),))


@pytest.mark.requirement("VN-50", "API-HOSTED-RUN")
async def test_result_of_a_tool_call_is_in_the_next_prompt() -> None:
    loop = await LoopRun(
        [*reasoning_deltas("Hm."), *message_deltas("Let me see."), *look('{"a": 1}'), finish()],
        [*message_deltas("It is so."), finish()],
    ).all()
    assert loop.opened_types == ["reasoning", "message", "mcp_call", "message"]
    opened = next(d for d in loop.deltas if isinstance(d, Open) and d.key)
    steps = [d.name for d in loop.deltas if isinstance(d, Progress)]
    assert steps == ["in_progress", "in_progress", "completed"]
    (closed,) = loop.closed_calls
    assert closed.key == opened.key and closed.status == "completed"
    assert closed.result == {"output": 'seen {"a": 1}'}
    _, reasoning, message, created, output = loop.conversation(1)
    assert isinstance(reasoning, it.Reasoning) and reasoning.content == (
        it.ReasoningText(text="Hm."),
    )
    assert isinstance(message, it.Message) and message.content == (
        it.OutputText(text="Let me see."),
    )
    assert isinstance(created, it.FunctionCall) and isinstance(output, it.FunctionCallOutput)
    assert (created.name, created.arguments) == ("look", '{"a": 1}')
    assert created.call_id == output.call_id and output.output == 'seen {"a": 1}'
    usage = loop.finish.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (10, 8, 18)
    assert usage.output_tokens_details.reasoning_tokens == 4


async def test_calls_of_a_turn_run_concurrently() -> None:
    both = asyncio.Barrier(2)

    async def meet(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        await both.wait()
        yield ToolResult(text=arguments)

    loop = await LoopRun([*look("1"), *look("2")], message_deltas("Done."), run=meet).all()
    assert len(loop.closed_calls) == 2
    assert loop.tool_outputs() == ["1", "2"]  # in the order of the calls


async def test_parallel_calls_are_limited() -> None:
    running, most = 0, 0

    async def count(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            await asyncio.sleep(0)
        running -= 1
        yield ToolResult(text="")

    script = [delta for n in range(6) for delta in look(str(n))]
    await LoopRun(script, message_deltas("x"), run=count, limits={"max_parallel_calls": 2}).all()
    assert most == 2


async def _raises(
    arguments: str, context: CallContext
) -> AsyncGenerator[ToolProgress | ToolResult, None]:
    raise ValueError("secret")
    yield


async def _fails(
    arguments: str, context: CallContext
) -> AsyncGenerator[ToolProgress | ToolResult, None]:
    raise ToolError("No such city.")
    yield


async def _hangs(
    arguments: str, context: CallContext
) -> AsyncGenerator[ToolProgress | ToolResult, None]:
    await asyncio.Event().wait()
    yield ToolResult()


async def _silent(
    arguments: str, context: CallContext
) -> AsyncGenerator[ToolProgress | ToolResult, None]:
    yield ToolProgress("in_progress")


@pytest.mark.requirement("D-71")
@pytest.mark.parametrize(
    ("run", "why"),
    [
        (_raises, "The tool failed."),
        (_fails, "No such city."),
        (_hangs, "The tool took too long and was stopped."),
        (_silent, "The tool gave no result."),
    ],
)
async def test_failed_tool_gives_a_failed_item_and_an_output_for_the_model(
    run: Any, why: str
) -> None:
    loop = await LoopRun(
        look(), message_deltas("Sorry."), run=run, limits={"call_timeout_s": 0.02}
    ).all()
    (closed,) = loop.closed_calls
    assert (closed.status, closed.result["error"]["message"]) == ("failed", why)
    assert loop.tool_outputs() == [why]
    assert loop.finish.reason == "stop"


async def test_long_result_is_truncated_in_the_middle() -> None:
    async def prints(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        yield ToolResult(text="a" + "x" * 10_000_000 + "z")

    loop = await LoopRun(look(), message_deltas("ok"), run=prints, context_size=2000).all()
    (text,) = loop.tool_outputs()
    assert len(text) < 2100 and text.startswith("ax") and text.endswith("xz")
    assert "characters left out" in text


@pytest.mark.requirement("D-76")
async def test_turns_are_limited() -> None:
    loop = await LoopRun(look(), look(), look(), look(), limits={"max_turns": 3}).all()
    assert len(loop.backend.requests) == 3
    last = loop.backend.requests[-1][1]
    assert last.tools == (LOOK, ASK)  # unchanged, so that the engine can reuse the prompt
    # client tools may still be called
    assert last.tool_choice == ToolChoice("auto", frozenset({("ask", None)}))
    assert len(loop.closed_calls) == 2 and loop.finish.reason == "turns"
    loop = await LoopRun(look(), look(), message_deltas("Done."), limits={"max_turns": 3}).all()
    assert loop.finish.reason == "stop" and loop.opened_types[-1] == "message"


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        (ToolChoice("required", frozenset()), frozenset()),
        (
            ToolChoice("auto", frozenset({("look", None), ("ask", None)})),
            frozenset({("ask", None)}),
        ),
    ],
)
async def test_last_turn_keeps_the_allowed_tools(
    choice: ToolChoice, left: frozenset[ToolName]
) -> None:
    options = Options(tools=(LOOK, ASK), tool_choice=choice)
    loop = await LoopRun(
        look(), message_deltas("x"), limits={"max_turns": 2}, options=options
    ).all()
    last = loop.backend.requests[-1][1].tool_choice
    assert last == ToolChoice("auto", left)


INCOMPLETE = {"at_limit": "incomplete"}


async def test_limit_can_end_the_response_incomplete() -> None:
    loop = await LoopRun(look(), look(), look(), limits={"max_turns": 2, **INCOMPLETE}).all()
    assert len(loop.closed_calls) == 2  # both calls have run
    assert loop.finish.reason == "turns" and len(loop.backend.requests) == 2
    loop = await LoopRun(
        look(), message_deltas("Done."), limits={"max_turns": 2, **INCOMPLETE}
    ).all()
    assert loop.finish.reason == "stop"
    loop = await LoopRun(look(), message_deltas("x"), limits={"max_calls": 1, **INCOMPLETE}).all()
    assert loop.finish.reason == "stop"  # the limit is reached, not exceeded
    loop = await LoopRun(
        [*look(), *look()], message_deltas("x"), limits={"max_calls": 1, **INCOMPLETE}
    ).all()
    assert loop.finish.reason == "turns" and len(loop.closed_calls) == 1


async def test_turn_ends_at_the_call_beyond_the_limit() -> None:
    """The model is told so once: a model that calls again ends the response."""
    most = {"max_calls": 1}
    first = [*look('{"n": 1}'), *look('{"n": 2}'), *message_deltas("Not read.")]
    loop = await LoopRun(first, message_deltas("One."), limits=most).all()
    assert loop.opened_types == ["mcp_call", "message"] and loop.finish.reason == "stop"
    _, one, two, *outputs = loop.conversation(1)
    assert isinstance(one, it.FunctionCall) and isinstance(two, it.FunctionCall)
    assert (one.arguments, two.arguments, len(outputs)) == ('{"n": 1}', "{}", 2)
    assert "No more calls" in loop.tool_outputs()[1]
    loop = await LoopRun(first, look(), look(), look(), limits=most).all()
    assert loop.finish.reason == "turns" and len(loop.backend.requests) == 2
    assert len(loop.closed_calls) == 1


async def test_unknown_call_at_the_limit_does_not_reach_the_client() -> None:
    unknown = call("{}", name="nowhere")
    loop = await LoopRun(look(), unknown, message_deltas("Sorry."), limits={"max_calls": 1}).all()
    assert loop.opened_types == ["mcp_call", "message"]
    assert "There is no tool" in loop.tool_outputs(2)[1]


@pytest.mark.parametrize(("at_limit", "limit"), [("answer", 2), ("incomplete", 1)])
async def test_time_for_tools_is_limited(at_limit: str, limit: int) -> None:
    """A call that runs at the limit is stopped, and the model sees that."""
    limits = {"max_seconds": 0.02, "at_limit": at_limit}
    loop = await LoopRun(look(), message_deltas("Sorry."), run=_hangs, limits=limits).all()
    (closed,) = loop.closed_calls
    assert closed.status == "failed" and "too long" in closed.result["error"]["message"]
    assert len(loop.backend.requests) == limit
    assert loop.finish.reason == ("stop" if limit == 2 else "turns")
    if limit == 2:
        assert loop.tool_outputs() == ["The tool took too long and was stopped."]
        choice = loop.backend.requests[1][1].tool_choice
        assert choice == ToolChoice("auto", frozenset({("ask", None)}))


async def test_only_the_time_of_tool_calls_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that takes longer than the limit to write a call may still run it."""
    now = 0.0
    monkeypatch.setattr(module, "_now", lambda: now)

    async def take_a_second(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        nonlocal now
        now += 1
        yield ToolResult(text=arguments)

    def generate(conversation: Any, options: Any) -> list[Delta]:
        nonlocal now
        now += 100
        return next(turns)

    turns = iter([look(), look(), look(), message_deltas("Done.")])
    loop = LoopRun(run=take_a_second, limits={"max_seconds": 2.5, "at_limit": "incomplete"})
    loop.backend = ScriptedBackend(generate)
    loop.spec = replace(loop.spec, prepare=loop.backend.prepare)
    await loop.all()
    assert len(loop.closed_calls) == 3 and loop.finish.reason == "turns"


async def test_response_is_cut_if_the_next_prompt_does_not_fit() -> None:
    full = InvalidRequest("full", param="input", code="context_length_exceeded")
    loop = await LoopRun(look(), full, full, full, run=_prints, context_size=4000).all()
    assert loop.finish.reason == "length" and len(loop.closed_calls) == 1
    assert len(loop.backend.requests) == 4  # with less and less of the result
    loop = await LoopRun(look(), full).all()
    assert len(loop.backend.requests) == 2  # nothing is left to shorten


async def test_loop_fails_if_the_next_prompt_is_refused_for_another_reason() -> None:
    refused = InvalidRequest("The chat template does not accept this conversation.", param="input")
    loop = LoopRun(look(), refused)
    with pytest.raises(InvalidRequest, match="does not accept"):
        async for delta in deltas_of(await loop.tool_loop()):
            loop.deltas.append(delta)
    assert len(loop.closed_calls) == 1  # the result of the call is not lost


async def _prints(
    arguments: str, context: CallContext
) -> AsyncGenerator[ToolProgress | ToolResult, None]:
    text = "x" * 100_000
    yield ToolResult(text=text, fields={"output": text})


async def test_result_is_truncated_further_if_the_prompt_is_too_long() -> None:
    """Bytes only estimate tokens. The backend counts them exactly."""
    full = InvalidRequest("full", param="input", code="context_length_exceeded")
    loop = await LoopRun(look(), full, message_deltas("ok"), run=_prints, context_size=4000).all()
    (first,), (second,) = loop.tool_outputs(1), loop.tool_outputs(2)
    assert len(second) < len(first) / 3 and second.startswith("xx")
    assert loop.finish.reason == "stop"
    (closed,) = loop.closed_calls
    assert closed.result == {"output": second}  # later responses show the model the item


async def test_result_that_leaves_no_room_is_truncated_further() -> None:
    """Otherwise the next response of the conversation would be rejected as too long."""
    loop = LoopRun(look(), message_deltas("ok"), message_deltas("ok"), run=_prints)
    loop.spec = replace(loop.spec, context_size=4000)
    prepare, sizes = loop.spec.prepare, iter([0, 3900, 2500])

    async def prepare_with_size(conversation: Conversation, options: Options) -> Reply:
        reply = await prepare(conversation, options)
        reply.input_tokens = next(sizes)  # type: ignore[misc]
        return reply

    loop.spec = replace(loop.spec, prepare=prepare_with_size)
    loop.backend.prepare = prepare_with_size  # type: ignore[method-assign]
    loop = await loop.all()
    assert next(sizes, None) is None and loop.finish.reason == "stop"
    (closed,) = loop.closed_calls
    assert len(closed.result["output"]) < 1100


async def test_calls_of_a_turn_share_the_result_space() -> None:
    eight = [delta for n in range(8) for delta in look(str(n))]
    loop = await LoopRun(eight, message_deltas("ok"), run=_prints, context_size=4000).all()
    assert len(loop.tool_outputs()) == 8 and sum(map(len, loop.tool_outputs())) < 4000 + 8 * 40


async def test_result_space_accounts_for_the_conversation() -> None:
    """A long conversation leaves little space for the result of an approved call."""
    long = user_message("word " * 1500)
    loop = LoopRun(look(), message_deltas("ok"), run=_prints, context_size=2000)
    loop.spec = replace(loop.spec, conversation=Conversation((long,)))
    loop = await loop.all()
    (text,) = loop.tool_outputs()
    assert len(text) < 600


@pytest.mark.requirement("D-71")
@pytest.mark.parametrize("choice", [ToolChoice(), ToolChoice("auto", frozenset())])
async def test_call_of_an_unknown_tool_is_rejected_to_the_model(choice: ToolChoice) -> None:
    """Nothing runs, and the client gets no call that it could not answer."""
    name = "gone" if choice == ToolChoice() else "look"
    options = Options(tools=(LOOK, ASK), tool_choice=choice)
    script = [*message_deltas("Hm."), *call("{}", name=name), finish()]
    loop = await LoopRun(script, message_deltas("Sorry."), options=options).all()
    assert loop.opened_types == ["message", "message"] and loop.closed_calls == []
    assert loop.tool_outputs() == [f"There is no tool '{name}' that could be called."]
    assert loop.finish.reason == "stop"


async def test_deferred_tool_may_be_called_before_it_is_searched() -> None:
    later = Function(name="later", defer_loading=True)
    loop = LoopRun(call("{}", name="later"))
    loop.spec = replace(loop.spec, tools=replace(loop.spec.tools, request_tools=(later,)))
    loop = await loop.all()
    assert loop.opened_types == ["function_call"] and loop.finish.reason == "stop"


async def test_timed_out_tool_sends_a_failed_event() -> None:
    loop = await LoopRun(
        look(), message_deltas("Sorry."), run=_hangs, limits={"call_timeout_s": 0.02}
    ).all()
    steps = [d.name for d in loop.deltas if isinstance(d, Progress)]
    assert steps == ["in_progress", "failed"]


async def test_output_tokens_are_limited_over_all_turns() -> None:
    options = Options(tools=(LOOK,), max_output_tokens=6)
    loop = await LoopRun(
        [*look(), finish()], [*message_deltas("x"), finish()], options=options
    ).all()
    assert loop.backend.requests[1][1].max_output_tokens == 2
    loop = await LoopRun(
        [*look(), finish()],
        message_deltas("x"),
        options=Options(tools=(LOOK,), max_output_tokens=4),
    ).all()
    assert loop.finish.reason == "length" and len(loop.backend.requests) == 1


async def test_later_turns_have_a_higher_priority() -> None:
    for first, later in ((5, 4), (-(2**31), -(2**31)), (None, None)):
        options = Options(tools=(LOOK,), priority=first)
        loop = await LoopRun(look(), message_deltas("Done."), options=options).all()
        assert [options.priority for _, options in loop.backend.requests] == [first, later]


async def test_stop_string_of_the_last_turn_is_reported() -> None:
    stopped = replace(finish(), stop_text="END")
    loop = await LoopRun(look(), [*message_deltas("Done"), stopped]).all()
    assert loop.finish.stop_text == "END"
    loop = await LoopRun([*look(), stopped], message_deltas("Done.")).all()
    assert loop.finish.stop_text is None


async def test_truncated_call_is_not_run() -> None:
    cut = look("{")[:-1]
    loop = await LoopRun([*cut, finish("length")]).all()
    assert loop.opened_types == ["mcp_call"] and loop.closed_calls == []
    assert loop.finish.reason == "length"


async def test_client_call_ends_the_response_after_server_calls_ran() -> None:
    script = [*look(), *call("{}", name="ask"), finish()]
    loop = await LoopRun(script).all()
    assert loop.opened_types == ["mcp_call", "function_call"]
    assert len(loop.closed_calls) == 1 and len(loop.backend.requests) == 1
    assert loop.finish.reason == "stop"


async def test_required_tool_choice_applies_to_the_first_turn_only() -> None:
    for choice in (ToolChoice("required"), ToolChoice("one", frozenset({("look", None)}))):
        options = Options(tools=(LOOK,), tool_choice=choice)
        loop = await LoopRun(look(), message_deltas("x"), options=options).all()
        assert loop.backend.requests[1][1].tool_choice == ToolChoice()


async def test_arguments_are_streamed_only_if_they_are_the_items_text() -> None:
    python = ToolFunction(
        tool=Custom(name="python"),
        initial_item=it.CodeInterpreterCall(container_id="c", code=""),
        handler=echo,
        streams_text=True,
    )
    silent = ToolFunction(tool=LOOK, initial_item=it.WebSearchCall(), handler=echo)
    script = [*custom_call_deltas("print(", "1)", name="python"), *look('{"q": 1}')]
    loop = await LoopRun(script, message_deltas("x"), functions=(python, silent)).all()
    assert [d.text for d in loop.deltas if isinstance(d, Text)] == ["print(", "1)", "x"]
    outputs = [i for i in loop.conversation(1) if isinstance(i, it.CustomToolCallOutput)]
    assert [item.output for item in outputs] == ["seen print(1)"]


async def test_closing_the_reply_stops_running_tools() -> None:
    stopped = asyncio.Event()

    async def waits(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        try:
            yield ToolProgress("in_progress")
            await asyncio.Event().wait()
        finally:
            stopped.set()

    tool_loop = await LoopRun(look(), run=waits).tool_loop()
    async with asyncio.timeout(60), aclosing(deltas_of(tool_loop)) as deltas:
        async for delta in deltas:
            if isinstance(delta, Progress) and not stopped.is_set():
                break
        async for delta in deltas:
            if isinstance(delta, Progress):
                break
    assert stopped.is_set()


# --- asynchronous calls --------------------------------------------------------------------------


async def test_model_goes_on_after_an_asynchronous_call() -> None:
    options = Options(tools=(LOOK, ASYNC_ASK))
    asked = [*call('{"a": 1}', name="ask"), *look()]
    loop = await LoopRun(asked, message_deltas("Asked."), options=options).all()
    assert loop.opened_types == ["function_call", "mcp_call", "message"]
    _, ask, _, output = loop.conversation(1)
    assert isinstance(ask, it.FunctionCall) and ask.async_ is True
    assert (ask.call_id, ask.arguments) != ("", "") and ask.arguments == '{"a": 1}'
    assert isinstance(output, it.FunctionCallOutput) and output.call_id != ask.call_id
    opened = next(delta.item for delta in loop.deltas if isinstance(delta, Open))
    assert opened.call_id == ask.call_id


async def test_model_that_only_makes_asynchronous_calls_ends_at_the_limit_of_turns() -> None:
    options = Options(tools=(LOOK, ASYNC_ASK))
    loop = LoopRun(call("{}", name="ask"), options=options, limits={"max_turns": 3})
    await loop.all()
    assert loop.opened_types == ["function_call"] * 3
    assert loop.finish.reason == "stop"


# --- after an interruption -----------------------------------------------------------------------


def _point(*open: it.Item, done: tuple[it.Item, ...] = ()) -> ResumePoint:
    return ResumePoint((1, 2), (3,), done, open)


async def _resume(loop: LoopRun, point: ResumePoint) -> LoopRun:
    reply = (await loop.tool_loop()).resume(point)
    async with asyncio.timeout(60):
        loop.deltas = [delta async for delta in deltas_of(reply)]
    return loop


async def test_interrupted_call_is_not_repeated() -> None:
    ran: list[str] = []

    async def counts(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        ran.append(arguments)
        yield ToolResult()

    running = it.McpCall(id="mcp_1", server_label="s", name="look", arguments="{}")
    loop = await _resume(LoopRun(look(), message_deltas("Well."), run=counts), _point(running))
    assert ran == []
    (closed,) = loop.closed_calls
    assert (closed.key, closed.status) == ("mcp_1", "failed")
    assert "interrupted" in closed.result["error"]["message"]
    last = loop.conversation(1)[-1]
    assert isinstance(last, it.McpCall) and last.status == "failed"
    assert loop.opened_types == ["message"]


async def test_limits_and_usage_include_turns_before_an_interruption() -> None:
    done = it.McpCall(id="m", server_label="s", name="look", arguments="{}", output="seen")
    point = ResumePoint((1,), (2,), (done,), (), ((10, 4), (16, 4)))
    loop = LoopRun([*message_deltas("Well."), finish()], limits={"max_turns": 3})
    loop = await _resume(loop, point)
    last = loop.backend.requests[-1][1].tool_choice
    assert last == ToolChoice("auto", frozenset({("ask", None)}))
    assert loop.finish.usage.input_tokens == 10 + 16 + 5
    loop = await _resume(LoopRun(look(), message_deltas("x"), limits={"max_calls": 1}), point)
    assert loop.closed_calls == []  # the one allowed call was made before


async def test_resume_after_a_result_continues_with_the_next_turn() -> None:
    done = it.McpCall(id="m", server_label="s", name="look", arguments="{}", output="seen")
    loop = await _resume(LoopRun(look(), message_deltas("Well.")), _point(done=(done,)))
    assert loop.conversation(1)[-1] == done and loop.opened_types == ["message"]


async def test_resume_after_an_asynchronous_call_goes_on() -> None:
    done = it.FunctionCall(call_id="c", name="ask", arguments="{}", async_=True)
    options = Options(tools=(LOOK, ASYNC_ASK), tool_choice=ToolChoice("required"))
    loop = await _resume(LoopRun(message_deltas("Asked."), options=options), _point(done=(done,)))
    assert loop.conversation(1)[-1] == done and loop.opened_types == ["message"]
    assert loop.backend.requests[1][1].tool_choice.mode == "auto"


async def test_resume_within_a_turn_continues_from_its_tokens() -> None:
    loop = LoopRun(message_deltas("one ", "two"), message_deltas("never"))
    loop.backend = ScriptedBackend([message_deltas("one ", "two")], tokens=True)
    loop.spec = _with_prepare(loop.spec, loop.backend.prepare)
    message = it.Message(id="msg_1", role="assistant", content=(it.OutputText(text="one "),))
    loop = await _resume(loop, ResumePoint((), (0, 1), (), (message,)))
    assert [d.text for d in loop.deltas if isinstance(d, Text)] == ["two"]


@pytest.mark.parametrize(
    "choice",
    [ToolChoice(), ToolChoice("required"), ToolChoice("one", frozenset({("look", None)}))],
    ids=lambda choice: choice.mode,
)
async def test_resume_within_a_later_turn_continues_with_the_options_of_that_turn(
    choice: ToolChoice,
) -> None:
    call_text = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    options = Options(tools=(LOOK, ASK), tool_choice=choice, max_output_tokens=150)
    engine = ScriptedEngine([call_text, "The answer is forty-two."])
    await _on_engine(engine, options).all()
    (first, _), (second, undisturbed) = engine.requests
    done = it.McpCall(id="m", server_label="s", name="look", arguments="{}", output="seen {}")
    message = it.Message(id="msg_1", role="assistant", content=(it.OutputText(text="The ans"),))
    written = tuple(b"The ans")
    turns = ((len(first.ids), len(engine.sampled[0])), (len(second.ids), len(written)))
    point = ResumePoint(second.ids, written, (done,), (message,), turns)
    engine = ScriptedEngine(["wer is forty-two."])
    loop = await _resume(_on_engine(engine, options), point)
    assert "".join(d.text for d in loop.deltas if isinstance(d, Text)) == "wer is forty-two."
    ((_, sampling),) = engine.requests
    assert sampling.max_tokens == undisturbed.max_tokens - len(written)


async def test_resume_within_the_turn_after_a_continued_program() -> None:
    """The program has made the call that ``tool_choice`` demanded."""
    program = it.Program(id="prg_1", call_id="c1", code="text('x')", fingerprint="f")
    message = it.Message(id="msg_1", role="assistant", content=(it.OutputText(text="The ans"),))
    written = tuple(b"The ans")
    point = ResumePoint((1,), written, (), (message,), ((1, len(written)),))
    engine = ScriptedEngine(["wer is forty-two."])
    loop = _on_engine(engine, Options(tools=(LOOK, ASK), tool_choice=ToolChoice("required")))
    items = (*loop.spec.conversation.items, program)
    loop.spec = replace(loop.spec, conversation=Conversation(items))
    loop = await _resume(loop, point)
    assert "".join(d.text for d in loop.deltas if isinstance(d, Text)) == "wer is forty-two."


@pytest.mark.parametrize(
    "writing",
    [
        it.ApplyPatchCall(id="c", call_id="c1", operation={}),
        it.LocalShellCall(id="c", call_id="c1", action={}),
        it.McpApprovalRequest(id="c", server_label="s", name="look", arguments=""),
        it.ComputerCall(id="c", call_id="c1"),
    ],
    ids=lambda item: str(item.__struct_config__.tag),
)
async def test_call_that_was_being_written_is_written_again(writing: it.Item) -> None:
    """The item does not contain the text so far."""
    loop = await _resume(LoopRun(look(), message_deltas("Well.")), _point(writing))
    (closed,) = loop.closed_calls
    assert (closed.key, closed.status) == ("c", "incomplete")
    assert loop.opened_types == ["message"]


async def test_resume_within_a_call_of_a_found_tool() -> None:
    search = it.ToolSearchCall(id="tsc_1", call_id="c1", arguments={"query": "q"})
    output = it.ToolSearchOutput(id="tso_1", call_id="c1", tools=(Custom(name="note"),))
    written = b'<tool_call>\n{"name": "note", "arguments": {"input": "Remember'
    call_item = it.CustomToolCall(id="ctc_1", call_id="c2", name="note", input="Remember")
    turns = ((1, 3), (1, len(written)))
    point = ResumePoint((1,), tuple(written), (search, output), (call_item,), turns)
    engine = ScriptedEngine([' me"}}\n</tool_call>'])
    loop = await _resume(_on_engine(engine, Options(tools=(LOOK, ASK))), point)
    assert "".join(d.text for d in loop.deltas if isinstance(d, Text)) == " me"
    assert loop.finish.reason == "stop"


def _on_engine(engine: ScriptedEngine, options: Options) -> LoopRun:
    backend = LocalBackend(engine, ChatDialect(engine.card, engine.tokenizer))
    loop = LoopRun(options=options)
    loop.backend = backend  # type: ignore[assignment]
    loop.spec = _with_prepare(loop.spec, backend.prepare)
    return loop


def _with_prepare(spec: ToolLoopSpec, prepare: Callable[..., Any]) -> ToolLoopSpec:
    return replace(spec, prepare=prepare)


async def test_calls_are_persisted_before_they_run() -> None:
    """After a crash, the stored call is open and is not run again."""
    ran: list[str] = []

    async def notes(
        arguments: str, context: CallContext
    ) -> AsyncGenerator[ToolProgress | ToolResult, None]:
        ran.append(arguments)
        yield ToolResult(text="done")

    tool_loop = await LoopRun(look("1"), message_deltas("x"), run=notes).tool_loop()
    was_checkpointed = False
    async with asyncio.timeout(60), aclosing(deltas_of(tool_loop)) as deltas:
        async for delta in deltas:
            if isinstance(delta, Checkpoint):
                assert ran == [] and not was_checkpointed
                was_checkpointed = True
    assert was_checkpointed and ran == ["1"]

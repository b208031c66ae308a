"""Turns: a reply in which tools run. The model calls, they run side by side, it is told what came
of it and goes on, until it is done or a bound is reached.

To the run it is one reply. It knows no events and no particular tool.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import Reply, add_usage
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.conversation import Conversation, Options, ResumePoint, ToolChoice, ToolName
from antiphon.errors import CONTEXT_LENGTH_EXCEEDED, InvalidRequest, ToolError
from antiphon.runs.request.tool_selection import ToolSelection, discovered_tools, function_names
from antiphon.stream.deltas import Close, Delta, Finish, FinishReason, NewPrompt, Open, Progress
from antiphon.text import truncate_middle
from antiphon.tools.base import ResponseContext, Toolset
from antiphon.tools.citations import CitationReader
from antiphon.wire import items as it
from antiphon.wire.response import Usage

from .executor import Budget, CallEnvironment, ToolLimits, output_budget, run_all
from .recovery import calls_of, fail_open_items, interrupted_in_tools, turns_of
from .toolsets import combine_toolsets, reader_of, with_functions
from .turn import ToolCall, Turn, conversation_items

__all__ = ["ToolLoop", "ToolLoopSpec"]

_log = structlog.get_logger(__name__)

#: What a conversation gains, given what the model is told of a call.
Items = Callable[[Callable[[ToolCall], Sequence[it.Item]]], tuple[it.Item, ...]]

#: Of the room for what tools say, as often as it does not fit.
_SHARES = (1, 4, 16)
_ENOUGH = "No more calls are possible now. Answer with what you have."


class ToolLoopSpec(Struct, frozen=True, kw_only=True):
    """What the turns are about. ``ask`` prepares the reply to a conversation; ``declared``: the
    tools that the request has for the model; ``programs``: those that the client runs for programs
    of the model, where it may write some."""

    conversation: Conversation
    options: Options
    tools: ToolSelection
    prepare: Callable[[Conversation, Options], Awaitable[Reply]]
    limits: ToolLimits
    ids: Callable[[str], str]
    tenant: str
    response_id: str
    include: frozenset[str] = frozenset()
    context_size: int | None = None


class ToolLoop(ReplyWrapper):
    """``Reply`` over the replies of all turns. ``reply`` is that of the first, ready."""

    def __init__(
        self, reply: Reply, work: ToolLoopSpec, turn_usages: list[Usage] | None = None
    ) -> None:
        super().__init__(reply)
        self._now = reply
        self._work = work
        self._offers = {(o.tool.name, o.namespace): o for o in work.tools.search_functions}
        self._conversation = work.conversation
        self._options = work.options
        self._budget = Budget(work.limits.calls)
        self._begun: ResumePoint | None = None
        self._reader: Callable[[], CitationReader] | None = None
        #: Why the reply ended before the model was asked.
        self._ended: FinishReason | None = None
        self._began = 0.0
        self._is_last_turn = False
        #: Bytes the model can be told of each call of the last turn.
        self._room = 0
        #: What each turn used.
        self.used: list[Usage] = [] if turn_usages is None else turn_usages

    def resume(self, point: ResumePoint) -> Reply:
        """Within a turn, from its tokens. Where tools ran last, from the items: what was running is
        not run again, but failed. Bounds and usage count what was before."""
        self._begun = point
        self.used[:] = turns_of(point)
        self._budget.spend(calls_of(point))
        if point.items or point.open_items:
            items = (*self._conversation.items, *point.items)
            self._conversation = replace(self._conversation, items=items, stored_tokens=None)
        return self

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        begun, self._begun = self._begun, None
        self._began = _now()
        async with AsyncExitStack() as stack:
            toolsets: list[Toolset] = []
            async with aclosing(self._open(stack, toolsets, anew=begun is None)) as opened:
                async for known in opened:
                    yield known
            async with aclosing(self._start(toolsets, begun)) as started:
                async for known in started:
                    yield known
            turn = self._new_turn(begun)
            while self._ended is None:
                async with aclosing(self._now.deltas()) as deltas:
                    async for known in deltas:
                        if out := turn.take(known):
                            yield out
                calls = self._calls_to_run(turn)
                async with aclosing(run_all(calls, self._place(calls))) as steps:
                    async for step in steps:
                        yield (step,)
                turn, prompted = await self._next_turn(turn)
                if prompted:
                    yield prompted
            yield (self._end(self._ended),)

    # --- turns -----------------------------------------------------------------------------------

    def _new_turn(self, begun: ResumePoint | None = None) -> Turn:
        """Start a turn. ``begun``: where it goes on, if it was interrupted."""
        within = begun is not None and not interrupted_in_tools(begun)
        self._is_last_turn = self._must_answer
        return Turn(
            self._offers,
            self._work.ids,
            allowed=0 if self._is_last_turn else self._budget.left,
            refuses=self._refuses,
            begun=next(iter(begun.open_items), None) if begun is not None and within else None,
            reader=self._reader,
            caller=None if self._work.tools.program_functions is None else it.DirectCaller(),
        )

    def _calls_to_run(self, turn: Turn) -> list[ToolCall]:
        """Count the turn, and return the calls that run now."""
        if turn.finish is None:
            return []
        self.used.append(turn.finish.usage)
        calls = [call for call in turn.calls if not call.ignored]
        self._budget.take(len(calls))
        return calls if turn.finish.reason == "stop" else []

    async def _next_turn(self, turn: Turn) -> tuple[Turn, tuple[Delta, ...]]:
        """Prepare the turn after ``turn``, or set why the reply ends."""
        finish = turn.finish
        if finish is None or finish.reason != "stop" or not turn.calls or _awaits_client(turn):
            self._ended = "stop" if finish is None else finish.reason
        elif self._is_last_turn or self._has_to_end(turn):
            self._ended = "turns"
        else:
            prompted = await self._next(turn.items, turn)
            if prompted is not None:
                return self._new_turn(), prompted
            self._ended = "length"
        return turn, ()

    # --- bounds ----------------------------------------------------------------------------------

    @property
    def _left_s(self) -> float:
        """Seconds in which tools may still be called."""
        most = self._work.limits.seconds
        return math.inf if most is None else self._began + most - _now()

    @property
    def _must_answer(self) -> bool:
        """The model is to call none of our tools any more, but answer."""
        bounds = self._work.limits
        if bounds.at_end == "incomplete":
            return False
        return len(self.used) >= bounds.turns - 1 or self._left_s <= 0

    def _has_to_end(self, turn: Turn) -> bool:
        """The operator wants no answer made of what there is."""
        bounds = self._work.limits
        if bounds.at_end == "answer":
            return False
        late = len(self.used) >= bounds.turns or self._left_s <= 0
        return late or any(call.ignored and not call.refused for call in turn.calls)

    # --- before the first turn -------------------------------------------------------------------

    async def _open(
        self, stack: AsyncExitStack, toolsets: list[Toolset], *, anew: bool
    ) -> AsyncGenerator[tuple[Delta, ...], None]:
        """Open the tools. Those that lead the output are told of, unless they have been."""
        work, opening = self._work, self._opening()
        for hosted in work.tools.server_tools:
            lead = hosted.provider.leading_item(hosted.tool, opening) if anew else None
            key = work.ids("lead") if lead is not None else ""
            if lead is not None:
                yield (Open(lead, key), Progress("in_progress", key))
            try:
                toolset = await stack.enter_async_context(
                    hosted.provider.open(hosted.tool, opening)
                )
            except ToolError as error:
                toolset = Toolset(failed=True, fields={"error": error.message})
            if lead is not None:
                step = "failed" if toolset.failed else "completed"
                yield (Progress(step, key), Close(toolset.fields, key))
            toolsets.append(toolset)

    def _opening(self) -> ResponseContext:
        return ResponseContext(
            tenant=self._work.tenant,
            response_id=self._work.response_id,
            items=self._work.conversation.items,
            interrupted_items=self._conversation.items[len(self._work.conversation.items) :],
            include=self._work.include,
        )

    async def _start(
        self, toolsets: Sequence[Toolset], begun: ResumePoint | None
    ) -> AsyncGenerator[tuple[Delta, ...], None]:
        """The reply of the first turn, once it is known what there is to call."""
        within = begun is not None and not interrupted_in_tools(begun)
        if begun is not None and not within:
            yield self._failed(begun)
        opening = replace(self._opening(), items=self._conversation.items)
        toolsets = combine_toolsets(self._work.tools, toolsets, opening)
        offered = tuple(offer for toolset in toolsets for offer in toolset.functions)
        self._offers.update({(o.tool.name, o.namespace): o for o in offered})
        self._reader = reader_of(toolsets)
        rendered = self._options
        if self._work.tools.server_tools:
            self._options = with_functions(
                rendered, self._work.tools, toolsets, self._conversation.items
            )
        if begun is not None and within:
            if self._options != rendered:
                self._now = await self._work.prepare(self._work.conversation, self._options)
            self._now = self._now.resume(begun)
            return
        first = [each for toolset in toolsets for each in toolset.pending_calls]
        going = [each for each in first if each.call_id is not None]
        calls = [
            ToolCall.first(each, self._work.ids) for each in (first if begun is None else going)
        ]
        for out in filter(None, (call.all_deltas() for call in calls)):
            yield out
        async with aclosing(run_all(calls, self._place(calls))) as steps:
            async for step in steps:
                yield (step,)
        if any(call.waits for call in calls):
            self._ended = "stop"
        elif begun is not None or calls or self._options != rendered:
            afresh = begun is None and not going  # what a choice demanded has been done otherwise
            prompted = await self._next(partial(conversation_items, calls), first=afresh)
            self._ended = "length" if prompted is None else None
            if prompted:
                yield prompted

    # --- the next turn ---------------------------------------------------------------------------

    async def _next(
        self, items: Items, turn: Turn | None = None, *, first: bool = False
    ) -> tuple[Delta, ...] | None:
        """Ask the model again, or for the first time; None if there is no room for an answer.
        What it is told of its tools is cut further where it does not fit."""
        kept = (
            turn.kept(self._now.prompt_tokens)
            if turn is not None
            else self._conversation.stored_tokens
        )
        before = self._conversation
        self._options = self._options if first else self._afterwards()
        if self._options.max_output_tokens == 0:
            return None
        for share in _SHARES:
            said = items(partial(self._told, room=self._room // share))
            self._conversation = replace(before, items=(*before.items, *said), stored_tokens=kept)
            try:
                self._now = await self._work.prepare(self._conversation, self._options)
                break
            except InvalidRequest as refused:
                if refused.code == CONTEXT_LENGTH_EXCEEDED and share != _SHARES[-1]:
                    continue
                _log.info("no more turns", response=self._work.response_id, why=refused.message)
                return None
        prompt = self._now.prompt_tokens
        return () if prompt is None else (NewPrompt(prompt.ids),)

    def _afterwards(self) -> Options:
        """A call that was demanded has been made. Where no more may be made, only what the client
        runs may be called."""
        options, choice = self._options, self._options.tool_choice
        if choice.mode == "one":
            choice = ToolChoice()
        elif choice.mode == "required":
            choice = replace(choice, mode="auto")
        changed: dict[str, Any] = {"tool_choice": choice}
        most = self._work.options.max_output_tokens
        if most is not None:
            spent = sum(usage.output_tokens for usage in self.used)
            changed["max_output_tokens"] = max(0, most - spent)
        if self._must_answer or self._budget.left == 0:
            changed |= {"tool_choice": self._client_choice(choice), "accept_stray_calls": True}
        return replace(options, **changed)

    def _client_choice(self, choice: ToolChoice) -> ToolChoice:
        """What the choice leaves of the functions that the client runs. The model sees all tools as
        before: otherwise the engine could not reuse the beginning of the prompt."""
        names = frozenset(
            name
            for name in self._known_functions()
            if choice.allows(*name) and not self._runs_here(name)
        )
        return ToolChoice("none" if choice.mode == "none" else "auto", names)

    def _place(self, calls: Sequence[ToolCall]) -> CallEnvironment:
        """Where calls of one turn run, which share what the model can still be told."""
        work = self._work
        used = self._now.input_tokens + sum(usage.output_tokens for usage in self.used[-1:])
        self._room = output_budget(work.context_size, used) // max(1, len(calls))
        return CallEnvironment(
            tenant=work.tenant,
            response_id=work.response_id,
            room=self._room,
            side_by_side=work.limits.side_by_side,
            call_s=max(0.0, min(work.limits.call_s, self._left_s)),
            budget=self._budget,
            ids=work.ids,
        )

    def _refuses(self, name: str, namespace: str | None) -> str:
        """What the model is told that calls what there is not, or what the request keeps it from:
        models that nothing holds to a grammar do."""
        if self._options.tool_choice.allows(name, namespace) and (
            (name, namespace) in self._known_functions()
        ):
            return ""
        return f"There is no tool {name!r} that could be called."

    def _known_functions(self) -> set[ToolName]:
        """The functions of the request, of the server's tools, and of the conversation's items."""
        tools = (
            *self._work.tools.request_tools,
            *self._options.tools,
            *discovered_tools(self._conversation.items),
        )
        return {*self._offers, *(name for tool in tools for name in function_names(tool))}

    def _runs_here(self, name: ToolName) -> bool:
        function = self._offers.get(name)
        return function is not None and function.handler is not None

    def _told(self, call: ToolCall, room: int) -> Sequence[it.Item]:
        """What the model is told of a call, in so many bytes."""
        result = call.result
        if result is None:
            return (call.output(_ENOUGH),)
        if result.items:
            return result.items
        return (call.output(truncate_middle(result.text, room)),)

    def _end(self, reason: Any) -> Finish:
        used = Usage()
        for turn in self.used:
            used = add_usage(used, turn)
        return Finish(reason, used)

    def _failed(self, begun: ResumePoint) -> tuple[Delta, ...]:
        """What was running when the run was interrupted."""
        deltas, items = fail_open_items(begun)
        items = (*self._conversation.items, *items)
        self._conversation = replace(self._conversation, items=items)
        return deltas


def _now() -> float:
    return asyncio.get_running_loop().time()


def _awaits_client(turn: Turn) -> bool:
    """The client has to answer a call of the model, or of a program of it."""
    return turn.awaits_client or any(call.waits for call in turn.calls)

"""The tool loop: it calls the model, runs the server-side tools that the model calls, and calls the
model again with their results.

Theory. For the run, the whole loop is one reply: it pushes deltas, with one ``Finish`` at the end.
Inside, it is a sequence of turns, each of which is one model call together with the tool calls that
it makes. The deltas of a turn go out unchanged, except for its ``Finish``, which the loop keeps.

1. The tools are opened, and with them the functions that the prompt offers.
2. A turn begins. ``Turn`` reads its deltas, and notes which calls are for tools of this server.
3. A noted call that only reads starts at once. When the model has finished, all others start, too,
   and run concurrently (``executor.py``). The journal (``journal.py``) knows of a call before its
   tool starts, and of its result before the next turn. So no call that may have had an effect runs
   a second time unnoticed.
4. The items of the turn are added to the conversation, the next reply is prepared, and the loop
   continues with 2.

The loop ends when a turn makes no call that runs here, or a call that waits for the client, or when
a limit is reached: of turns, calls, time or context. An asynchronous call of the client does not
wait: in the next turn, the model sees it as pending (``dialects.async_calls``). At a limit, the
model gets a last turn without tools to answer, or the response ends as incomplete, as the settings
say. Results that are too long for the next prompt are shortened, so that a tool cannot end a
conversation. If another server continues the run, ``resume`` puts the loop back to the turn in
which it was interrupted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any

import structlog
from msgspec.structs import replace

from antiphon.backends.base import ASSUMED_CONTEXT_SIZE, DeltaSink, Reply
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    ConnectorError,
    InvalidRequest,
    RunError,
    ToolError,
)
from antiphon.inference.conversation import (
    Conversation,
    Options,
    PromptTokens,
    ResumePoint,
    ToolChoice,
    ToolName,
    caller_program_id,
    open_programs,
)
from antiphon.runs.request.tool_selection import (
    ToolSelection,
    async_functions,
    discovered_tools,
    function_names,
)
from antiphon.stream.deltas import Close, Delta, Finish, FinishReason, NewPrompt, Open, Progress
from antiphon.stream.kinds import KINDS
from antiphon.support.push import send
from antiphon.support.text import truncate_middle
from antiphon.tools.base import ResponseContext, ToolFunction, Toolset
from antiphon.tools.citations import CitationReader
from antiphon.tools.tool_search import searching_also
from antiphon.wire import items as it
from antiphon.wire.response import Usage, sum_usage

from .executor import (
    CallBudget,
    CallEnvironment,
    CallRunner,
    CallServices,
    output_budget,
)
from .recovery import (
    OnInterruption,
    conversation_with_found_tools,
    count_calls,
    finished_turn_usages,
    interrupted_in_tools,
    recover_calls,
)
from .toolsets import (
    citation_reader_factory,
    combine_toolsets,
    deduplicate_names,
    with_functions,
)
from .turn import ToolCall, Turn, conversation_items

_log = structlog.get_logger(__name__)

#: Returns the items that a turn adds to the conversation. The argument is a function that returns
#: the output items of a call.
_NewItems = Callable[[Callable[[ToolCall], Sequence[it.Item]]], tuple[it.Item, ...]]

#: Divisors of the space for tool results. They are tried in order until the prompt is short enough.
_RESULT_DIVISORS = (1, 4, 16)
#: Tool results should leave at least this fraction (1/n) of the space that was free before them.
_ROOM_DIVISOR = 4
_MIN_PRIORITY = -(2**31)
_NO_MORE_CALLS = "No more calls are possible now. Answer with what you have."


class ToolLoopSpec(CallServices, frozen=True, kw_only=True):
    """The inputs of a tool loop.

    ``conversation`` and ``options``: the conversation and the options of the first reply.
    ``prepare`` prepares the reply of a later turn. ``include``: the request's ``include``.
    ``spent_approvals``: ids of approval requests whose call another response has already run.
    ``conversation_id``: id of the conversation that the response continues; empty if it continues
    nothing. ``on_interruption``: what happens to calls that may have been done when the server was
    interrupted.
    """

    conversation: Conversation
    options: Options
    tools: ToolSelection
    prepare: Callable[[Conversation, Options], Awaitable[Reply]]
    include: frozenset[str] = frozenset()
    spent_approvals: frozenset[str] = frozenset()
    conversation_id: str = ""
    context_size: int | None = None
    on_interruption: OnInterruption = "tell"


class ToolLoop(ReplyWrapper):
    """``Reply`` that calls the model and runs the server-side tools that the model calls, turn
    after turn. It joins the replies of all turns into one reply.

    ``reply``: the prepared reply of the first turn. ``turn_usages``: a list to which the loop
    appends the usage of each turn.
    """

    def __init__(
        self, reply: Reply, spec: ToolLoopSpec, turn_usages: list[Usage] | None = None
    ) -> None:
        super().__init__(reply)
        self._spec = spec
        #: The reply of the current turn.
        self._turn_reply = reply
        self._conversation = spec.conversation
        self._options = spec.options
        #: The functions of server-side tools.
        self._functions = _by_name(spec.tools.search_functions)
        self._new_citation_reader: Callable[[], CitationReader] | None = None
        self._budget = CallBudget(spec.limits.max_calls)
        self._turn_usages: list[Usage] = [] if turn_usages is None else turn_usages
        self._resume_point: ResumePoint | None = None
        #: Total time in seconds in which tool calls ran.
        self._tool_time_s = 0.0
        self._is_last_turn = False
        #: Whether the model has been told that no more calls are possible.
        self._limit_is_told = False
        #: Maximum size of the result of each call of the last turn, in bytes.
        self._max_result_bytes = 0
        #: Tokens of the last prompt and its answer, before calls ran.
        self._used_tokens = 0
        #: The stop string that ended the last turn; None if no stop string ended it.
        self._stop_text: str | None = None
        #: Why the loop ends; None while it continues.
        self._end_reason: FinishReason | None = None
        #: The error with which the loop ends, because a prompt was refused.
        self._refusal: InvalidRequest | None = None

    @property
    def prompt_tokens(self) -> PromptTokens | None:
        """The prompt of the first turn. If the prompt of the first turn is unknown, this is the
        prompt of the current turn. For each later prompt, the deltas contain a ``NewPrompt``."""
        return self._reply.prompt_tokens or self._turn_reply.prompt_tokens

    @property
    def may_fail_early(self) -> bool:
        context = self._response_context()
        return self._reply.may_fail_early or any(
            each.provider.leading_item(each.tool, context) is not None
            for each in self._spec.tools.server_tools
        )

    def resume(self, point: ResumePoint) -> Reply:
        """Continue an interrupted loop.

        If the model was writing, the turn continues after the tokens that were already written. If
        tools were running, the journal knows what became of their calls (``recovery.py``).

        The usage and the limits of turns, calls and output tokens include the part of the loop
        before the interruption. The time limit ``max_seconds`` starts again.
        """
        if not (point.items or point.open_items or point.sampled_ids):
            # Nothing was done. The loop begins, with the prompt of the earlier attempt.
            self._turn_reply = self._turn_reply.resume(point)
            return self
        self._resume_point = point
        self._turn_usages[:] = finished_turn_usages(point)
        self._budget.spend(count_calls(point))
        if point.items or point.open_items:
            items = (*self._conversation.items, *point.items)
            self._conversation = replace(self._conversation, items=items, stored_tokens=None)
        return self

    async def pump(self, sink: DeltaSink) -> None:
        point, self._resume_point = self._resume_point, None
        async with AsyncExitStack() as stack:
            toolsets = await self._open_tools(stack, sink, is_new=point is None)
            await self._prepare_first_turn(toolsets, point, sink)
            turn = self._new_turn(point)
            while self._end_reason is None:
                async with self._call_runner() as runner:
                    await self._turn_reply.pump(partial(self._read, turn, runner, sink))
                    await self._spec.on_calls(turn.tool_calls)
                    await self._run_calls(runner, self._calls_to_run(turn), sink)
                turn, batch = await self._next_turn(turn)
                if batch:
                    await send(sink, batch)
            if self._refusal is not None:
                raise self._refusal
            await send(sink, (self._finish(self._end_reason),))

    # --- turns -----------------------------------------------------------------------------------

    def _read(
        self, turn: Turn, runner: CallRunner, sink: DeltaSink, batch: tuple[Delta, ...]
    ) -> Awaitable[None] | None:
        """Note the calls in the deltas of a turn, and push what the run gets of them. Start the
        calls that may start early."""
        out = turn.feed(batch)
        if turn.is_over:
            self._turn_reply.stop()
        if turn.early_calls:
            runner.start_early(turn.take_early_calls())
        if runner.early_progress:
            out = (*out, *runner.take_progress())
        return sink(out) if out else None

    def _new_turn(self, point: ResumePoint | None = None) -> Turn:
        """Start a turn. ``point``: the point where an interrupted loop continues."""
        open_item = None
        if point is not None and not interrupted_in_tools(point):
            open_item = next(iter(point.open_items), None)
        self._is_last_turn = self._must_answer or self._limit_is_told
        has_programs = self._spec.tools.program_functions is not None
        return Turn(
            self._functions,
            self._spec.ids,
            max_calls=0 if self._is_last_turn else self._budget.remaining,
            rejection=self._rejection,
            open_item=open_item,
            new_citation_reader=self._new_citation_reader,
            caller=it.DirectCaller() if has_programs else None,
            async_functions=self._spec.tools.async_functions
            | async_functions(discovered_tools(self._conversation.items)),
        )

    def _calls_to_run(self, turn: Turn) -> list[ToolCall]:
        """Count the finished turn and its calls against the limits. Return the calls to run. If the
        turn ended for another reason than ``stop``, no call runs."""
        if turn.finish is None:
            return []
        self._turn_usages.append(turn.finish.usage)
        self._stop_text = turn.finish.stop_text
        calls = [call for call in turn.calls if not call.is_ignored]
        self._budget.take(len(calls))
        return calls if turn.finish.reason == "stop" else []

    async def _next_turn(self, turn: Turn) -> tuple[Turn, tuple[Delta, ...]]:
        """Prepare the turn (one model call and its tool calls) that follows ``turn``. Return this
        new turn, and the deltas to emit before it. If the loop ends instead, set ``_end_reason``
        and return ``turn`` with the last deltas of its calls."""
        finish = turn.finish
        goes_on = bool(turn.calls) or turn.has_async_calls
        if finish is None or finish.reason != "stop" or not goes_on or _awaits_client(turn):
            self._end_reason = "stop" if finish is None else finish.reason
        elif self._is_last_turn or self._must_end(turn):
            self._end_reason = "turns" if turn.calls else "stop"
        else:
            self._limit_is_told = turn.is_over
            batch = await self._prepare_turn(turn.new_items, turn)
            if batch is not None:
                return self._new_turn(), (*_end_held(turn.calls), *batch)
            self._end_reason = "length"
        return turn, _end_held(turn.calls)

    def _finish(self, reason: FinishReason) -> Finish:
        """Return the ``Finish`` delta of the whole reply, with the summed usage of all turns."""
        return Finish(reason, sum_usage(self._turn_usages), self._stop_text)

    # --- limits ----------------------------------------------------------------------------------

    @property
    def _remaining_s(self) -> float:
        """The number of seconds in which tool calls may still run. It is infinite if
        ``max_seconds`` is None, and may be negative if calls ran longer than ``max_seconds``."""
        max_seconds = self._spec.limits.max_seconds
        return math.inf if max_seconds is None else max_seconds - self._tool_time_s

    @property
    def _must_answer(self) -> bool:
        """Whether the next turn is the last turn. In the last turn the model may not call
        server-side tools."""
        limits = self._spec.limits
        if limits.at_limit == "incomplete":
            return False
        return len(self._turn_usages) >= limits.max_turns - 1 or self._remaining_s <= 0

    def _must_end(self, turn: Turn) -> bool:
        """Whether the response must end after ``turn`` because a limit was reached. Such a response
        ends without an answer from the model."""
        limits = self._spec.limits
        if limits.at_limit == "answer":
            return False
        is_exceeded = len(self._turn_usages) >= limits.max_turns or self._remaining_s <= 0
        return is_exceeded or any(call.is_ignored and not call.is_rejected for call in turn.calls)

    @asynccontextmanager
    async def _call_runner(self) -> AsyncIterator[CallRunner]:
        """Return the object that runs the calls of one turn. At the end of the context, the calls
        that still run are stopped, and the time in which calls ran is counted."""
        environment = self._call_environment(1)
        # The results of early calls may have to be shortened because of the calls that follow.
        held_result_bytes = environment.max_result_bytes // _RESULT_DIVISORS[-1] ** 2
        runner = CallRunner(replace(environment, held_result_bytes=held_result_bytes), _now)
        try:
            yield runner
        finally:
            await runner.close()
            self._tool_time_s += runner.busy_s

    async def _run_calls(
        self, runner: CallRunner, calls: Sequence[ToolCall], sink: DeltaSink
    ) -> None:
        """Run server-side tool calls to their end. If there are none, stop those that have started
        early: the reply broke off."""
        if not calls:
            await runner.close()
        runner.environment = self._call_environment(len(calls))
        async with aclosing(runner.run(calls)) as progress:
            async for delta in progress:
                await send(sink, (delta,))

    # --- before the first turn -------------------------------------------------------------------

    async def _open_tools(
        self, stack: AsyncExitStack, sink: DeltaSink, *, is_new: bool
    ) -> list[Toolset]:
        """Open the server-side tools, and return the toolset of each tool. A toolset contains the
        functions and the citation formats of one tool.

        A tool may have a leading item, such as ``mcp_list_tools``. Once the tool is open, its
        leading item is pushed, unless the output already contains the item. Until the first
        leading item is pushed, an error can still be reported as an HTTP error.
        """
        context = self._response_context()
        toolsets: list[Toolset] = []
        for each in self._spec.tools.server_tools:
            item = each.provider.leading_item(each.tool, context) if is_new else None
            key = self._spec.ids("lead") if item is not None else ""
            try:
                toolset = await stack.enter_async_context(each.provider.open(each.tool, context))
            except ConnectorError:
                raise
            except ToolError as error:
                toolset = Toolset(failed=True, fields={"error": error.message})
            if item is not None:
                step = "failed" if toolset.failed else "completed"
                leading = (
                    Open(item, key),
                    Progress("in_progress", key),
                    Progress(step, key),
                    Close(toolset.fields, key),
                )
                await send(sink, leading)
            toolsets.append(toolset)
        return toolsets

    def _response_context(self) -> ResponseContext:
        items = self._spec.conversation.items
        return ResponseContext(
            tenant=self._spec.tenant,
            response_id=self._spec.response_id,
            items=items,
            interrupted_items=self._conversation.items[len(items) :],
            include=self._spec.include,
            spent_approvals=self._spec.spent_approvals,
            conversation_id=self._spec.conversation_id,
            trace=self._spec.options.trace,
        )

    async def _prepare_first_turn(
        self, toolsets: Sequence[Toolset], point: ResumePoint | None, sink: DeltaSink
    ) -> None:
        """Prepare the reply of the first turn, and push the deltas that precede this reply. If the
        model is not called at all, this method sets ``_end_reason``. ``point``: the point where an
        interrupted loop continues.

        The prompt has already been rendered. It is rendered again in three cases:

        - ``toolsets`` change the functions that the prompt declares.
        - Calls run before the model is called, for example approved calls.
        - The loop was interrupted while tools ran.
        """
        is_in_turn = point is not None and not interrupted_in_tools(point)
        repeated: list[ToolCall] = []
        if point is not None and not is_in_turn:
            repeated = await self._recover_calls(toolsets, point, sink)
        context = replace(self._response_context(), items=self._conversation.items)
        toolsets = combine_toolsets(self._spec.tools, toolsets, context)
        rendered = self._options
        self._use_toolsets(toolsets)
        if point is not None and is_in_turn:
            await self._resume_turn(point, rendered)
            return
        begun = () if point is None else (*point.items, *point.open_items)
        used = {item.approval_request_id for item in it.of_type(begun, it.McpCall)}
        pending = [
            call
            for toolset in toolsets
            for call in toolset.pending_calls
            if call.approval_request_id is None or call.approval_request_id not in used
        ]
        continued = [call for call in pending if call.call_id is not None]
        calls = [ToolCall.from_pending(call, self._spec.ids) for call in pending]
        for batch in filter(None, (call.all_deltas() for call in calls)):
            await send(sink, batch)
        async with self._call_runner() as runner:
            await self._run_calls(runner, calls, sink)
        if any(call.awaits_client for call in calls):
            self._end_reason = "stop"
            if deltas := _end_held([*repeated, *calls]):
                await send(sink, deltas)
        elif point is not None or calls or self._options != rendered:
            # If a call is continued, it is the call that ``tool_choice`` demanded.
            is_first = not continued and not any(
                KINDS[type(item)].counts_as_call or item.async_ is True for item in begun
            )
            new_items = partial(conversation_items, [*repeated, *calls])
            prompt = await self._prepare_turn(new_items, is_first=is_first)
            self._end_reason = "length" if prompt is None else None
            if deltas := (*_end_held([*repeated, *calls]), *(prompt or ())):
                await send(sink, deltas)

    async def _resume_turn(self, point: ResumePoint, rendered: Options) -> None:
        """Prepare the reply that was interrupted while the model was writing. ``rendered``: the
        options with which the present reply was prepared."""
        # A later turn was interrupted, or the turn after a program that the request continues.
        if self._turn_usages or open_programs(self._spec.conversation.items):
            self._options = self._next_options()
        conversation = conversation_with_found_tools(self._spec.conversation, point)
        if self._options != rendered or conversation is not self._spec.conversation:
            self._turn_reply = await self._spec.prepare(conversation, self._options)
        self._turn_reply = self._turn_reply.resume(point)

    def _use_toolsets(self, toolsets: Sequence[Toolset]) -> None:
        """From now on, offer the functions of these toolsets to the model, and read citations in
        their formats."""
        functions = [function for toolset in toolsets for function in toolset.functions]
        searches = self._spec.tools.search_functions
        self._functions |= _by_name((*functions, *searching_also(searches, functions)))
        self._new_citation_reader = citation_reader_factory(toolsets)
        if self._spec.tools.server_tools:
            self._options = with_functions(
                self._options, self._spec.tools, toolsets, self._conversation.items
            )

    async def _recover_calls(
        self, toolsets: Sequence[Toolset], point: ResumePoint, sink: DeltaSink
    ) -> list[ToolCall]:
        """Close the items that were open at the interruption, or run their calls again. Push the
        deltas. Return the calls of the model that ran again. The items of all other calls are added
        to the conversation."""
        unique = deduplicate_names(toolsets, self._spec.tools.visible_tools)
        functions = self._functions | _by_name(
            function for toolset in unique for function in toolset.functions
        )
        recovery = await recover_calls(
            point, self._spec.journal, functions, self._spec.on_interruption
        )
        if recovery.deltas:
            await send(sink, tuple(recovery.deltas))
        if recovery.unknown and self._spec.on_interruption == "fail":
            raise RunError(
                f"The server was interrupted while {recovery.unknown[0]!r} ran. It may or may not"
                " have been done."
            )
        async with self._call_runner() as runner:
            await self._run_calls(runner, recovery.calls, sink)
        of_programs = [call for call in recovery.calls if caller_program_id(call) is not None]
        nested_items = (item for call in of_programs for item in call.result_items)
        items = (*self._conversation.items, *recovery.items, *nested_items)
        self._conversation = replace(self._conversation, items=items)
        return [call for call in recovery.calls if call not in of_programs]

    # --- the next prompt -------------------------------------------------------------------------

    async def _prepare_turn(
        self, new_items: _NewItems, turn: Turn | None = None, *, is_first: bool = False
    ) -> tuple[Delta, ...] | None:
        """Prepare the next model call. Returns the deltas to emit before it. Returns None if no
        further model call is possible, for example because the context has no space for an answer.
        If the prompt is refused for a reason other than its length, ``_refusal`` is set.

        Tool results are truncated further if the prompt is too long, or if it leaves little space
        for the answer and for later responses.

        ``new_items``: returns the items that the last turn adds to the conversation. ``turn``: the
        turn that has just ended; None if no model call preceded. ``is_first``: whether to keep the
        present options. If it is false, the options are those that ``_next_options`` returns.
        """
        tokens = (
            turn.prompt_tokens(self._turn_reply.prompt_tokens)
            if turn is not None
            else self._conversation.stored_tokens
        )
        before = self._conversation
        self._options = self._options if is_first else self._next_options()
        if self._options.max_output_tokens == 0:
            return None
        items: tuple[it.Item, ...] | None = None
        fault: InvalidRequest | None = None
        for divisor in _RESULT_DIVISORS:
            tried_items, items = (
                items,
                new_items(partial(self._output_items, max_bytes=self._max_result_bytes // divisor)),
            )
            if items == tried_items:
                break
            self._conversation = replace(
                before, items=(*before.items, *items), stored_tokens=tokens
            )
            try:
                self._turn_reply = await self._spec.prepare(self._conversation, self._options)
            except InvalidRequest as error:
                fault = error
                if error.code != CONTEXT_LENGTH_EXCEEDED:
                    self._refusal = error
                    break
            else:
                fault = None
                if self._leaves_room:
                    break
        if fault is not None:
            _log.info("no more turns", response=self._spec.response_id, why=fault.message)
            return None
        prompt = self._turn_reply.prompt_tokens
        return () if prompt is None else (NewPrompt(prompt.ids),)

    @property
    def _leaves_room(self) -> bool:
        """Whether the prompt leaves enough free space: at least the fraction 1/``_ROOM_DIVISOR`` of
        the space that was free before the calls."""
        context_size = self._spec.context_size or ASSUMED_CONTEXT_SIZE
        remaining = context_size - self._turn_reply.input_tokens
        return remaining >= (context_size - self._used_tokens) // _ROOM_DIVISOR

    def _next_options(self) -> Options:
        """Return the options for the next turn.

        A tool choice that required a call no longer applies, because the call has been made. If the
        limit of server-side calls is reached, the model may only call functions that the client
        runs. If the request has a priority, later turns precede other requests of this priority, as
        in vLLM, because their prompts are cached and their clients already wait.
        """
        options, choice = self._options, self._options.tool_choice
        if choice.mode == "one":
            choice = ToolChoice()
        elif choice.mode == "required":
            choice = replace(choice, mode="auto")
        changes: dict[str, Any] = {"tool_choice": choice}
        priority = self._spec.options.priority
        if priority is not None:
            changes["priority"] = max(priority - 1, _MIN_PRIORITY)
        max_tokens = self._spec.options.max_output_tokens
        if max_tokens is not None:
            used = sum(usage.output_tokens for usage in self._turn_usages)
            changes["max_output_tokens"] = max(0, max_tokens - used)
        if self._must_answer or self._budget.remaining == 0:
            changes |= {"tool_choice": self._client_choice(choice), "accept_stray_calls": True}
        return replace(options, **changes)

    def _client_choice(self, choice: ToolChoice) -> ToolChoice:
        """Restrict a tool choice to the functions that the client runs. The tools in the prompt do
        not change, so the engine can reuse the beginning of the previous prompt."""
        names = frozenset(
            name
            for name in self._known_functions()
            if choice.allows(*name) and not self._runs_here(name)
        )
        return ToolChoice("none" if choice.mode == "none" else "auto", names)

    def _output_items(self, call: ToolCall, max_bytes: int) -> Sequence[it.Item]:
        """Return the items that contain the result of a call for the model. Their text is truncated
        to ``max_bytes``.

        If the call's own item is still open (``call.is_held``), the text is truncated in that item
        too, because later responses show the item to the model.
        """
        result = call.result
        if result is None:
            return (call.output_item(_NO_MORE_CALLS),)
        if result.items:
            return result.items
        if call.is_held:
            return (call.output_item(call.truncate_result(max_bytes).text),)
        return (call.output_item(truncate_middle(result.text, max_bytes)),)

    # --- calls -----------------------------------------------------------------------------------

    def _call_environment(self, count: int) -> CallEnvironment:
        """Return the settings for the ``count`` tool calls of one turn. The space that is left for
        tool results in the model's context is divided equally among these calls."""
        spec = self._spec
        self._used_tokens = used_tokens = self._turn_reply.input_tokens + sum(
            usage.output_tokens for usage in self._turn_usages[-1:]
        )
        self._max_result_bytes = output_budget(spec.context_size, used_tokens) // max(1, count)
        return CallEnvironment(
            services=spec,
            max_result_bytes=self._max_result_bytes,
            held_result_bytes=self._max_result_bytes // _RESULT_DIVISORS[-1],
            timeout_s=max(0.0, min(spec.limits.call_timeout_s, self._remaining_s)),
            budget=self._budget,
            trace=spec.options.trace,
        )

    def _rejection(self, name: str, namespace: str | None) -> str:
        """Return the reason why the model may not call a function. Returns an empty string if the
        model may call it. The check is needed because not every backend enforces a grammar on the
        output. Without a grammar, the model may call any function, even one that does not exist or
        that ``tool_choice`` excludes."""
        is_allowed = self._options.tool_choice.allows(name, namespace)
        if is_allowed and (name, namespace) in self._known_functions():
            return ""
        return f"There is no tool {name!r} that could be called."

    def _known_functions(self) -> set[ToolName]:
        """Return the names of the functions that the model has been told about. They come from the
        request, from the server's tools and from items of the conversation."""
        tools = (
            *self._spec.tools.request_tools,
            *self._options.tools,
            *discovered_tools(self._conversation.items),
        )
        return {*self._functions, *(name for tool in tools for name in function_names(tool))}

    def _runs_here(self, name: ToolName) -> bool:
        function = self._functions.get(name)
        return function is not None and function.handler is not None


def _by_name(functions: Iterable[ToolFunction]) -> dict[ToolName, ToolFunction]:
    return {(function.tool.name, function.namespace): function for function in functions}


def _now() -> float:
    return asyncio.get_running_loop().time()


def _end_held(calls: Iterable[ToolCall]) -> tuple[Delta, ...]:
    """Return the deltas that close held items. A held item stays open until the next prompt is
    prepared, because its text may have to be shortened."""
    return tuple(delta for call in calls if call.is_held for delta in call.end_deltas())


def _awaits_client(turn: Turn) -> bool:
    """Whether the client has to answer a call, made either by the model or by one of the model's
    programs."""
    return turn.awaits_client or any(call.awaits_client for call in turn.calls)

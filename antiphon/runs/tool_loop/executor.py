"""Runs the tool calls of a turn concurrently. Each call has its own limits.

If a tool raises an exception, its call has a failed result.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Literal

import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.backends.base import ASSUMED_CONTEXT_SIZE
from antiphon.errors import ToolError
from antiphon.inference.conversation import caller_program_id
from antiphon.limits.key_ring import CheckAccess
from antiphon.runs.execution.run import ReaderGone
from antiphon.stream.deltas import Checkpoint, Close, Delta, Open, Progress
from antiphon.stream.kinds import LAST_PROGRESS, error_fields
from antiphon.support.tasks import BackgroundTasks
from antiphon.tools.base import CallContext, FollowUpItem, NestedCall, ToolResult
from antiphon.tracing.base import TraceHeaders, Tracer
from antiphon.wire import items as it

from .journal import CallJournal
from .turn import ToolCall, new_item_id

_log = structlog.get_logger(__name__)

#: Bytes of text that a token stands for, as a low estimate: results have to fit the context.
_BYTES_PER_TOKEN = 2
_MIN_RESULT_BYTES = 500


#: Called at the end of a server-side tool call with the kind of its item without ``_call``, such as
#: ``web_search``, its seconds, and whether it failed.
OnToolCall = Callable[[str, float, bool], None]


def ignore_call(tool: str, seconds: float, failed: bool) -> None:
    """Do nothing. The default ``OnToolCall`` callback."""


#: Called with calls, before the client sees the end of the response.
OnCalls = Callable[[Sequence[ToolCall]], Awaitable[None]]


async def ignore_calls(calls: Sequence[ToolCall]) -> None:
    """Do nothing. The default ``OnCalls`` callback."""


async def allow() -> None:
    """Do nothing. The default ``CheckAccess`` callback."""


class ToolLimits(Struct, frozen=True, kw_only=True):
    """Limits of the tool loop of one response.

    - ``max_turns``: maximum number of model calls.
    - ``max_calls``: maximum number of server-side tool calls. None means no limit.
    - ``max_seconds``: maximum total time in which tool calls run, in seconds. None means no limit.
    - ``max_parallel_calls``: maximum number of tool calls that run at the same time.
    - ``call_timeout_s``: time limit of one tool call, in seconds.
    - ``at_limit``: what happens when turns, calls or time are used up. With ``answer``, the model
      answers with the results that it has. With ``incomplete``, the response ends.
    """

    max_turns: int = 32
    max_calls: int | None = None
    max_seconds: float | None = None
    max_parallel_calls: int = 8
    call_timeout_s: float = 300.0
    at_limit: Literal["answer", "incomplete"] = "answer"


class CallBudget:
    """Counts how many server-side calls a response may still make. ``remaining`` is None if there
    is no limit."""

    def __init__(self, remaining: int | None) -> None:
        self.remaining = remaining

    def take(self, calls: int = 1) -> bool:
        """Take ``calls`` calls from the budget and return True. If fewer calls remain, take no call
        and return False."""
        if self.remaining is None:
            return True
        if self.remaining < calls:
            return False
        self.remaining -= calls
        return True

    def spend(self, calls: int) -> None:
        """Subtract calls that have already been made. The budget does not become negative."""
        if self.remaining is not None:
            self.remaining = max(0, self.remaining - calls)


class CallServices(Struct, frozen=True, kw_only=True):
    """What the tool calls of one response use of the server, in each turn.

    - ``ids``: returns a new id with a prefix.
    - ``on_tool_call``: called after each call has ended.
    - ``check_access``: called before calls run.
    - ``journal``: records the calls, so that no call runs twice unnoticed.
    - ``on_calls``: called with the calls of each turn, and with the nested calls of programs, when
      their arguments are complete. Some of them may be requests for the client's approval.
    - ``on_unused``: called with a call, not that of a program, whose tool has certainly not run.
    """

    tenant: str
    response_id: str
    ids: Callable[[str], str]
    limits: ToolLimits = ToolLimits()
    tracer: Tracer = field(default_factory=Tracer)
    on_tool_call: OnToolCall = ignore_call
    check_access: CheckAccess = allow
    journal: CallJournal = CallJournal()
    on_calls: OnCalls = ignore_calls
    on_unused: OnCalls = ignore_calls


class CallEnvironment(Struct, frozen=True, kw_only=True):
    """The settings that the calls of one turn share.

    - ``max_result_bytes``: the space in the prompt for the result of each call.
    - ``held_result_bytes``: if the item of a call contains a result of more bytes than this, the
      item stays open after the call, because the result may still be shortened to fit into the next
      prompt. None means that no result is shortened.
    - ``timeout_s``: the time limit of each call.
    - ``budget``: how many server-side calls the response may still make. The server-side calls of
      programs count too.
    - ``trace``: the span that the calls belong to.
    """

    services: CallServices
    max_result_bytes: int
    timeout_s: float
    budget: CallBudget
    held_result_bytes: int | None = None
    trace: TraceHeaders = {}


class CallRunner:
    """Runs the calls of one turn, and the nested calls of programs. A program is code that the
    model wrote. While it runs, it can make calls itself.

    Calls that only read start as soon as the model has written them (``start_early``). All other
    calls start when the model has finished (``run``). So a call whose reply breaks off has changed
    nothing. ``close`` stops all calls. ``environment`` may be replaced before ``run``. ``clock``
    returns monotonic seconds.
    """

    def __init__(self, environment: CallEnvironment, clock: Callable[[], float]) -> None:
        self.environment = environment
        self._services = environment.services
        self._clock = clock
        #: Seconds in which at least one call of the turn ran.
        self.busy_s = 0.0
        self._busy_since = 0.0
        #: The deltas to yield. None means that a call of the turn has ended.
        self._deltas: asyncio.Queue[Delta | None] = asyncio.Queue()
        #: Progress of early calls that ``take_progress`` has not returned yet.
        self.early_progress: list[Delta] = []
        self._is_early = False
        self._early_calls: set[str] = set()
        #: The number of calls of the turn that run, and of those whose end was not yielded.
        self._active = self._running = 0
        self._failure: Exception | None = None
        self._tasks = BackgroundTasks("tool call")
        #: A call holds one slot while it runs.
        self._slots = asyncio.Semaphore(environment.services.limits.max_parallel_calls)

    def start_early(self, calls: Sequence[ToolCall]) -> None:
        """Start calls that only read while the model still writes. Except for their progress, their
        deltas are yielded by ``run``."""
        self._is_early = True
        for call in calls:
            self._early_calls.add(call.call_id)
            self._start(call, is_early=True)

    def take_progress(self) -> tuple[Delta, ...]:
        """Return the new progress of early calls, which can be emitted while the model still
        writes."""
        progress, self.early_progress = self.early_progress, []
        return tuple(progress)

    async def run(self, calls: Sequence[ToolCall]) -> AsyncGenerator[Delta, None]:
        """Run calls to their end, including those that have started early, and yield their deltas
        as they happen.

        Calls that have not started are persisted before they run: the first delta is a checkpoint,
        and then their intents are stored in the journal. Closing the generator stops no calls.

        A long result may have to be shortened for the next prompt. Its call is then held
        (``ToolCall.is_held``): the item of the call stays open, and the code that uses this
        generator has to close the item.
        """
        self._is_early = False
        for delta in self.take_progress():
            yield delta
        waiting = [call for call in calls if call.call_id not in self._early_calls]
        if waiting:
            await self._services.check_access()
            yield Checkpoint()
            await self._services.journal.begin([call for call in waiting if not call.is_repeated])
        for call in waiting:
            self._start(call)
        while self._running:
            delta_or_end = await self._deltas.get()
            if delta_or_end is None:
                self._running -= 1
            else:
                yield delta_or_end
            self._deltas.task_done()
            if self._failure is not None:
                raise self._failure

    async def close(self) -> None:
        """Stop all calls, and drop what they have not emitted."""
        await self._tasks.close()
        self._running = 0

    def _start(self, call: ToolCall, *, is_early: bool = False) -> None:
        self._running += 1
        self._tasks.start(self._run_to_end(call, is_early=is_early))

    async def _run_to_end(self, call: ToolCall, *, is_early: bool) -> None:
        """Run a call of the turn. When the call has ended, put None into ``_deltas``. A failure
        that is not the tool's ends the turn."""
        if not self._active:
            self._busy_since = self._clock()
        self._active += 1
        try:
            if is_early:
                await self._services.check_access()
                await self._services.journal.begin([call])
            await self._run(call, may_hold=True)
        except Exception as error:
            self._failure = error
        finally:
            self._active -= 1
            if not self._active:
                self.busy_s += self._clock() - self._busy_since
            self._deltas.put_nowait(None)

    async def _run(self, call: ToolCall, *, may_hold: bool = False) -> None:
        """Run a call, set its result and emit the deltas that end it. ``may_hold``: whether the
        call's item may stay open after the call, so that its result can still be shortened."""
        if call.function.failed_output is not None:
            # Takes no slot, because it waits for nested calls, and these need slots.
            result = await self._result(call)
            if result.failed and not result.items:
                item = call.function.failed_output(call.call_id, result.text)
                result = replace(result, items=(item,))
            call.result = result
        else:
            async with self._slots:
                result = await self._result(call)
            result = self._end_item(call, result, may_hold=may_hold)
        for number, item in enumerate(result.items):
            key = f"{call.key} {number}"
            self._deltas.put_nowait(Open(item, key))
            self._deltas.put_nowait(Close({}, key, item.status))
        if call.function.effects != "none":
            await self._services.journal.finish(call)
        if not result.has_run and call.caller is None:
            await self._services.on_unused((call,))

    def _end_item(self, call: ToolCall, result: ToolResult, *, may_hold: bool) -> ToolResult:
        """Close the output item that contains the result. Returns the result with its final fields.

        The item stays open if ``may_hold`` is true and the result may have to be shortened later.
        """
        follow_up = call.follow_up
        last_item = follow_up or call.function.initial_item
        # A follow-up item that failed keeps the output it has.
        if result.failed and not result.fields and follow_up is None:
            error = error_fields(last_item, result.text)
            fields = {**call.function.parse_fields(call.arguments), **error}
            result = replace(result, fields=fields)
        items = tuple(call.with_caller(item) for item in result.items)
        call.result = result = replace(result, items=items)
        call.is_held = may_hold and follow_up is None and self._may_be_shortened(result)
        if call.is_held:
            return result
        for delta in call.end_deltas():
            self._deltas.put_nowait(delta)
        if follow_up is not None and not result.failed:
            call.result = replace(result, items=(replace(follow_up, **result.fields),))
        return result

    def _may_be_shortened(self, result: ToolResult) -> bool:
        """Whether the item of the call must stay open, because the result's text in the item may
        have to be shortened later. This is the case if both conditions are true:

        - The item contains the text that the model sees.
        - The text may be too long for the next prompt.
        """
        limit = self.environment.held_result_bytes
        if limit is None or result.failed or result.items:
            return False
        return result.text in result.fields.values() and len(result.text.encode()) > limit

    async def _result(self, call: ToolCall) -> ToolResult:
        """Run the handler of a call inside a trace span. The attributes of the span are those that
        OpenTelemetry defines for ``execute_tool``."""
        environment, name = self.environment, call.function.tool.name
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "extension",  # it runs at the server
            "gen_ai.tool.call.id": call.call_id,
        }
        span = self._services.tracer.start(f"execute_tool {name}", environment.trace, attributes)
        loop = asyncio.get_running_loop()
        started = loop.time()
        with span:
            result = await self._run_handler(call, span.headers)
            if result.failed:
                span.fail("tool_error")
        kind = call.function.initial_item.type.removesuffix("_call")
        self._services.on_tool_call(kind, loop.time() - started, result.failed)
        return result

    async def _run_handler(self, call: ToolCall, trace: TraceHeaders) -> ToolResult:
        """Run the handler of a call within the time limit and return its result."""
        handler, environment = call.function.handler, self.environment
        assert handler is not None
        context = CallContext(
            tenant=self._services.tenant,
            response_id=self._services.response_id,
            call_id=call.call_id,
            max_result_bytes=environment.max_result_bytes,
            idempotency_key=call.item_id,
            caller=caller_program_id(call),
            run_nested_calls=partial(self._run_nested_calls, call),
            trace=trace,
            note=call.note,
            keep_note=partial(self._services.journal.keep_note, call),
            has_ended=partial(self._services.journal.has_ended, call),
        )
        try:
            async with (
                asyncio.timeout(environment.timeout_s),
                aclosing(handler(call.arguments, context)) as steps,
            ):
                async for step in steps:
                    if isinstance(step, ToolResult):
                        return step
                    if isinstance(step, FollowUpItem):
                        for delta in call.start_follow_up(step):
                            self._deltas.put_nowait(delta)
                    elif step.name not in LAST_PROGRESS and not call.is_repeated:
                        self._emit_progress(call, Progress(step.name, call.key, step.fields))
        except TimeoutError:
            return ToolResult(text="The tool took too long and was stopped.", failed=True)
        except ToolError as error:
            return ToolResult(text=error.message, failed=True)
        except ReaderGone:
            raise
        except Exception:
            _log.exception(
                "a tool failed", response=self._services.response_id, tool=call.function.tool.name
            )
            return ToolResult(text="The tool failed.", failed=True)
        return ToolResult(text="The tool gave no result.", failed=True)

    def _emit_progress(self, call: ToolCall, progress: Progress) -> None:
        """Emit progress at once, also while the model still writes. A follow-up item is not open
        yet at this time."""
        if self._is_early and call.follow_up is None:
            self.early_progress.append(progress)
        else:
            self._deltas.put_nowait(progress)

    async def _run_nested_calls(
        self, caller: ToolCall, nested: Sequence[NestedCall]
    ) -> Sequence[tuple[it.Item, ...]]:
        """Run the calls that a program makes. Returns the items of each call. ``caller``: the call
        that runs the program.

        All nested calls are emitted, persisted and journaled, in order, before the first of them
        runs. If they were not persisted first, a call could run a second time after an
        interruption.
        """
        program = it.ProgramCaller(caller.call_id)
        calls: list[ToolCall | None] = []
        for each in nested:
            if each.function.handler is not None and not self.environment.budget.take():
                calls.append(None)
                continue
            ids = self._services.ids
            call = ToolCall.create(
                each.function,
                each.arguments,
                ids("call"),
                item_id=new_item_id(each.function, ids),
                caller=program,
            )
            calls.append(call)
            for delta in call.all_deltas():
                self._deltas.put_nowait(delta)
        self._deltas.put_nowait(Checkpoint())
        await self._deltas.join()
        created_calls = [call for call in calls if call is not None]
        await self._services.on_calls(created_calls)
        running = [call for call in created_calls if call.function.handler is not None]
        await self._services.journal.begin(running)
        async with asyncio.TaskGroup() as group:
            for call in running:
                group.create_task(self._run(call))
        return [() if created is None else created.result_items for created in calls]


def output_budget(context_size: int | None, used_tokens: int) -> int:
    """Return how many bytes the results of all calls of a turn may have together. This is half of
    the free space in the context, converted from tokens to bytes, but at least
    ``_MIN_RESULT_BYTES``. ``context_size``: the size of the context in tokens; None if it is
    unknown. ``used_tokens``: how many of these tokens are in use."""
    remaining = (context_size or ASSUMED_CONTEXT_SIZE) - used_tokens
    return max(_MIN_RESULT_BYTES, remaining * _BYTES_PER_TOKEN // 2)

"""Runs the calls of a turn side by side, each within its bounds. What a tool raises becomes a
result that failed. It knows no model and no particular tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Literal

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import ASSUMED_CONTEXT_SIZE
from antiphon.errors import ToolError
from antiphon.stream.deltas import Checkpoint, Close, Delta, Open, Progress
from antiphon.stream.kinds import KINDS, error_fields
from antiphon.tools.base import CallContext, FollowUpItem, NestedCall, ToolResult
from antiphon.wire import items as it

from .turn import ToolCall

__all__ = ["Budget", "CallEnvironment", "ToolLimits", "output_budget", "run_all"]

_log = structlog.get_logger(__name__)

#: Bytes a token stands for, at least: what is told of tools must fit the context.
_BYTES = 2
_LEAST_TOLD = 500


class ToolLimits(Struct, frozen=True, kw_only=True):
    """Of one response: ``turns``; ``calls`` of tools that run here, None: any number; ``seconds``
    in which it may call tools, None: any number. ``at_end``: what it does that has reached one of
    these: answer with what it has, or end ``incomplete``. ``side_by_side``: calls that run at a
    time. ``call_s``: seconds one may take."""

    turns: int = 32
    calls: int | None = None
    seconds: float | None = None
    side_by_side: int = 8
    call_s: float = 300.0
    at_end: Literal["answer", "incomplete"] = "answer"


class Budget:
    """How many more calls of tools that run here a response may make; None: any number."""

    def __init__(self, left: int | None) -> None:
        self.left = left

    def take(self, calls: int = 1) -> bool:
        """False, and nothing taken, if there are not so many."""
        if self.left is None:
            return True
        if self.left < calls:
            return False
        self.left -= calls
        return True

    def spend(self, calls: int) -> None:
        """So many were made."""
        self.left = None if self.left is None else max(0, self.left - calls)


class CallEnvironment(Struct, frozen=True, kw_only=True):
    """For which response calls run, how many bytes the model can still be told of each, how many
    run at a time, how many seconds each may take, and what they may call themselves."""

    tenant: str
    response_id: str
    room: int
    side_by_side: int
    call_s: float
    budget: Budget
    ids: Callable[[str], str]


#: Steps that every call comes to, by its result.
_ENDS = ("completed", "failed")

_News = asyncio.Queue[Delta | None]


async def run_all(calls: Sequence[ToolCall], place: CallEnvironment) -> AsyncGenerator[Delta, None]:
    """Run them; what they do, as it happens. Closing this stops them. That they were called is kept
    before."""
    if calls:
        yield Checkpoint()
    work = _Work(place)
    tasks = [asyncio.create_task(work.to_the_end(call)) for call in calls]
    try:
        left = len(tasks)
        while left:
            delta = await work.news.get()
            if delta is None:
                left -= 1
            else:
                yield delta
            work.news.task_done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Work:
    """The calls of one turn, and those that they make."""

    def __init__(self, place: CallEnvironment) -> None:
        self.news: _News = asyncio.Queue()
        self._place = place
        self._places = asyncio.Semaphore(place.side_by_side)

    async def to_the_end(self, call: ToolCall) -> None:
        """Run it and say that there is no more to come of it."""
        try:
            await self._run(call)
        finally:
            self.news.put_nowait(None)

    async def _run(self, call: ToolCall) -> None:
        if call.function.failed_output is not None:  # it takes no place: it waits for calls that do
            call.result = result = await self._apart(call, call.function.failed_output)
        else:
            async with self._places:
                result = await self._result(call)
            following = call.following
            told_by = following or call.function.initial_item
            end = "failed" if result.failed else "completed"
            if end in KINDS[type(told_by)].progress:
                self.news.put_nowait(Progress(end, call.key))
            # of one that follows it is kept how far that came
            if result.failed and not result.fields and following is None:
                why = error_fields(told_by, result.text)
                result = replace(
                    result, fields={**call.function.parse_fields(call.arguments), **why}
                )
            items = tuple(call.named(item) for item in result.items)
            call.result = result = replace(result, items=items)
            self.news.put_nowait(Close(result.fields, call.key, call.status, result.usage))
            if following is not None and not result.failed:
                call.result = replace(result, items=(replace(following, **result.fields),))
        for number, item in enumerate(result.items):
            key = f"{call.key} {number}"
            self.news.put_nowait(Open(item, key))
            self.news.put_nowait(Close({}, key, getattr(item, "status", "completed")))

    async def _apart(self, call: ToolCall, broken: Callable[[str, str], it.Item]) -> ToolResult:
        result = await self._result(call)
        if result.failed and not result.items:
            return replace(result, items=(broken(call.call_id, result.text),))
        return result

    async def _result(self, call: ToolCall) -> ToolResult:
        run, place = call.function.handler, self._place
        assert run is not None
        context = CallContext(
            tenant=place.tenant,
            response_id=place.response_id,
            call_id=call.call_id,
            max_result_bytes=place.room,
            caller=call.caller.caller_id if isinstance(call.caller, it.ProgramCaller) else None,
            run_nested_calls=partial(self._ask, call),
        )
        try:
            async with (
                asyncio.timeout(place.call_s),
                aclosing(run(call.arguments, context)) as steps,
            ):
                async for step in steps:
                    if isinstance(step, ToolResult):
                        return step
                    if isinstance(step, FollowUpItem):
                        self.news.put_nowait(Close(step.fields, call.key))
                        self.news.put_nowait(Open(*call.follow(step.item)))
                    elif step.name not in _ENDS:
                        self.news.put_nowait(Progress(step.name, call.key, step.fields))
        except TimeoutError:
            return ToolResult(text="The tool took too long and was stopped.", failed=True)
        except ToolError as error:
            return ToolResult(text=error.message, failed=True)
        except Exception:
            _log.exception(
                "a tool failed", response=place.response_id, tool=call.function.tool.name
            )
            return ToolResult(text="The tool failed.", failed=True)
        return ToolResult(text="The tool gave no result.", failed=True)

    async def _ask(
        self, caller: ToolCall, wanted: Sequence[NestedCall]
    ) -> Sequence[tuple[it.Item, ...]]:
        """Calls that a call makes. They are told of, in their order, before any of them runs: one
        that nobody was told of could be made again after an interruption."""
        name = it.ProgramCaller(caller.call_id)
        calls: list[ToolCall | None] = []
        for each in wanted:
            if each.function.handler is not None and not self._place.budget.take():
                calls.append(None)
                continue
            call = ToolCall.made(each.function, each.arguments, self._place.ids("call"), name)
            calls.append(call)
            for delta in call.all_deltas():
                self.news.put_nowait(delta)
        self.news.put_nowait(Checkpoint())
        await self.news.join()
        async with asyncio.TaskGroup() as group:
            for made in calls:
                if made is not None and made.function.handler is not None:
                    group.create_task(self._run(made))
        return [() if made is None else made.result_items for made in calls]


def output_budget(context_size: int | None, used: int) -> int:
    """Bytes the model can still be told, of which the calls of a turn may use half. ``used``:
    tokens."""
    left = (context_size or ASSUMED_CONTEXT_SIZE) - used
    return max(_LEAST_TOLD, left * _BYTES // 2)

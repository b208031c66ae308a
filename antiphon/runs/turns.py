"""Turns: a reply in which tools run. The model calls, they run side by side, it is told what came
of it and goes on, until it is done or a bound is reached.

To the run it is one reply. It knows no events and no particular tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import structlog
from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import Reply
from antiphon.backends.checked import added
from antiphon.conversation import Begun, Conversation, Kept, Options
from antiphon.errors import InvalidRequest, ToolError
from antiphon.stream.deltas import Close, Delta, Finish, Open, Progress, Prompted
from antiphon.tools.base import Context, Offer, Result
from antiphon.wire import items as it
from antiphon.wire import tools as tl
from antiphon.wire.response import Usage

from .turn import Called, Turn

__all__ = ["Bounds", "Turns", "Work"]

_log = structlog.get_logger(__name__)

#: Characters a token stands for, at least: what is told of a tool must fit the context.
_CHARACTERS = 2
_USUAL_SIZE = 32_768
_LEAST_TOLD = 500
_ENOUGH = "No more calls are possible now. Answer with what you have."
_INTERRUPTED = "The server was interrupted while this ran. It may or may not have been done."


class Bounds(Struct, frozen=True, kw_only=True):
    """``turns``: of one response. ``calls``: of tools that run here, in one response; None: any
    number. ``side_by_side``: calls that run at a time. ``call_s``: seconds one may take."""

    turns: int = 32
    calls: int | None = None
    side_by_side: int = 8
    call_s: float = 300.0


class Work(Struct, frozen=True, kw_only=True):
    """What the turns are about. ``ask`` prepares the reply to a conversation."""

    conversation: Conversation
    options: Options
    offers: tuple[Offer, ...]
    ask: Callable[[Conversation, Options], Awaitable[Reply]]
    bounds: Bounds
    ids: Callable[[str], str]
    tenant: str
    response_id: str
    lead: tuple[it.Item, ...] = ()
    context_size: int | None = None


class Turns:
    """``Reply`` over the replies of all turns. ``reply`` is that of the first, ready."""

    def __init__(self, reply: Reply, work: Work) -> None:
        self._first = self._reply = reply
        self._work = work
        self._offers = {(o.tool.name, o.namespace): o for o in work.offers}
        self._conversation = work.conversation
        self._options = work.options
        self._allowed = work.bounds.calls
        self._begun: Begun | None = None
        #: What each turn used.
        self.used: list[Usage] = []

    @property
    def input_tokens(self) -> int:
        return self._first.input_tokens

    @property
    def kept(self) -> Kept | None:
        return self._first.kept

    @property
    def dropped(self) -> tuple[str, ...]:
        return self._first.dropped

    def resumed(self, begun: Begun) -> Reply:
        """Within a turn, from its tokens. Where tools ran last, from the items: what was running is
        not run again, but failed."""
        self._begun = begun
        if begun.items or begun.open:
            items = (*self._conversation.items, *begun.items)
            self._conversation = replace(self._conversation, items=items, kept=None)
        if not self._is_between(begun):
            self._reply = self._reply.resumed(begun)
        return self

    def _is_between(self, begun: Begun) -> bool:
        """Interrupted while tools ran, or before the model heard of it."""
        kinds = tuple({type(o.shell) for o in self._work.offers if o.call is not None})
        last = begun.open or begun.items[-1:]
        kinds = (*kinds, it.ToolSearchOutput)
        return any(isinstance(item, kinds) for item in last)

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        begun, self._begun = self._begun, None
        for delta in () if begun is not None else self._work.lead:
            yield (Open(delta), Close())
        said: it.Item | None = None
        if begun is not None and self._is_between(begun):
            yield self._failed(begun)
            if (prompted := await self._next(())) is None:
                yield (self._end("length"),)
                return
            yield prompted
        elif begun is not None:
            said = next(iter(begun.open), None)
        while True:
            is_last = len(self.used) >= self._work.bounds.turns - 1
            allowed = 0 if is_last else self._allowed
            turn = Turn(self._offers, self._work.ids, allowed=allowed, begun=said)
            said = None
            async with aclosing(self._turn(turn)) as deltas:
                async for known in deltas:
                    yield known
            finish = turn.finish
            if finish is None or finish.reason != "stop" or turn.awaits_client or not turn.calls:
                yield (self._end("stop" if finish is None else finish.reason),)
                return
            prompted = None if is_last else await self._next(turn.items(self._told), turn)
            if prompted is None:
                yield (self._end("length"),)
                return
            yield prompted

    async def _turn(self, turn: Turn) -> AsyncGenerator[tuple[Delta, ...], None]:
        """What the model says, then what its tools do."""
        async with aclosing(self._reply.deltas()) as deltas:
            async for known in deltas:
                if out := turn.take(known):
                    yield out
        if turn.finish is None:
            return
        self.used.append(turn.finish.usage)
        calls = [call for call in turn.calls if not call.ignored]
        if self._allowed is not None:
            self._allowed -= len(calls)
        if turn.finish.reason == "stop" and calls:
            async with aclosing(self._running(calls)) as steps:
                async for step in steps:
                    yield (step,)

    # --- the next turn ---------------------------------------------------------------------------

    async def _next(
        self, items: Sequence[it.Item], turn: Turn | None = None
    ) -> tuple[Delta, ...] | None:
        """Ask the model again; None if there is no room for an answer."""
        kept = turn.kept(self._reply.kept) if turn is not None else None
        self._conversation = replace(
            self._conversation, items=(*self._conversation.items, *items), kept=kept
        )
        self._options = self._afterwards()
        if self._options.max_output_tokens == 0:
            return None
        try:
            self._reply = await self._work.ask(self._conversation, self._options)
        except InvalidRequest as refused:
            _log.info("no more turns", response=self._work.response_id, why=refused.message)
            return None
        prompt = self._reply.kept
        return () if prompt is None else (Prompted(prompt.ids),)

    def _afterwards(self) -> Options:
        """A call that was demanded has been made. Where no more may be made, only what the client
        runs is shown."""
        options, choice = self._options, self._options.tool_choice
        if choice == "required":
            choice = "auto"
        elif isinstance(choice, tl.Choice) and choice.mode != "none":
            several = choice.type == "allowed_tools"
            choice = replace(choice, mode="auto") if several else "auto"
        changed: dict[str, Any] = {"tool_choice": choice}
        most = self._work.options.max_output_tokens
        if most is not None:
            spent = sum(usage.output_tokens for usage in self.used)
            changed["max_output_tokens"] = max(0, most - spent)
        if len(self.used) >= self._work.bounds.turns - 1 or self._allowed == 0:
            run_here = {id(o.tool) for o in self._work.offers if o.call is not None}
            changed["tools"] = tuple(t for t in options.tools if id(t) not in run_here)
            changed["tool_choice"] = choice if changed["tools"] else "none"
        return replace(options, **changed)

    def _told(self, call: Called) -> Sequence[it.Item]:
        """What the model is told of a call."""
        result = call.result
        if result is None:
            return (call.output(_ENOUGH),)
        if result.items:
            return result.items
        return (call.output(_trimmed(result.text, self._room())),)

    def _room(self) -> int:
        """Characters the model can still be told, of which a call may use half."""
        used = self.used[-1] if self.used else Usage()
        size = self._work.context_size or _USUAL_SIZE
        left = size - used.input_tokens - used.output_tokens
        return max(_LEAST_TOLD, left * _CHARACTERS // 2)

    def _end(self, reason: Any) -> Finish:
        used = Usage()
        for turn in self.used:
            used = added(used, turn)
        return Finish(reason, used)

    # --- running ---------------------------------------------------------------------------------

    async def _running(self, calls: Sequence[Called]) -> AsyncGenerator[Delta, None]:
        """Run them side by side; what they do, as it happens. Closing this stops them."""
        news: asyncio.Queue[Delta | None] = asyncio.Queue()
        places = asyncio.Semaphore(self._work.bounds.side_by_side)
        tasks = [asyncio.create_task(self._run(call, news, places)) for call in calls]
        try:
            left = len(tasks)
            while left:
                delta = await news.get()
                if delta is None:
                    left -= 1
                else:
                    yield delta
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(
        self, call: Called, news: asyncio.Queue[Delta | None], places: asyncio.Semaphore
    ) -> None:
        try:
            async with places:
                result = call.result = await self._result(call, news)
            status = call.offer.failure if result.failed else "completed"
            news.put_nowait(Close(result.fields, call.key, status))
            for item in result.items:
                if not isinstance(item, type(call.offer.shell)):
                    news.put_nowait(Open(item))
                    news.put_nowait(Close())
        finally:
            news.put_nowait(None)

    async def _result(self, call: Called, news: asyncio.Queue[Delta | None]) -> Result:
        work, run = self._work, call.offer.call
        assert run is not None
        context = Context(
            tenant=work.tenant,
            response_id=work.response_id,
            call_id=call.call_id,
            room=self._room(),
        )
        try:
            async with (
                asyncio.timeout(work.bounds.call_s),
                aclosing(run(call.arguments, context)) as steps,
            ):
                async for step in steps:
                    if isinstance(step, Result):
                        return step
                    news.put_nowait(Progress(step.name, call.key, step.fields))
        except TimeoutError:
            return Result(text="The tool took too long and was stopped.", failed=True)
        except ToolError as error:
            return Result(text=error.message, failed=True)
        except Exception:
            _log.exception("a tool failed", response=work.response_id, tool=call.offer.tool.name)
            return Result(text="The tool failed.", failed=True)
        return Result(text="The tool gave no result.", failed=True)

    def _failed(self, begun: Begun) -> tuple[Delta, ...]:
        """What was running when the run was interrupted."""
        out: list[Delta] = []
        failed: list[it.Item] = []
        for item in begun.open:
            told = {"error": _INTERRUPTED} if "error" in item.__struct_fields__ else {}
            status = "failed" if isinstance(item, _CAN_FAIL) else "incomplete"
            out.append(Close(told, item.id, status))
            failed.append(replace(item, status=status, **told))
        items = (*self._conversation.items, *failed)
        self._conversation = replace(self._conversation, items=items)
        return tuple(out)


_CAN_FAIL = (
    it.McpCall,
    it.WebSearchCall,
    it.FileSearchCall,
    it.CodeInterpreterCall,
    it.ImageGenerationCall,
)


def _trimmed(text: str, room: int) -> str:
    """The beginning and the end of a text that is too long."""
    if len(text) <= room:
        return text
    left = len(text) - room
    return f"{text[: room // 2]}\n[… {left} characters left out …]\n{text[-(room // 2) :]}"

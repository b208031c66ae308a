"""A run: one attempt to produce one response. Deltas in, numbered events out.

Whoever wants the response drives the run: a reader its own, so that a run ends with its reader's
task, goes no faster than the reader reads, and nothing stands between the model and the socket; a
background task the one it works on. It knows neither HTTP nor how a model writes.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import structlog
from msgspec import Struct

from antiphon.backends.base import Reply
from antiphon.conversation import PromptTokens
from antiphon.errors import BackendError, RequestError, RunError, Timeout
from antiphon.store.records import StoredResponse, TurnTokens
from antiphon.stream.deltas import FinishReason
from antiphon.stream.writer import ResponseWriter
from antiphon.tokens import common_prefix_length
from antiphon.wire.events import Event
from antiphon.wire.items import Item
from antiphon.wire.response import Response, ResponseError, Usage

from .recorder import Recorder
from .supervisor import Supervisor
from .token_log import last_turn, total_counts

__all__ = ["EventSink", "ReaderGone", "Run", "RunSpec"]

_log = structlog.get_logger(__name__)

#: Why a response is incomplete in spite of what it says.
_INCOMPLETE: Mapping[FinishReason | None, str] = {
    "content_filter": "content_filter",
    "turns": "max_messages",
}


class ReaderGone(Exception):
    """Nobody is there any more to hear the run; raised by an outlet."""


class EventSink:
    """Where the events of a run go. This one drops them: its driver wants the response only."""

    #: Its reader has heard something: from now on errors are events.
    has_sent = False
    #: Awaited before what the model says next is recorded, if the outlet may lag behind.
    wait_for_room: Callable[[], Awaitable[None]] | None = None

    def write(self, events: tuple[Event, ...]) -> Awaitable[None] | None:
        """Pass them on. What cannot be done at once is returned, and awaited before the next call:
        for most tokens there is nothing, and so no coroutine."""
        return None

    async def flush(self) -> None:
        """Until what was written is kept, if anything is."""

    async def end(self, events: tuple[Event, ...], stored: StoredResponse) -> None:
        """Pass the last ones on, the terminal event among them."""
        if (rest := self.write(events)) is not None:
            await rest


class RunSpec(Struct, frozen=True, kw_only=True):
    """What a run has to do: the call that is ready, and what is kept of it.

    ``parent``: the token ids of the conversation so far. ``save`` is None when nothing is to be
    stored, or the outlet stores it. ``clock`` gives unix seconds. ``release`` gives back what the
    run holds, before its end is announced. ``patience_s``: how long a run is not announced
    whose reply may be refused. ``fields``: further fields of the response at its
    end, given the ids sampled. ``reraise`` lets unexpected exceptions through (tests).
    """

    reply: Reply
    input: tuple[Item, ...]
    parent: PromptTokens | None
    save: Callable[[StoredResponse], Awaitable[None]] | None
    clock: Callable[[], float]
    keepalive_s: float
    timeout_s: float | None
    release: Callable[[], Awaitable[None]]
    patience_s: float = 0
    reraise: bool = False


class Run:
    """Driven once. ``response`` is terminal from then on."""

    __slots__ = (
        "_answered",
        "_aside",
        "_beat",
        "_driver",
        "_failure",
        "_heard",
        "_is_heard",
        "_outlet",
        "_over",
        "_patience",
        "_refusable",
        "_supervisor",
        "_work",
        "_writer",
        "_writing",
        "chain",
        "id",
        "ignored_tools",
        "recorder",
        "response",
    )

    def __init__(
        self,
        writer: ResponseWriter,
        spec: RunSpec,
        supervisor: Supervisor,
        *,
        recorder: Recorder | None = None,
        chain: tuple[StoredResponse, ...] = (),
        ignored_tools: tuple[str, ...] = (),
    ) -> None:
        self._writer = writer
        self._work = spec
        self._supervisor = supervisor
        self.recorder = recorder or Recorder(writer)
        self._outlet = EventSink()
        self._driver: asyncio.Task[object] | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._answered = False
        self._refusable = False
        self._is_heard = False
        #: The number of the next event when silence was last looked for.
        self._heard = -1
        self._writing = False
        self._aside: asyncio.Task[None] | None = None
        self._failure: RunError | None = None
        self._over = False
        self.response: Response = writer.response
        self.id = self.response.id
        #: The responses it continues, oldest first; at its end, with its own.
        self.chain = chain
        #: Hosted tools the request named that nobody here runs.
        self.ignored_tools = ignored_tools

    @property
    def event_count(self) -> int:
        """How many events it has had."""
        return self._writer.number

    async def drive(self, sink: EventSink | None = None) -> Response:
        """Produce the response; its events go to ``outlet``, if anybody is to hear them. To cancel
        the call is to leave: the model stops, the run ends ``cancelled`` and nothing is stored. So
        does ``Left``. Where the reply may be refused and fails before anybody has heard of the run,
        nothing is stored either, and ``RunError`` is raised."""
        self._driver = asyncio.current_task()
        self._is_heard = sink is not None
        self._outlet = sink or self._outlet
        self._beat_later()
        self._supervisor.enter(self)
        try:
            if not self._begin():
                await self._flush()
            await self._reply()
            await self._finish()
        except (asyncio.CancelledError, ReaderGone) as left:
            await self._stopped(left)
        except RunError as error:
            await self._failed(error)
        except RequestError as error:  # it comes too late, most often
            await self._failed(_refused(error))
        except Exception:
            _log.exception("run failed", response=self.id)
            if self._work.reraise:
                raise
            await self._failed(RunError("The server had an error while processing your request."))
        finally:
            for timer in (self._beat, self._patience):
                if timer is not None:
                    timer.cancel()
            if self._aside is not None:
                self._aside.cancel()
            self._let_go()
            self._supervisor.leave(self)
            await self._work.release()
        return self.response

    def _let_go(self) -> None:
        """Of what holds the run: as a cycle it would stay until the collector comes."""
        self._driver = self._beat = self._patience = None
        self._outlet = EventSink()

    def fail(self, error: RunError) -> None:
        """Have the run end ``failed`` (the server goes down)."""
        if self._driver is not None and not self._over and self._failure is None:
            self._failure = error
            self._driver.cancel()

    # --- the way of a run ------------------------------------------------------------------------

    async def _stopped(self, left: asyncio.CancelledError | ReaderGone) -> None:
        """The reader left, or the server goes down."""
        driver, failure = self._driver, self._failure
        if failure is not None and driver is not None:
            if isinstance(left, ReaderGone) or driver.uncancel() == 0:
                await self._failed(failure)
                return
        self._cancelled()
        raise left

    def _begin(self) -> bool:
        """The first events, unless they have been said: background runs are created early. Whether
        they wait for the first word, because it may be a refusal."""
        work = self._work
        if self._writer.number == 0:
            self._writer.create()
            self._refusable = work.patience_s > 0 and work.reply.may_fail_early
            if self._refusable and self._is_heard:
                loop = asyncio.get_running_loop()
                self._patience = loop.call_later(work.patience_s, self._announce)
        if not self._writer.started:
            self._writer.start()
        return self._refusable

    async def _reply(self) -> None:
        writer, write = self._writer, self._outlet.write
        room, recorder = self._outlet.wait_for_room, self.recorder
        take = recorder.take
        try:
            async with (
                asyncio.timeout(self._work.timeout_s),
                aclosing(self._work.reply.deltas()) as deltas,
            ):
                async for known in deltas:
                    self._answered = True
                    if room is not None:
                        await room()
                    for delta in known:
                        take(delta)
                    if writer.pending:
                        # _flush, without a call for every token
                        if self._aside is not None:
                            await self._aside
                        if (rest := write(writer.take())) is not None:
                            await self._written(rest)
                    if recorder.checkpoint_pending:
                        recorder.checkpoint_pending = False
                        await self._outlet.flush()
        except TimeoutError:
            raise Timeout("The response took longer than this server allows.") from None

    def _outcome(self) -> tuple[str, str | None]:
        if self.recorder.truncated:
            return "incomplete", "max_output_tokens"
        why = _INCOMPLETE.get(self.recorder.reason)
        return ("completed", None) if why is None else ("incomplete", why)

    async def _finish(self) -> None:
        """Persist, then announce: whoever hears of the end can already build on it."""
        status, reason = self._outcome()
        response = self._writer.finalize(
            status,
            at=int(self._work.clock()),
            usage=self.recorder.usage,
            reason=reason,
            **self._tool_usage(),
            **self._work.reply.final_fields(self.recorder.sampled),
        )
        stored = StoredResponse(response=response, input=self._work.input, tokens=self._tokens())
        if self._work.save is not None:
            await self._flush()
            await self._work.save(stored)
        await self._end(stored)

    async def _failed(self, error: RunError) -> None:
        if error.__cause__ is not None:  # what nobody expected
            _log.error("run failed", response=self.id, exc_info=error.__cause__)
        if self._refusable and not self._answered and not self._outlet.has_sent:
            self._over = True
            self.response = self._writer.finalize(
                "failed", at=int(self._work.clock()), usage=Usage(), error=_as_wire(error)
            )
            raise error
        response = self._writer.finalize(
            "failed",
            at=int(self._work.clock()),
            usage=self.recorder.usage or self._partial_usage(),
            error=_as_wire(error),
            **self._tool_usage(),
        )
        stored = StoredResponse(response=response, input=self._work.input)
        if self._work.save is not None:
            await self._flush()
            try:
                await self._work.save(stored)
            except RunError:
                _log.warning("a failed response could not be stored", response=self.id)
        await self._end(stored)

    def _cancelled(self) -> None:
        """Nobody hears it."""
        if not self._over:
            self._over = True
            self.response = self._writer.finalize(
                "cancelled", at=int(self._work.clock()), usage=None
            )

    async def _end(self, stored: StoredResponse) -> None:
        self._over = True
        self.response = stored.response
        self.chain = (*self.chain, stored)
        await self._work.release()
        self._writer.emit_terminal()
        if self._aside is not None:
            await self._aside
        await self._outlet.end(self._writer.take(), stored)

    def _partial_usage(self) -> Usage:
        """What a run that broke had used. Never null: there are clients that loop without it."""
        reply = self._work.reply
        prompt, sampled = reply.input_tokens, len(self.recorder.sampled)
        if reply.prompt_tokens is not None:
            prompt, sampled = total_counts(reply.prompt_tokens.ids, self.recorder.sampled)
        return Usage(input_tokens=prompt, output_tokens=sampled, total_tokens=prompt + sampled)

    def _tool_usage(self) -> Mapping[str, Any]:
        used = self.recorder.tool_usage
        return {"tool_usage": used} if used else {}

    def _tokens(self) -> TurnTokens | None:
        prompt = self._work.reply.prompt_tokens
        if prompt is None:
            return None
        base = 0
        parent = self._work.parent
        last, sampled = last_turn(prompt.ids, self.recorder.sampled)
        if parent is not None and parent.fingerprint == prompt.fingerprint:
            base = common_prefix_length(parent.ids, last)
        added = array("I", last[base:])
        added.extend(sampled)
        return TurnTokens(base=base, ids=added.tobytes(), fingerprint=prompt.fingerprint)

    # --- events out ------------------------------------------------------------------------------

    async def _flush(self) -> None:
        if self._aside is not None:
            await self._aside
        if (rest := self._outlet.write(self._writer.take())) is not None:
            await self._written(rest)

    async def _written(self, rest: Awaitable[None]) -> None:
        self._writing = True
        await rest
        self._writing = False

    def _beat_later(self) -> None:
        """Fill silence with keepalive events. One timer a run, which looks twice an interval
        whether anything was said since it last looked."""
        if self._work.keepalive_s <= 0 or self._over or not self._is_heard:
            return
        writer = self._writer
        if writer.number == self._heard and not self._writing and self._aside is None:
            writer.keepalive()
            self._aside = asyncio.create_task(self._write_aside(writer.take()))
        self._heard = writer.number
        self._beat = asyncio.get_running_loop().call_later(
            self._work.keepalive_s / 2, self._beat_later
        )

    def _announce(self) -> None:
        """The first word takes too long: the first events go alone."""
        if not (self._over or self._answered or self._outlet.has_sent) and self._aside is None:
            self._aside = asyncio.create_task(self._write_aside(self._writer.take()))

    async def _write_aside(self, events: tuple[Event, ...]) -> None:
        """While the driver waits for the model. That a reader left is the driver's to notice."""
        try:
            if (rest := self._outlet.write(events)) is not None:
                await rest
        except ReaderGone:
            pass
        finally:
            self._aside = None


def _as_wire(error: RunError) -> ResponseError:
    """What the response says of the error."""
    return ResponseError(code=error.code, message=error.message, type=error.type, param=error.param)


def _refused(error: RequestError) -> RunError:
    """A refusal inside a run."""
    return BackendError(
        error.message, code=error.code or "invalid_prompt", param=error.param, lasting=True
    )

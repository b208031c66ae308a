"""A run: one attempt to produce one response. Deltas in, numbered events into the log.

Stream, plain answer and resume are readers of the same run. A foreground run is cancelled when its
last reader leaves. It knows neither HTTP nor how a model writes.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import structlog
from msgspec import Struct

from antiphon.backends.base import Reply
from antiphon.conversation import Kept
from antiphon.errors import RunError, Timeout
from antiphon.store.base import StoredResponse, TurnTokens
from antiphon.stream.writer import ResponseWriter
from antiphon.wire.events import Event
from antiphon.wire.items import Item
from antiphon.wire.response import Response, ResponseError, Usage

from .log import Log
from .recorder import Recorder

__all__ = ["Run", "Work"]

_log = structlog.get_logger(__name__)


class Work(Struct, frozen=True, kw_only=True):
    """What a run has to do: the call that is ready, and what is kept of it.

    ``parent``: the token ids of the conversation so far. ``save`` is None when nothing is to be
    stored. ``clock`` gives unix seconds. ``release`` gives back what the run holds, before its end
    is announced. ``reraise`` lets unexpected exceptions through (tests).
    """

    reply: Reply
    input: tuple[Item, ...]
    parent: Kept | None
    save: Callable[[StoredResponse], Awaitable[None]] | None
    clock: Callable[[], float]
    keepalive_s: float
    timeout_s: float | None
    release: Callable[[], object]
    reraise: bool = False


class Run:
    """Lives from ``start`` until its log is closed. ``response`` is terminal from then on."""

    def __init__(
        self, writer: ResponseWriter, work: Work, log: Log, *, ignored_tools: tuple[str, ...] = ()
    ) -> None:
        self._writer = writer
        self._work = work
        self._recorder = Recorder(writer)
        self._log = log
        self._readers = 0
        self._task: asyncio.Task[None] | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._silent = False
        self._failure: RunError | None = None
        self.response: Response = writer.response
        self.id = self.response.id
        #: Hosted tools the request named that nobody here runs.
        self.ignored_tools = ignored_tools

    # --- for readers -----------------------------------------------------------------------------

    async def follow(self, after: int = -1) -> AsyncGenerator[tuple[Event, ...], None]:
        """Batches of events beyond ``after`` until the terminal one. Closing the iterator is
        leaving."""
        self._readers += 1
        try:
            async with aclosing(self._log.follow(after)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self._left()

    async def result(self) -> Response:
        """The terminal response. Cancelling the call is leaving."""
        self._readers += 1
        try:
            self._log.mute()
            await self._log.wait()
        finally:
            self._left()
        return self.response

    def cancel(self) -> None:
        """Stop the run, if it still runs; it ends ``cancelled``."""
        if self._task is not None and not self._log.closed:
            self._task.cancel()

    def _left(self) -> None:
        self._readers -= 1
        if self._readers == 0 and not self.response.background:
            self.cancel()

    # --- for the supervisor ----------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        """Begin. The first events are there at once; the task ends when the log is closed."""
        self._writer.create()
        self._writer.begin()
        self._flush()
        self._task = asyncio.create_task(self._work_on(), name=self.id)
        self._task.add_done_callback(self._never_began)
        return self._task

    def fail(self, error: RunError) -> None:
        """Stop the run and have it end ``failed`` (the server goes down)."""
        if self._task is not None and not self._log.closed:
            self._failure = error
            self._task.cancel()

    # --- the run itself --------------------------------------------------------------------------

    def _never_began(self, task: asyncio.Task[None]) -> None:
        """A task cancelled before its first step runs no line of its own: end the run for it."""
        if self._log.closed:
            return
        at, failure = int(self._work.clock()), self._failure
        if failure is None:
            self._end(self._writer.settle("cancelled", at=at, usage=None))
        else:
            self._end(
                self._writer.settle(
                    "failed", at=at, usage=self._partial_usage(), error=_as_wire(failure)
                )
            )
        self._log.close()

    async def _work_on(self) -> None:
        self._beat_later()
        try:
            await self._reply()
            await self._finish(*self._outcome())
        except asyncio.CancelledError:
            await self._stopped()
        except RunError as error:
            await self._failed(error)
        except Exception:
            _log.exception("run failed", response=self.id)
            if self._work.reraise:
                raise
            await self._failed(RunError("The server had an error while processing your request."))
        finally:
            if self._beat is not None:
                self._beat.cancel()
            self._work.release()
            self._log.close()

    async def _reply(self) -> None:
        try:
            async with (
                asyncio.timeout(self._work.timeout_s),
                aclosing(self._work.reply.deltas()) as deltas,
            ):
                async for delta in deltas:
                    self._recorder.take(delta)
                    self._flush()
                    if self._log.is_full:
                        await self._log.ready()
        except TimeoutError:
            raise Timeout("The response took longer than this server allows.") from None

    def _outcome(self) -> tuple[str, str | None]:
        if self._recorder.cut:
            return "incomplete", "max_output_tokens"
        if self._recorder.reason == "content_filter":
            return "incomplete", "content_filter"
        return "completed", None

    async def _finish(self, status: str, reason: str | None) -> None:
        """Persist, then announce: whoever hears of the end can already build on it."""
        response = self._writer.settle(
            status, at=int(self._work.clock()), usage=self._recorder.usage, reason=reason
        )
        self._flush()
        if self._work.save is not None:
            await self._work.save(
                StoredResponse(response=response, input=self._work.input, tokens=self._tokens())
            )
        self._end(response)

    async def _failed(self, error: RunError) -> None:
        response = self._writer.settle(
            "failed",
            at=int(self._work.clock()),
            usage=self._recorder.usage or self._partial_usage(),
            error=_as_wire(error),
        )
        self._flush()
        if self._work.save is not None:
            try:
                await self._work.save(StoredResponse(response=response, input=self._work.input))
            except RunError:
                _log.warning("a failed response could not be stored", response=self.id)
        self._end(response)

    async def _stopped(self) -> None:
        if self._failure is not None:
            await self._failed(self._failure)
            return
        self._end(self._writer.settle("cancelled", at=int(self._work.clock()), usage=None))

    def _end(self, response: Response) -> None:
        self.response = response
        self._work.release()
        self._writer.announce()
        self._flush()

    def _partial_usage(self) -> Usage:
        """What a run that broke had used. Never null: there are clients that loop without it."""
        prompt, sampled = self._work.reply.input_tokens, len(self._recorder.sampled)
        return Usage(input_tokens=prompt, output_tokens=sampled, total_tokens=prompt + sampled)

    def _tokens(self) -> TurnTokens | None:
        prompt = self._work.reply.kept
        if prompt is None:
            return None
        base = 0
        parent = self._work.parent
        if parent is not None and parent.fingerprint == prompt.fingerprint:
            base = _common(parent.ids, prompt.ids)
        added = array("I", prompt.ids[base:])
        added.extend(self._recorder.sampled)
        return TurnTokens(base=base, ids=added.tobytes(), fingerprint=prompt.fingerprint)

    def _flush(self) -> None:
        if events := self._writer.take():
            self._silent = False
            self._log.append(events)

    def _beat_later(self) -> None:
        """Fill silence with keepalive events. One timer a run, which looks twice an interval
        whether anything was said since it last looked."""
        if self._work.keepalive_s <= 0:
            return
        if self._silent:
            self._writer.keepalive()
            self._flush()
        self._silent = True
        self._beat = asyncio.get_running_loop().call_later(
            self._work.keepalive_s / 2, self._beat_later
        )


def _as_wire(error: RunError) -> ResponseError:
    return ResponseError(code=error.code, message=error.message, type=error.type)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Length of the common prefix."""
    if one == other[: len(one)]:
        return len(one)
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(other))

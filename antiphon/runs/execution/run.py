"""Executes a run. A run is one attempt to produce one response: it records the deltas of the
model's reply and writes numbered events.

One task drives each run: that of the request for a foreground run, and a task of the worker for a
background run. While the model generates, the task waits. The run is the sink of the reply (see
``support.push``): in the call that pushes deltas, they are recorded, and their events are written
to the client or the event log. There is no queue between the model and the client's socket. So if
the client reads slowly, the reply pauses.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext

import structlog
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.backends.base import Reply, RetryState, track_retries
from antiphon.errors import BackendError, InternalError, RequestError, RunError, Timeout
from antiphon.inference.conversation import PromptTokens
from antiphon.inference.tokens import common_prefix_length
from antiphon.limits.key_ring import CheckAccess
from antiphon.runs.history.visible_history import estimate_tokens
from antiphon.store.records import StoredResponse, TurnTokens
from antiphon.stream.deltas import Delta, FinishReason, Open, finish_of
from antiphon.stream.writer import ResponseWriter
from antiphon.wire.error_codes import response_code
from antiphon.wire.events import Event
from antiphon.wire.items import Item
from antiphon.wire.response import Response, ResponseError, Usage

from .recorder import Recorder
from .supervisor import Supervisor
from .token_log import last_turn, total_counts

_log = structlog.get_logger(__name__)

#: The longest time in seconds that the first events are held back while an upstream refuses the
#: request, and the time between two checks.
_MAX_HOLD_S, _HOLD_CHECK_S = 30.0, 0.25

#: Finish reasons that make the response incomplete, and ``incomplete_details.reason`` for each.
_INCOMPLETE: Mapping[FinishReason | None, str] = {
    "content_filter": "content_filter",
    "turns": "max_messages",
}


class ReaderGone(Exception):
    """Raised by an ``EventSink`` when the reader has disconnected, or when another server has taken
    over the run."""


class Interrupted(ReaderGone):
    """Raised by a run whose upstream broke off its answer, if the run can begin the call of the
    model again. Then it is claimed again, like a run whose server has died."""


class _Steered(ReaderGone):
    """Raised inside a run to stop its reply, because a client steers the response."""


class EventSink:
    """Receives the events of a run. This base class drops the events, for callers that need only
    the finished response."""

    #: Whether the reader has received events. If so, errors are sent as events.
    has_sent = False

    def write(self, events: tuple[Event, ...]) -> Awaitable[None] | None:
        """Send events. Raises ``ReaderGone``.

        Most writes finish immediately and return None, so there is no coroutine per token. A write
        that cannot finish immediately returns an awaitable. The caller awaits it before it calls
        ``write`` again.
        """
        return None

    def write_comment(self) -> Awaitable[None] | None:
        """Send a comment, which is not an event, so that the connection stays open."""
        return None

    async def flush(self) -> None:
        """Wait until all events written so far are persisted, if the sink persists events."""

    async def end(self, events: tuple[Event, ...], stored: StoredResponse) -> None:
        """Send the last events, which include the terminal event. ``stored``: the final
        response."""
        if (rest := self.write(events)) is not None:
            await rest


#: Returns whether a response can be restarted. The arguments are its finished and its open items.
CanRestart = Callable[[Sequence[Item], Sequence[Item]], bool]


class RunSpec(Struct, frozen=True, kw_only=True):
    """The inputs of a run.

    - ``reply``: the prepared model call.
    - ``input``: the input items of this response, without the items of earlier responses.
    - ``parent_tokens``: the token ids of the conversation before this response.
    - ``save`` stores the response. It is None if the response is not stored or if the sink stores
      it.
    - ``clock`` returns Unix seconds.
    - ``release`` unlocks the conversation before the terminal event is sent.
    - ``count`` counts the usage of a response that ``save`` does not store.
    - ``first_delta_wait_s``: if the reply may fail early, the first events are held back for up to
      this many seconds. If the request is rejected during this time, the client gets an HTTP error.
    - ``keepalive_events``: whether clients of this stream accept keepalive events. If they do not,
      comments keep the connection open.
    - ``can_restart``: returns whether a response with these finished and open items can go on with
      a new call of the model after its upstream broke off. None if no response can.
    - ``check_access``: raises ``AccessRevoked`` if the client's API key is no longer valid. None if
      that ends nothing.
    - ``reraise``: raise unexpected exceptions (for tests).
    """

    reply: Reply
    input: tuple[Item, ...]
    parent_tokens: PromptTokens | None
    save: Callable[[StoredResponse], Awaitable[None]] | None
    clock: Callable[[], float]
    keepalive_s: float
    timeout_s: float | None
    release: Callable[[], Awaitable[None]]
    count: Callable[[Response, Usage | None], None] | None = None
    first_delta_wait_s: float = 0
    keepalive_events: bool = True
    check_access: CheckAccess | None = None
    can_restart: CanRestart | None = None
    reraise: bool = False


class Run:
    """A run: one attempt to produce one response. Call ``drive`` once. After ``drive``,
    ``response`` has a terminal status."""

    __slots__ = (
        "_checked_number",
        "_driver",
        "_ended",
        "_failure",
        "_first_write_timer",
        "_has_deltas",
        "_has_stopped",
        "_hold_until",
        "_is_steered",
        "_is_writing",
        "_keepalive_timer",
        "_may_fail_early",
        "_retry_state",
        "_sink",
        "_spec",
        "_supervisor",
        "_timer_write",
        "_writer",
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
        self._spec = spec
        self._supervisor = supervisor
        self.recorder = recorder or Recorder(writer)
        self._sink = EventSink()
        self._driver: asyncio.Task[object] | None = None
        self._keepalive_timer: asyncio.TimerHandle | None = None
        self._first_write_timer: asyncio.TimerHandle | None = None
        self._has_deltas = False
        self._may_fail_early = False
        self._retry_state = RetryState()
        #: Time of the event loop's clock until which the first events may be held back.
        self._hold_until = 0.0
        #: The number of the next event when the keepalive timer last ran.
        self._checked_number = -1
        self._is_writing = False
        self._timer_write: asyncio.Task[None] | None = None
        self._failure: RunError | None = None
        #: Whether a client steers the response, and whether it has ended early because of that.
        self._is_steered = self._has_stopped = False
        self._ended = False
        self.response: Response = writer.response
        self.id = self.response.id
        #: The responses that this response continues, oldest first. After the end of the run, this
        #: response is the last entry.
        self.chain = chain
        #: Types of hosted tools in the request that neither this server nor the upstream runs.
        self.ignored_tools = ignored_tools

    @property
    def event_count(self) -> int:
        """The number of events emitted so far."""
        return self._writer.number

    @property
    def runs_tools(self) -> bool:
        """Whether a server-side tool runs, so that the model has nothing to do."""
        return self.recorder.waits_for_tools

    @property
    def input_tokens(self) -> int:
        """The number of tokens of the prompt of the first model call. It is an estimate if only an
        upstream counts tokens."""
        return self._spec.reply.input_tokens

    async def drive(self, sink: EventSink | None = None) -> Response:
        """Produce the response and write its events to ``sink``. If ``sink`` is None, the events
        are dropped.

        If the caller cancels this method or the sink raises ``ReaderGone``, the model stops, the
        run ends ``cancelled`` and nothing is stored. The exception is raised again.

        ``_start`` decides whether the run may fail early. If such a run fails before its first
        delta, and no event was sent to the client before, the error is raised as ``RunError`` and
        nothing is stored. All other errors end the run ``failed``.
        """
        self._driver = asyncio.current_task()
        self._writer.has_reader = sink is not None
        self._sink = sink or self._sink
        self._keep_alive()
        self._supervisor.enter(self)
        try:
            self._start()
            if not self._may_fail_early:
                await self._flush()
            await self._generate()
            await self._finish()
        except (asyncio.CancelledError, ReaderGone) as cause:
            await self._handle_departure(cause)
        except RunError as error:
            await self._fail_response(error)
        except RequestError as error:  # most often from a later turn of the tool loop
            await self._fail_response(_rejection_error(error))
        except Exception:
            _log.exception("run failed", response=self.id)
            if self._spec.reraise:
                raise
            await self._fail_response(InternalError())
        finally:
            for timer in (self._keepalive_timer, self._first_write_timer):
                if timer is not None:
                    timer.cancel()
            if self._timer_write is not None:
                self._timer_write.cancel()
            self._break_cycles()
            self._supervisor.leave(self)
            await self._spec.release()
        return self.response

    def _break_cycles(self) -> None:
        """Remove the references to objects that refer back to the run, so that the run is freed
        without the garbage collector."""
        self._driver = self._keepalive_timer = self._first_write_timer = None
        self._sink = EventSink()

    def fail(self, error: RunError) -> None:
        """Stop the run, which then ends ``failed`` with this error. Called when the server shuts
        down."""
        if self._driver is not None and not self._ended and self._failure is None:
            self._failure = error
            self._driver.cancel()

    def steer(self) -> bool:
        """End the response early, with the reason ``steered``, as soon as it is at a boundary. It
        may complete before. Returns False if it has ended already."""
        if not self._ended:
            self._is_steered = True
        return not self._ended

    def take_number(self) -> int:
        """Return a sequence number for an event that another sender adds to the stream."""
        self._writer.number += 1
        return self._writer.number - 1

    async def check_access(self) -> None:
        """Raise ``AccessRevoked`` if the client's API key is no longer valid."""
        if self._spec.check_access is not None:
            await self._spec.check_access()

    # --- life cycle ------------------------------------------------------------------------------

    async def _handle_departure(self, cause: asyncio.CancelledError | ReaderGone) -> None:
        """End the run after its task was cancelled or its ``EventSink`` raised ``ReaderGone``. If
        the method ``fail`` has cancelled the task, the run ends ``failed``. Otherwise the run ends
        ``cancelled``, and ``cause`` is raised again."""
        driver, failure = self._driver, self._failure
        if failure is not None and driver is not None:
            if isinstance(cause, ReaderGone) or driver.uncancel() == 0:
                await self._fail_response(failure)
                return
        self._cancel_response()
        raise cause

    def _start(self) -> None:
        """Emit the first events, unless a background run has stored them already.

        If the reply may fail early, the first events are sent together with its first delta, or
        after ``first_delta_wait_s`` seconds. If an upstream refuses the request and Antiphon
        retries it, the first events are held back longer. As long as no event was sent, a failure
        is reported as an HTTP error. Clients retry after an HTTP error, but not after a failure
        inside a stream.
        """
        spec = self._spec
        if self._writer.number == 0:
            self._writer.create()
            self._may_fail_early = spec.first_delta_wait_s > 0 and spec.reply.may_fail_early
            if self._may_fail_early and self._writer.has_reader:
                loop = asyncio.get_running_loop()
                self._retry_state = track_retries()
                self._hold_until = loop.time() + _MAX_HOLD_S
                self._first_write_timer = loop.call_later(
                    spec.first_delta_wait_s, self._write_first_events
                )
        if not self._writer.started:
            self._writer.start()

    async def _generate(self) -> None:
        """Let the reply push its deltas, until it ends."""
        timeout_s = self._spec.timeout_s
        try:
            async with nullcontext() if timeout_s is None else asyncio.timeout(timeout_s):
                self._stop_at_boundary()
                await self._spec.reply.pump(self._push)
        except _Steered:
            self._has_stopped = True
        except BackendError as error:
            if error.is_transient and self._can_restart():
                raise Interrupted(error.message) from error
            raise
        except TimeoutError:
            raise Timeout("The response took longer than this server allows.") from None

    def _can_restart(self) -> bool:
        """Return whether the run can begin the call of the model again. Before the first item, the
        client of the upstream has retried what is worth it; with token ids, the engine has."""
        done, still_open = self._writer.items, [item.value for item in self._writer.open_items]
        has_begun = bool(done or still_open) and not self.recorder.token_log
        return (
            has_begun
            and self._spec.can_restart is not None
            and self._spec.can_restart(done, still_open)
        )

    def _push(self, deltas: tuple[Delta, ...]) -> Awaitable[None] | None:
        """Record deltas in the response, and write the events that result. Returns an awaitable if
        the writes must be waited for, or if the deltas must be persisted before the next ones."""
        if self._timer_write is not None:
            return self._push_after(self._timer_write, deltas)
        self._has_deltas = True
        recorder, writer = self.recorder, self._writer
        if self._is_steered and finish_of(deltas) is None:
            self._record_to_boundary(deltas)
        else:
            recorder.record(deltas)
        rest = self._sink.write(writer.take()) if writer.pending else None
        if rest is None and not recorder.checkpoint_pending:
            return None
        return self._wait_for_sink(rest)

    def _record_to_boundary(self, deltas: tuple[Delta, ...]) -> None:
        """Record deltas up to the first boundary, and stop the reply there."""
        for delta in deltas:
            if isinstance(delta, Open):
                self.recorder.close_current()
            self._stop_at_boundary()
            self.recorder.record((delta,))
        self._stop_at_boundary()

    def _stop_at_boundary(self) -> None:
        if self._is_steered and self.recorder.is_at_boundary:
            raise _Steered

    async def _push_after(self, timer_write: Awaitable[None], deltas: tuple[Delta, ...]) -> None:
        """Wait for a write that a timer has started, then push the deltas."""
        await timer_write
        if (rest := self._push(deltas)) is not None:
            await rest

    async def _wait_for_sink(self, rest: Awaitable[None] | None) -> None:
        """Wait for a write, and until the deltas are persisted if the recorder demands it."""
        if rest is not None:
            await self._await_write(rest)
        if self.recorder.checkpoint_pending:
            self.recorder.checkpoint_pending = False
            await self._sink.flush()

    def _terminal_status(self) -> tuple[str, str | None]:
        """Return the final status of the response, and the reason if the status is
        ``incomplete``."""
        if self._has_stopped:
            return "incomplete", "steered"
        if self.recorder.is_truncated:
            return "incomplete", "max_output_tokens"
        reason = _INCOMPLETE.get(self.recorder.finish_reason)
        return ("completed", None) if reason is None else ("incomplete", reason)

    async def _finish(self) -> None:
        """Persist the response, then send its terminal event. In this order, a client that has
        received the event can already continue the response."""
        spec, writer, recorder = self._spec, self._writer, self.recorder
        status, reason = self._terminal_status()
        response = writer.finalize(
            status,
            at=int(spec.clock()),
            usage=self._steered_usage() if self._has_stopped else recorder.usage,
            reason=reason,
            tool_usage=recorder.tool_usage or UNSET,
            matched_stop=UNSET if recorder.stop_text is None else recorder.stop_text,
        )
        if extra_fields := spec.reply.final_fields(recorder.token_log, response.output):
            response = writer.amend(**extra_fields)
        stored = StoredResponse(
            response=response,
            input=spec.input,
            tokens=self._tokens(),
            times=writer.timer.times,
        )
        if spec.save is not None:
            await self._flush()
            await spec.save(stored)
        else:
            self._count(response)
        await self._emit_end(stored)

    async def _fail_response(self, error: RunError) -> None:
        """End the run, and give the response the status ``failed``. If the failure can still be
        reported as an HTTP error, raise ``error`` instead of sending events."""
        if error.__cause__ is not None:  # an unexpected exception
            _log.error("run failed", response=self.id, exc_info=error.__cause__)
        if self._may_fail_early and not self._has_deltas and not self._sink.has_sent:
            self._ended = True
            self.response = self._writer.finalize(
                "failed", at=int(self._spec.clock()), usage=Usage(), error=_response_error(error)
            )
            self._count(self.response)
            raise error
        response = self._writer.finalize(
            "failed",
            at=int(self._spec.clock()),
            usage=self.recorder.usage or self._partial_usage(),
            error=_response_error(error),
            tool_usage=self.recorder.tool_usage or UNSET,
        )
        stored = StoredResponse(
            response=response, input=self._spec.input, times=self._writer.timer.times
        )
        if self._spec.save is not None:
            await self._flush()
            try:
                await self._spec.save(stored)
            except RunError:
                _log.warning("cannot store a failed response", response=self.id)
                self._count(response)
        else:
            self._count(response)
        await self._emit_end(stored)

    def _cancel_response(self) -> None:
        """Set the status of the response to ``cancelled``. No event is sent, because there is no
        reader."""
        if not self._ended:
            self._ended = True
            self.response = self._writer.finalize(
                "cancelled", at=int(self._spec.clock()), usage=None
            )
            self._count(self.response, self._partial_usage())

    def _count(self, response: Response, usage: Usage | None = None) -> None:
        """Call ``RunSpec.count`` for a response that ``RunSpec.save`` does not store, so that its
        usage is counted. ``usage``: the usage to count instead of the response's own usage."""
        if self._spec.count is not None:
            self._spec.count(response, usage)

    async def _emit_end(self, stored: StoredResponse) -> None:
        """Unlock the conversation, then send the last events. In this order, a client that has
        received the last event can already continue the conversation."""
        self._ended = True
        self.response = stored.response
        self.chain = (*self.chain, stored)
        await self._spec.release()
        self._writer.emit_terminal()
        if self._timer_write is not None:
            await self._timer_write
        await self._sink.end(self._writer.take(), stored)

    def _partial_usage(self) -> Usage:
        """Return the usage of a run that did not complete. It is never null, because with a null
        usage some clients would retry forever."""
        reply = self._spec.reply
        prompt, sampled = reply.input_tokens, len(self.recorder.token_log)
        if reply.prompt_tokens is not None:
            prompt, sampled = total_counts(reply.prompt_tokens.ids, self.recorder.token_log)
        return Usage(input_tokens=prompt, output_tokens=sampled, total_tokens=prompt + sampled)

    def _steered_usage(self) -> Usage:
        """Return the usage of a response that ended early. The output tokens are an estimate if
        only an upstream counts tokens."""
        usage = self._partial_usage()
        if self.recorder.token_log:
            return usage
        sampled = sum(map(estimate_tokens, self._writer.items))
        return replace(usage, output_tokens=sampled, total_tokens=usage.input_tokens + sampled)

    def _tokens(self) -> TurnTokens | None:
        """Return the token ids of this turn, for storage. The ids at the beginning that are the
        same as in the conversation before this response are left out. Returns None if the prompt's
        token ids are unknown."""
        prompt = self._spec.reply.prompt_tokens
        if prompt is None:
            return None
        base = 0
        parent = self._spec.parent_tokens
        last, sampled = last_turn(prompt.ids, self.recorder.token_log)
        if parent is not None and parent.fingerprint == prompt.fingerprint:
            base = common_prefix_length(parent.ids, last)
        added = array("I", last[base:])
        added.extend(sampled)
        return TurnTokens(base=base, ids=added.tobytes(), fingerprint=prompt.fingerprint)

    # --- writing events --------------------------------------------------------------------------

    async def _flush(self) -> None:
        """Write the pending events. If a timer has started a write, wait for that write first."""
        if self._timer_write is not None:
            await self._timer_write
        if (rest := self._sink.write(self._writer.take())) is not None:
            await self._await_write(rest)

    async def _await_write(self, rest: Awaitable[None]) -> None:
        self._is_writing = True
        await rest
        self._is_writing = False

    def _keep_alive(self) -> None:
        """Keep the connection open if no event was emitted since the last check: emit a keepalive
        event, or a comment if the client does not accept keepalive events. One timer per run checks
        every ``keepalive_s / 2`` seconds."""
        if self._spec.keepalive_s <= 0 or self._ended or not self._writer.has_reader:
            return
        writer = self._writer
        is_idle = writer.number == self._checked_number and not self._is_writing
        if is_idle and self._timer_write is None and not self._is_refused:
            if self._spec.keepalive_events:
                writer.keepalive()
            # Owned by the run: each later write, and the end of the run, awaits it first.
            self._timer_write = asyncio.create_task(self._write_from_timer(writer.take()))
        self._checked_number = writer.number
        self._keepalive_timer = asyncio.get_running_loop().call_later(
            self._spec.keepalive_s / 2, self._keep_alive
        )

    def _write_first_events(self) -> None:
        """Send the first events before the first delta has arrived. If an upstream still refuses
        the request (``_is_refused``), send nothing, and start a timer that calls this method
        again."""
        if self._is_refused:
            self._first_write_timer = asyncio.get_running_loop().call_later(
                _HOLD_CHECK_S, self._write_first_events
            )
            return
        has_started = self._ended or self._has_deltas or self._sink.has_sent
        if not has_started and self._timer_write is None:
            # Awaited by the next write; see ``_keep_alive``.
            self._timer_write = asyncio.create_task(self._write_from_timer(self._writer.take()))

    @property
    def _is_refused(self) -> bool:
        """Whether the first events must be held back because an upstream has refused the request
        and the request is being retried. As long as no event was sent, the client gets an HTTP
        error if all retries fail.

        False if the run has ended, if something was already sent, or if the time limit for holding
        back the events has passed.
        """
        return (
            self._retry_state.is_retrying
            and not self._ended
            and not self._sink.has_sent
            and asyncio.get_running_loop().time() < self._hold_until
        )

    async def _write_from_timer(self, events: tuple[Event, ...]) -> None:
        """Write events while ``drive`` waits for the model. ``ReaderGone`` is ignored here, because
        the next write of ``drive`` raises it again."""
        try:
            rest = self._sink.write(events) if events else self._sink.write_comment()
            if rest is not None:
                await rest
        except ReaderGone:
            pass
        finally:
            self._timer_write = None


def _response_error(error: RunError) -> ResponseError:
    """Return the value of the response's ``error`` field for this error."""
    code = response_code(error.code)
    return ResponseError(
        code=code,
        message=error.client_message,
        type=error.type,
        param=error.param,
        original_code=UNSET if code == error.code else error.code,
    )


def _rejection_error(error: RequestError) -> RunError:
    """Return the ``BackendError`` with which a run fails if a ``RequestError`` is raised after the
    run has started. At this point, the request can no longer be rejected."""
    return BackendError(
        error.message, code=error.code or "invalid_prompt", param=error.param, permanent=True
    )

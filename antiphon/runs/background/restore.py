"""Restores an interrupted run from its stored events. Also defines the reply of a run that cannot
be continued."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from msgspec import Struct

from antiphon.backends.base import DeltaSink, Reply
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.errors import RunError
from antiphon.inference.conversation import ResumePoint
from antiphon.runs.execution.token_log import last_turn, turn_counts
from antiphon.store.records import EventBatch, Job
from antiphon.stream.deltas import NewPrompt
from antiphon.stream.fold import Fold
from antiphon.stream.kinds import ItemKind
from antiphon.stream.run_timer import LoggedTimes, OptionalClock
from antiphon.stream.writer import Ids, ResponseWriter
from antiphon.support.push import send
from antiphon.wire.items import ItemBase
from antiphon.wire.timeline import RunTimes

from .event_codec import decode_events


class RestoredRun(Struct, frozen=True):
    """The stored state of an interrupted run.

    ``log``: the state of the response after all stored events. ``tokens``: the token log so far,
    which contains the sampled token ids. ``prompt``: the token ids of the run's first prompt.
    ``next_event``: the sequence number of the next event. ``times``: when the run and its items
    started and ended.
    """

    log: Fold
    tokens: array[int]
    prompt: array[int]
    next_event: int
    times: RunTimes

    @classmethod
    def load(
        cls, job: Job, batches: tuple[EventBatch, ...], kinds: Mapping[type[ItemBase], ItemKind]
    ) -> RestoredRun:
        """Read the state from all stored events of the run. ``batches``: the events in batches, as
        they were stored. ``kinds``: the table of item kinds."""
        log, times = Fold(kinds), LoggedTimes(kinds)
        tokens, prompt = array("I"), array("I")
        for batch in batches:
            tokens.frombytes(batch.tokens)
            for event in decode_events((batch,)):
                log.feed(event)
                times.feed(event, batch.at)
        prompt.frombytes(job.prompt)
        return cls(log, tokens, prompt, batches[-1].last + 1, times.times)

    def writer(
        self, *, ids: Ids, kinds: Mapping[type[ItemBase], ItemKind], clock: OptionalClock
    ) -> ResponseWriter:
        """Create a writer that continues the event log after its last event."""
        return ResponseWriter.restore(
            self.log,
            ids=ids,
            kinds=kinds,
            number=self.next_event,
            clock=clock,
            times=self.times,
        )

    @property
    def is_answered(self) -> bool:
        """Whether the model had written its answer to the end: no item is open, and the item that
        was completed last is a message that is not a comment before further work. Calls of tools
        are completed after all that the model wrote with them."""
        last = next(reversed(self.log.done_items.values()), None)
        return (
            not self.log.open_items
            and last is not None
            and last.is_message
            and last.status == "completed"
            and last.phase != "commentary"
        )

    def resume_point(self) -> ResumePoint:
        """Return the state from which the reply continues."""
        prompt, sampled = last_turn(self.prompt, self.tokens)
        log = self.log
        done = tuple(log.done_items[index] for index in sorted(log.done_items))
        still_open = tuple(
            log.open_items[index].item("in_progress") for index in sorted(log.open_items)
        )
        turns = turn_counts(self.prompt, self.tokens)
        return ResumePoint(tuple(prompt), tuple(sampled), done, still_open, turns)


class FailedReply(Reply):
    """``Reply`` of a run that cannot be continued. Its ``pump`` raises ``error``."""

    input_tokens = 0

    def __init__(self, error: RunError) -> None:
        self._error = error

    def resume(self, point: ResumePoint) -> Reply:
        return self

    async def pump(self, sink: DeltaSink) -> None:
        raise self._error


class PromptedReply(ReplyWrapper):
    """``Reply`` of a run whose job contains no prompt. Its prompt is stored with its first events,
    so that the run can be continued. ``ids``: the token ids of the prompt."""

    def __init__(self, reply: Reply, ids: tuple[int, ...]) -> None:
        super().__init__(reply)
        self._ids = ids

    async def pump(self, sink: DeltaSink) -> None:
        await send(sink, (NewPrompt(self._ids),))
        await self._reply.pump(sink)

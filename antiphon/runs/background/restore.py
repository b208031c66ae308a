"""What is left of a run that was begun elsewhere: its log and tokens, or a reply that only tells
why it cannot go on."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Mapping

from antiphon.backends.base import Reply
from antiphon.conversation import ResumePoint
from antiphon.errors import RunError
from antiphon.runs.execution.token_log import last_turn, turn_counts
from antiphon.store.records import Batch, Job
from antiphon.stream.deltas import Delta
from antiphon.stream.fold import Fold
from antiphon.stream.kinds import Kind
from antiphon.wire.items import ItemBase

from .event_codec import decoded

__all__ = ["FailedReply", "prompt_ids", "restored", "resume_point"]


def restored(
    batches: tuple[Batch, ...], kinds: Mapping[type[ItemBase], Kind]
) -> tuple[Fold, array[int], int]:
    """What a log amounts to, the token ids behind it, and the number of the next event."""
    log, tokens = Fold(kinds), array("I")
    for event in decoded(batches):
        log.feed(event)
    for batch in batches:
        tokens.frombytes(batch.tokens)
    return log, tokens, batches[-1].last + 1


def resume_point(job: Job, tokens: array[int], log: Fold) -> ResumePoint:
    """Where the run was interrupted."""
    prompt, sampled = last_turn(prompt_ids(job), tokens)
    done = tuple(log.items[at] for at in sorted(log.items))
    still = tuple(log.open[at].item("in_progress") for at in sorted(log.open))
    turns = turn_counts(prompt_ids(job), tokens)
    return ResumePoint(tuple(prompt), tuple(sampled), done, still, turns)


def prompt_ids(job: Job) -> array[int]:
    """The prompt a background run began with."""
    prompt = array("I")
    prompt.frombytes(job.prompt)
    return prompt


class FailedReply:
    """``Reply`` of a run that cannot go on."""

    kept = None
    dropped: tuple[str, ...] = ()
    input_tokens = 0

    def __init__(self, error: RunError) -> None:
        self._error = error

    def resumed(self, begun: ResumePoint) -> Reply:
        return self

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        raise self._error
        yield

"""Replies that stand for one that was interrupted and that cannot continue at its last token:
because its model reports no token ids, or because it was interrupted after its last item."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.backends.base import DeltaSink, Reply
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.errors import CannotContinue
from antiphon.inference.conversation import ResumePoint
from antiphon.runs.history.visible_history import estimate_tokens
from antiphon.stream.deltas import Close, Delta, Finish
from antiphon.stream.kinds import KINDS
from antiphon.support.push import send
from antiphon.wire.items import Item
from antiphon.wire.response import Usage

#: Unfinished items that restarts may leave in one response.
_MAX_UNFINISHED = 3


class FinishedReply(ReplyWrapper):
    """``Reply`` that only ends, because all its items are complete. The usage that the upstream
    counted was lost, so the usage is an estimate. ``point``: where the response was interrupted."""

    def __init__(self, reply: Reply, point: ResumePoint) -> None:
        super().__init__(reply)
        self._items = point.items

    async def pump(self, sink: DeltaSink) -> None:
        read = self._reply.input_tokens
        written = sum(
            estimate_tokens(item) for item in self._items if KINDS[type(item)].written_by_model
        )
        usage = Usage(input_tokens=read, output_tokens=written, total_tokens=read + written)
        await send(sink, (Finish("stop", usage),))


class RestartedReply(ReplyWrapper):
    """``Reply`` that first closes the items that were open at the interruption, as ``incomplete``,
    and then calls the model again. Finished items stay; of the calls of the model before, only the
    interrupted one is repeated.

    ``point``: where the response was interrupted. Raises ``CannotContinue`` if the interrupted call
    of the model has called a tool of the client, because the client would run two calls, or if the
    response was restarted too often.
    """

    def __init__(self, reply: Reply, point: ResumePoint) -> None:
        if obstacle := restart_obstacle(point.items, point.open_items):
            raise CannotContinue(obstacle)
        before = replace(point, items=_before_interrupted_call(point), open_items=())
        super().__init__(reply.resume(before))
        self._closing: tuple[Delta, ...] = (Close(status="incomplete"),) * len(point.open_items)

    async def pump(self, sink: DeltaSink) -> None:
        await send(sink, self._closing)
        await self._reply.pump(sink)


def restart_obstacle(done: Sequence[Item], still_open: Sequence[Item]) -> str | None:
    """Return why a response with these items cannot be restarted, or None if it can be."""
    if any(_is_client_call(item) for item in (*done, *still_open)):
        return "this model does not report its token ids, and called a tool"
    unfinished = [item for item in done if getattr(item, "status", "") == "incomplete"]
    return "it was interrupted too often" if len(unfinished) >= _MAX_UNFINISHED else None


def _before_interrupted_call(point: ResumePoint) -> tuple[Item, ...]:
    """Return the finished items without those at the end that the interrupted call of the model, or
    an earlier attempt at it, has written. The client has already got an asynchronous call, so it
    stays."""
    items = list(point.items)
    while items and KINDS[type(items[-1])].written_by_model and items[-1].async_ is not True:
        items.pop()
    return tuple(items)


def _is_client_call(item: Item) -> bool:
    kind = KINDS[type(item)]
    return bool(kind.call_name) and not kind.runs_here and item.async_ is not True

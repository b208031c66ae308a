"""A reply that was interrupted after its last item, before its run ended."""

from __future__ import annotations

from antiphon.backends.base import DeltaSink, Reply
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.inference.conversation import ResumePoint
from antiphon.runs.history.visible_history import estimate_tokens
from antiphon.stream.deltas import Finish
from antiphon.stream.kinds import KINDS
from antiphon.support.push import send
from antiphon.wire.response import Usage

__all__ = ["FinishedReply"]


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

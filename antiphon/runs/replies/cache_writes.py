"""Counts the tokens that a request wrote into the prompt cache."""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec.structs import replace

from antiphon.backends.base import DeltaSink, Reply
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.inference.conversation import ResumePoint
from antiphon.stream.deltas import Delta, finish_of


class CacheCountingReply(ReplyWrapper):
    """``Reply`` whose usage has ``cache_write_tokens``: the part of the prompt that the cache keeps
    and did not have. ``share``: which share of the prompt the cache keeps."""

    def __init__(self, reply: Reply, share: float) -> None:
        super().__init__(reply)
        self.share = share

    def resume(self, point: ResumePoint) -> Reply:
        return CacheCountingReply(self._reply.resume(point), self.share)

    async def pump(self, sink: DeltaSink) -> None:
        def count(batch: tuple[Delta, ...]) -> Awaitable[None] | None:
            if (finish := finish_of(batch)) is not None:
                usage, details = finish.usage, finish.usage.input_tokens_details
                written = max(0, round(self.share * usage.input_tokens) - details.cached_tokens)
                details = replace(details, cache_write_tokens=written)
                usage = replace(usage, input_tokens_details=details)
                batch = (*batch[:-1], replace(finish, usage=usage))
            return sink(batch)

        await self._reply.pump(count)

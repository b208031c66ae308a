"""Replies that warm up the prompt cache, or count what was written into it.

A warm-up is a reply without output, for a conversation that will be continued soon. The engine
computes the prompt and generates one token, which is discarded. The next request reuses the cached
beginning of the prompt.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from antiphon.backends.base import DeltaSink, Reply
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.errors import CannotContinue
from antiphon.inference.conversation import ResumePoint
from antiphon.stream.deltas import Delta, Finish, finish_of
from antiphon.support.push import send
from antiphon.wire.items import Item
from antiphon.wire.response import Usage


class WarmupReply(ReplyWrapper):
    """``Reply`` that warms up the engine for the prompt of another reply. The engine processes this
    prompt, so that the engine's prefix cache then contains it. The ``WarmupReply`` itself yields no
    output."""

    #: The prompt is not stored, because its end is the start of an answer. The next prompt has no
    #: such end.
    prompt_tokens = None

    def resume(self, point: ResumePoint) -> Reply:
        raise CannotContinue("it was a warm-up")

    async def pump(self, sink: DeltaSink) -> None:
        with suppress(_Begun):
            await self._reply.pump(_end)
        usage = Usage(input_tokens=self.input_tokens, total_tokens=self.input_tokens)
        await send(sink, (Finish("stop", usage, is_answer=False),))

    def final_fields(self, sampled: array[int], output: tuple[Item, ...]) -> Mapping[str, Any]:
        return {}


class EmptyPromptReply(Reply):
    """``Reply`` for a warm-up without any instructions or items: there is nothing to compute."""

    input_tokens = 0

    def resume(self, point: ResumePoint) -> Reply:
        raise CannotContinue("it was a warm-up")

    async def pump(self, sink: DeltaSink) -> None:
        await send(sink, (Finish("stop", Usage(), is_answer=False),))


class _Begun(Exception):
    """Raised by the sink of the wrapped reply at its first deltas: the prompt is processed."""


def _end(batch: tuple[Delta, ...]) -> None:
    raise _Begun


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

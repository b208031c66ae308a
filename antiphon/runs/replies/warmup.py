"""Warming up: a reply that says nothing, for a conversation that will soon be continued.

The engine is asked for one token, which nobody hears: by then it has computed the prompt, and what
comes next begins from there.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from antiphon.backends.base import Reply
from antiphon.backends.wrapper import ReplyWrapper
from antiphon.conversation import ResumePoint
from antiphon.errors import CannotContinue
from antiphon.stream.deltas import Delta, Finish
from antiphon.wire.response import Usage

__all__ = ["WarmupReply"]


class WarmupReply(ReplyWrapper):
    """``Reply`` in place of the one that it warms up for."""

    #: The prompt ends in an invitation to answer, which is no part of what comes next.
    prompt_tokens = None

    def resume(self, point: ResumePoint) -> Reply:
        raise CannotContinue("it was a warm-up")

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        async with aclosing(self._reply.deltas()) as deltas:
            await anext(deltas, None)
        usage = Usage(input_tokens=self.input_tokens, total_tokens=self.input_tokens)
        yield (Finish("stop", usage),)

    def final_fields(self, sampled: array[int]) -> Mapping[str, Any]:
        return {}

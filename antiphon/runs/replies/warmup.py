"""Warming up: a reply that says nothing, for a conversation that will soon be continued.

The engine is asked for one token, which nobody hears: by then it has computed the prompt, and what
comes next begins from there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.backends.base import Reply, may_be_refused
from antiphon.conversation import ResumePoint
from antiphon.errors import CannotContinue
from antiphon.stream.deltas import Delta, Finish
from antiphon.wire.response import Usage

__all__ = ["WarmupReply"]


class WarmupReply:
    """``Reply`` in place of the one that it warms up for."""

    #: The prompt ends in an invitation to answer, which is no part of what comes next.
    kept = None

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.input_tokens = reply.input_tokens
        self.dropped = reply.dropped
        self.may_be_refused = may_be_refused(reply)

    def resumed(self, begun: ResumePoint) -> Reply:
        raise CannotContinue("it was a warm-up")

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        async with aclosing(self._reply.deltas()) as deltas:
            await anext(deltas, None)
        usage = Usage(input_tokens=self.input_tokens, total_tokens=self.input_tokens)
        yield (Finish("stop", usage),)

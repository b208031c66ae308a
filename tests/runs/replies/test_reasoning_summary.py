"""Reasoning summaries: what is known is not held back while the summary is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.backends.base import DeltaSink, Reply
from antiphon.inference.conversation import ResumePoint
from antiphon.runs.replies.reasoning_summary import SummarizedReply, Summarizer
from antiphon.stream.deltas import Delta, Finish, Open, Text
from antiphon.support.push import Sink, send
from antiphon.testing.replies import batches_of, push_all
from antiphon.wire.items import Message, Reasoning
from antiphon.wire.response import Usage

OPENED = (Open(Reasoning()), Text("Two and two."))
ANSWER = (Open(Message(role="assistant", content=())), Text("Four."), Finish("stop", Usage()))


class _AtOnce(Reply):
    """The whole reply in one batch, as upstreams and buffered replies send it."""

    input_tokens = 0

    def resume(self, point: ResumePoint) -> Reply:
        return self

    async def pump(self, sink: DeltaSink) -> None:
        await push_all(self.deltas(), sink)

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        yield (*OPENED, *ANSWER)


class _Waiting(Summarizer, frozen=True, kw_only=True):
    """Writes its summary when ``gate`` opens."""

    gate: asyncio.Event

    async def summarize(self, reasoning: str, sink: Sink[str]) -> None:
        await self.gate.wait()
        await send(sink, f"Checking: {reasoning}")


async def test_reasoning_does_not_wait_for_its_summary() -> None:
    gate = asyncio.Event()
    summarizer = _Waiting(backend=None, level="auto", gate=gate)  # type: ignore[arg-type]
    reply = SummarizedReply(_AtOnce(), summarizer)
    async with asyncio.timeout(60), aclosing(batches_of(reply)) as deltas:
        assert await anext(deltas) == OPENED
        gate.set()
        assert await anext(deltas) == (Text("Checking: Two and two.", channel="summary"),)
        assert await anext(deltas) == ANSWER

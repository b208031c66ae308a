"""Generations of engines that are asynchronous themselves: what they say becomes chunks.

A task reads each of them, so that closing an engine ends what waits for it. It knows neither the
engines nor what they are asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from msgspec import Struct

from antiphon.errors import BackendError
from antiphon.tokens import Alternative, Chunk, TokenLogprob

from .stop_conditions import StopConditions
from .thread_channel import ThreadChannel

__all__ = ["AsyncRequests", "EngineOutput", "told_token"]


class EngineOutput(Struct, frozen=True):
    """What an engine says at one time. ``reason``: its own word for why it ended, if it did."""

    tokens: list[TokenLogprob]
    reason: str | None = None
    cached: int | None = None


class AsyncRequests:
    """All that one engine generates. Belongs to the event loop."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[None], ThreadChannel] = {}
        self._closed = False

    async def chunks(
        self, said: AsyncGenerator[EngineOutput, None], endings: StopConditions
    ) -> AsyncGenerator[Chunk, None]:
        """Closing it closes ``said``, which is how an engine learns that it may stop."""
        if self._closed:
            raise BackendError("The engine is closed.")
        out = ThreadChannel(asyncio.get_running_loop())
        task = asyncio.create_task(_read(said, endings, out))
        self._running[task] = out
        task.add_done_callback(lambda task: self._running.pop(task, None))
        try:
            async for chunk in out:
                yield chunk
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """What runs fails."""
        self._closed = True
        running = dict(self._running)
        for task, out in running.items():
            out.give(BackendError("The engine is closed."))
            task.cancel()
        if running:
            await asyncio.wait(running)


async def _read(
    said: AsyncGenerator[EngineOutput, None], endings: StopConditions, out: ThreadChannel
) -> None:
    try:
        async with aclosing(said):
            async for told in said:
                if told.cached is not None:
                    out.give(Chunk(cached_tokens=told.cached))
                chunk = endings.feed(told.tokens) or _finished(told, endings)
                if chunk is not None:
                    out.give(chunk)
                if endings.over:
                    return
        out.give(BackendError("The engine stopped without saying why."))
    except Exception as error:
        out.fail(error)


def _finished(told: EngineOutput, endings: StopConditions) -> Chunk | None:
    if told.reason is None:
        return None
    if told.reason in ("stop", "length"):
        return endings.finish("stop" if told.reason == "stop" else "length")
    raise BackendError(f"The engine ended it: {told.reason}.")


def told_token(id: int, known: Mapping[int, Any] | None, asked: int | None) -> TokenLogprob:
    """A sampled token as vLLM and TensorRT-LLM tell it: ``known`` are the likeliest ids and the
    sampled one, each with its ``logprob``; ``asked``: how many alternatives are wanted."""
    if known is None:
        return TokenLogprob(id, 0.0)
    best = sorted(((each.logprob, other) for other, each in known.items()), reverse=True)
    top = tuple(Alternative(other, _finite(logprob)) for logprob, other in best[: asked or 0])
    return TokenLogprob(id, _finite(known[id].logprob), top)


def _finite(logprob: float) -> float:
    """JSON has no infinity. In this order what is no number is the least, too."""
    return max(-9999.0, logprob)

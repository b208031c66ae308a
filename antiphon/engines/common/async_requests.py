"""Turn the outputs of an asynchronous engine into chunks.

For each request, a separate task reads the engine's outputs and sends chunks over a channel to the
consumer. If the engine is closed, ``close`` sends an error over the same channel, so no consumer
waits forever.

The number of requests in the engine is limited. Further requests wait in this module and not in
the engine's queue, because the engine's queue does not let tenants take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from msgspec import Struct

from antiphon.engines.base import Sampling
from antiphon.errors import BackendError
from antiphon.inference.tokens import Alternative, Chunk, TokenLogprob
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.tasks import BackgroundTasks

from .stop_conditions import StopConditions
from .thread_channel import ThreadChannel


class EngineOutput(Struct, frozen=True):
    """One output of an asynchronous engine: the new tokens of one request.

    ``reason``: the engine's finish reason; None before the last output. ``cached_tokens``: number
    of prompt tokens taken from the cache; None if this output does not report the number.
    """

    tokens: list[TokenLogprob]
    reason: str | None = None
    cached_tokens: int | None = None


class AsyncRequests:
    """Runs the requests of one engine, at most ``max_concurrent`` at a time.

    All methods must be called on the same event loop.
    """

    def __init__(self, max_concurrent: int) -> None:
        self._slots = FairLimiter(max_concurrent)
        self._running: dict[asyncio.Task[None], ThreadChannel] = {}
        self._tasks = BackgroundTasks("request of an engine")
        self._closed = False

    async def chunks(
        self,
        outputs: AsyncGenerator[EngineOutput, None],
        stop_conditions: StopConditions,
        sampling: Sampling,
    ) -> AsyncGenerator[Chunk, None]:
        """Wait until fewer than ``max_concurrent`` requests run. Then run one request and yield its
        chunks.

        ``outputs``: the engine's outputs for the request. The first read of ``outputs`` starts the
        request. Closing the returned iterator closes ``outputs``, which aborts the request. Waiting
        tenants take turns. The requests of one tenant are ordered by priority.
        """
        async with self._slots.slot(sampling.tenant, priority=sampling.priority or 0):
            chunks = self._chunks(outputs, stop_conditions)
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk

    async def _chunks(
        self, outputs: AsyncGenerator[EngineOutput, None], stop_conditions: StopConditions
    ) -> AsyncGenerator[Chunk, None]:
        if self._closed:
            raise BackendError("The engine is closed.")
        out = ThreadChannel(asyncio.get_running_loop())
        task = self._tasks.start(_read(outputs, stop_conditions, out))
        self._running[task] = out
        task.add_done_callback(lambda task: self._running.pop(task, None))
        try:
            async for chunk in out:
                yield chunk
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """Abort all running requests. Their consumers get a ``BackendError``."""
        self._closed = True
        for out in self._running.values():
            out.send(BackendError("The engine is closed."))
        await self._tasks.close()


async def _read(
    outputs: AsyncGenerator[EngineOutput, None], stop_conditions: StopConditions, out: ThreadChannel
) -> None:
    try:
        async with aclosing(outputs):
            async for output in outputs:
                if output.cached_tokens is not None:
                    out.send(Chunk(cached_tokens=output.cached_tokens))
                chunk = stop_conditions.feed(output.tokens) or _final_chunk(output, stop_conditions)
                if chunk is not None:
                    out.send(chunk)
                if stop_conditions.finished:
                    return
        out.send(BackendError("The engine stopped without a finish reason."))
    except Exception as error:
        out.fail(error)


def _final_chunk(output: EngineOutput, stop_conditions: StopConditions) -> Chunk | None:
    if output.reason is None:
        return None
    if output.reason in ("stop", "length"):
        return stop_conditions.finish("stop" if output.reason == "stop" else "length")
    raise BackendError(f"The engine ended the generation: {output.reason}.")


def token_logprob(
    id: int, candidates: Mapping[int, Any] | None, top_count: int | None
) -> TokenLogprob:
    """Convert the log-probabilities that vLLM and TensorRT-LLM report for one sampled token.

    ``candidates``: the likeliest ids and the sampled id, each mapped to an object with a
    ``logprob``. If the request asks for no log-probabilities, ``candidates`` is None, and the
    result has the log-probability 0. ``top_count``: the requested number of alternatives.
    """
    if candidates is None:
        return TokenLogprob(id, 0.0)
    best = sorted(((each.logprob, other) for other, each in candidates.items()), reverse=True)
    top = tuple(Alternative(other, _finite(logprob)) for logprob, other in best[: top_count or 0])
    return TokenLogprob(id, _finite(candidates[id].logprob), top)


def _finite(logprob: float) -> float:
    """Return ``logprob``, or -9999 if ``logprob`` is NaN or lower than -9999. JSON has neither NaN
    nor infinity.

    For NaN, ``max`` returns -9999 only if -9999 is its first argument.
    """
    return max(-9999.0, logprob)

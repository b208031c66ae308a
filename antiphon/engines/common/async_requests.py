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

from antiphon.engines.base import Sampling
from antiphon.errors import BackendError
from antiphon.inference.tokens import Chunk, TokenLogprob
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.tasks import BackgroundTasks

from .logprobs import finite, top_alternatives
from .stop_conditions import EngineOutput, StopConditions
from .thread_channel import ThreadChannel


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
                if (chunk := stop_conditions.take(output)) is not None:
                    out.send(chunk)
                if stop_conditions.finished:
                    return
        out.send(BackendError("The engine stopped without a finish reason."))
    except Exception as error:
        out.fail(error)


def token_logprob(
    id: int, candidates: Mapping[int, Any] | None, top_count: int | None
) -> TokenLogprob:
    """Convert the log-probabilities that vLLM reports for one sampled token.

    ``candidates``: the likeliest ids and the sampled id, each mapped to an object with a
    ``logprob``. If the request asks for no log-probabilities, ``candidates`` is None, and the
    result has the log-probability 0. ``top_count``: the requested number of alternatives.
    """
    if candidates is None:
        return TokenLogprob(id, 0.0)
    others = ((other, each.logprob) for other, each in candidates.items())
    return TokenLogprob(id, finite(candidates[id].logprob), top_alternatives(others, top_count))

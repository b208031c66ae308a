"""Generations that outlive the process of their engine, or the upstream that generated them. They
continue after their last token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

import structlog
from msgspec.structs import replace

from antiphon.engines.base import Engine, Sampling
from antiphon.errors import BackendError, EngineLost
from antiphon.inference.tokens import Chunk, Prompt

_log = structlog.get_logger(__name__)

#: How often a generation may lose its process one time after another without a new token. Its
#: request may be what ends the process.
_MAX_STALLED = 3
#: How often a generation may lose its process at all.
_MAX_LOSSES = 10


class ContinuedEngine:
    """``Engine`` that continues the generations of ``inner`` that break off. ``close`` also closes
    ``inner``.

    If a process ended, the next request starts it again. The generations that lost it begin again
    one at a time, each when the one before has a token. So a request that ends the process each
    time fails alone, and the others go on.
    """

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self._restarting = asyncio.Lock()
        self.card = inner.card
        self.tokenizer = inner.tokenizer
        self.capabilities = inner.capabilities

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """See ``Engine.generate``. If no token is left to generate, also after a loss, the
        generation ends without a request. Raises ``EngineLost`` if a constraint applies to the
        tokens before the loss, because an engine cannot start in the middle of a grammar."""
        sampled: list[int] = []
        losses = stalled = 0
        attempt = self._inner.generate(prompt, sampling)
        while (count := len(sampled)) < sampling.max_tokens:
            try:
                async with aclosing(attempt) as chunks:
                    async for chunk in chunks:
                        sampled += chunk.ids
                        yield chunk
                return
            except EngineLost as lost:
                if sampling.constraint is not None and 0 < len(sampled) < sampling.max_tokens:
                    raise
                losses, stalled = losses + 1, 0 if len(sampled) > count else stalled + 1
                if stalled >= _MAX_STALLED or losses > _MAX_LOSSES:
                    raise _lost_too_often(losses) from None
                _log.warning("a generation broke off, it continues", tokens=len(sampled))
                is_process = lost.failure is None
                sampling = replace(sampling, retry=lost.retry)
            attempt = self._continue(prompt, sampling, sampled, is_process=is_process)
        yield Chunk(finish="length")

    async def _continue(
        self, prompt: Prompt, sampling: Sampling, sampled: list[int], *, is_process: bool
    ) -> AsyncGenerator[Chunk, None]:
        """Generate the tokens after ``sampled``. ``is_process``: whether a process was lost."""
        if sampled:
            prompt, sampling = prompt.followed_by(sampled), sampling.after(sampled)
        async with AsyncExitStack() as turn:
            if is_process:
                await turn.enter_async_context(self._restarting)
            async with aclosing(self._inner.generate(prompt, sampling)) as chunks:
                async for chunk in chunks:
                    if chunk.ids:
                        await turn.aclose()
                    # This generation's own tokens may be in the cache, too.
                    yield replace(chunk, cached_tokens=None) if sampled else chunk

    async def close(self) -> None:
        await self._inner.close()


def _lost_too_often(losses: int) -> BackendError:
    return BackendError(
        f"The engine's process ended {losses} times during this response. Perhaps the request needs"
        " more memory than the server has.",
        permanent=True,
    )

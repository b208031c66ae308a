"""Chunks from a thread to the event loop, in as few wake-ups as the consumer's pace allows.

It knows neither engines nor what is in a chunk, but how two become one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence

from antiphon.errors import AntiphonError, BackendError
from antiphon.tokens import Chunk

__all__ = ["ThreadChannel", "merge_chunks"]


class ThreadChannel:
    """One generation's way out. ``give`` belongs to any thread, the rest to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._queue: list[Chunk | AntiphonError] = []
        self._wakeup = asyncio.Event()

    def send(self, item: Chunk | AntiphonError) -> bool:
        """False: nobody will read it, the loop was closed."""
        with self._lock:
            waiting = bool(self._queue)
            self._queue.append(item)
        if waiting:  # a wake-up is on its way already
            return True
        try:
            self._loop.call_soon_threadsafe(self._wakeup.set)
        except RuntimeError:
            return False
        return True

    def fail(self, error: BaseException) -> bool:
        """Give an error: one that nobody expected is the cause of the engine's failure. Its words
        are for the log, not for clients. As ``give``."""
        if isinstance(error, AntiphonError):
            return self.send(error)
        failure = BackendError("The engine failed.")
        failure.__cause__ = error
        return self.send(failure)

    async def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        """What is there, joined, as soon as something is; ends with the chunk that has a reason.
        Raises the error that was given."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            with self._lock:
                ready, self._queue = self._queue, []
            chunk = merge_chunks([each for each in ready if isinstance(each, Chunk)])
            if chunk is not None:
                yield chunk
                if chunk.finish:
                    return
            for each in ready:
                if isinstance(each, AntiphonError):
                    raise each


def merge_chunks(chunks: Sequence[Chunk]) -> Chunk | None:
    """What came since the consumer last looked, as one chunk."""
    if len(chunks) <= 1:
        return chunks[0] if chunks else None
    last = chunks[-1]
    cached = [c.cached_tokens for c in chunks if c.cached_tokens is not None]
    return Chunk(
        ids=tuple(id for c in chunks for id in c.ids),
        logprobs=tuple(p for c in chunks for p in c.logprobs),
        finish=last.finish,
        cached_tokens=cached[0] if cached else None,
        stop_text=last.stop_text,
        tail=last.tail,
        untold=last.untold,
    )

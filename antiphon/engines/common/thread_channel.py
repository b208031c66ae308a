"""Channels that pass chunks from an engine to the reader of a generation.

Chunks that arrive while the consumer is busy are merged into one chunk. So the event loop is woken
less often.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence

from antiphon.errors import AntiphonError, BackendError
from antiphon.inference.tokens import Chunk


class ChunkChannel:
    """Passes the chunks of one generation to its reader on the same event loop."""

    def __init__(self) -> None:
        self._queue: list[Chunk | AntiphonError] = []
        self._wakeup = asyncio.Event()

    def send(self, item: Chunk | AntiphonError) -> bool:
        """Send a chunk or an error. Returns False if nobody can read it any more."""
        self._queue.append(item)
        self._wakeup.set()
        return True

    def fail(self, error: BaseException) -> bool:
        """Send an error. Returns False if nobody can read it any more.

        An ``AntiphonError`` is sent as it is. Any other exception is sent as the cause of a
        ``BackendError`` with a general message. Clients see only the general message. The text of
        the exception goes to the log.
        """
        if isinstance(error, AntiphonError):
            return self.send(error)
        failure = BackendError("The engine failed.")
        failure.__cause__ = error
        return self.send(failure)

    def _take(self) -> list[Chunk | AntiphonError]:
        ready, self._queue = self._queue, []
        return ready

    async def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        """Yield merged chunks until a chunk has a finish reason. If an error was sent, raise the
        error."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            ready = self._take()
            chunk = merge_chunks([each for each in ready if isinstance(each, Chunk)])
            if chunk is not None:
                yield chunk
                if chunk.finish:
                    return
            for each in ready:
                if isinstance(each, AntiphonError):
                    raise each


class ThreadChannel(ChunkChannel):
    """Passes the chunks of one generation from an engine's thread to the event loop.

    ``send`` and ``fail`` may be called from any thread. They return False if the event loop is
    closed. The channel is created and read on the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._lock = threading.Lock()

    def send(self, item: Chunk | AntiphonError) -> bool:
        with self._lock:
            waiting = bool(self._queue)
            self._queue.append(item)
        if waiting:  # a wake-up is already scheduled
            return True
        try:
            self._loop.call_soon_threadsafe(self._wakeup.set)
        except RuntimeError:
            return False
        return True

    def _take(self) -> list[Chunk | AntiphonError]:
        with self._lock:
            return super()._take()


def merge_chunks(chunks: Sequence[Chunk]) -> Chunk | None:
    """Merge chunks, in order, into one chunk. Return None if ``chunks`` is empty."""
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
        unreported_tokens=last.unreported_tokens,
        gives_way=last.gives_way,
    )

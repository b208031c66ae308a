"""Embedders for models that block the thread while they compute. One thread for each embedder
computes the vectors, in small batches of texts.

A cancelled request stops after its current batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from antiphon.errors import BackendError

from .base import EmbeddingResult, Role, Vector

__all__ = ["ThreadedEmbedder"]

Texts = Sequence[str | Sequence[int]]

#: Texts per call.
_BATCH_SIZE = 16


class ThreadedEmbedder:
    """``Embedder`` that computes vectors by calling a blocking function. The function runs on a
    separate thread, one call at a time.

    ``call``: the function, which gets one batch of texts and returns their vectors and the number
    of tokens. ``release``: frees the model.
    """

    def __init__(
        self,
        call: Callable[[Texts, Role], tuple[list[Vector], int]],
        release: Callable[[], None],
        *,
        dimensions: int,
        vocabulary_size: int | None = None,
    ) -> None:
        self._call = call
        self._release = release
        self.dimensions = dimensions
        self.vocabulary_size = vocabulary_size
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embeddings")
        self._closed = False

    async def embed(self, texts: Texts, role: Role = "query") -> EmbeddingResult:
        loop = asyncio.get_running_loop()
        vectors: list[Vector] = []
        tokens = 0
        for start in range(0, len(texts), _BATCH_SIZE):
            if self._closed:
                raise BackendError("The model is closed.")
            some = texts[start : start + _BATCH_SIZE]
            made, read = await loop.run_in_executor(self._thread, self._call, some, role)
            vectors += made
            tokens += read
        return EmbeddingResult(tuple(vectors), tokens)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown)
        self._release()

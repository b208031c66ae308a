"""An embedder without a model, for tests: texts with the same words have similar vectors."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence

from antiphon.embeddings.base import EmbeddingResult, Role, Text, Vector, truncate_vector
from antiphon.errors import BackendError


class WordEmbedder:
    """``Embedder`` without a model. Each word increments one component of the text's vector. The
    hash of the word selects the component.

    For the token count, a word is one token. If an input consists of token ids, the ids must be
    below ``vocabulary_size``. While ``error`` is set, every call raises this error.
    """

    vocabulary_size: int | None = 1000

    def __init__(self, dimensions: int = 64) -> None:
        self.dimensions = dimensions
        self.error: Exception | None = None
        self.closed = False
        #: The texts and the role of each call, in the order of the calls.
        self.requests: list[tuple[tuple[str | tuple[int, ...], ...], Role]] = []

    async def embed(
        self, texts: Sequence[Text], role: Role = "query", *, tenant: str = ""
    ) -> EmbeddingResult:
        if self.closed:
            raise BackendError("The model is closed.")
        inputs = tuple(text if isinstance(text, str) else tuple(text) for text in texts)
        self.requests.append((inputs, role))
        if self.error is not None:
            raise self.error
        words = [_words(text) for text in inputs]
        return EmbeddingResult(tuple(map(self._vector, words)), sum(map(len, words)))

    def _vector(self, words: Sequence[str]) -> Vector:
        counts = array("f", bytes(4 * self.dimensions))
        for word in words or ("",):
            counts[zlib.crc32(word.encode()) % self.dimensions] += 1
        return truncate_vector(counts, self.dimensions)

    async def close(self) -> None:
        self.closed = True


def _words(text: str | tuple[int, ...]) -> list[str]:
    return text.lower().split() if isinstance(text, str) else [str(id) for id in text]

"""Embedders for models that block the thread while they compute.

One long text must not make all other clients wait, so the work is divided: ``split`` cuts texts
into pieces that the model reads in a bounded time, and short pieces are joined to batches of the
same size. Tenants take turns batch by batch, and a cancelled request stops after its current batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from antiphon.errors import CONTEXT_LENGTH_EXCEEDED, InvalidRequest
from antiphon.support.fair_threads import TurnThread

from .base import EmbeddingResult, Role, Text, Vector, truncate_vector

#: Tokens that the model reads in one batch, unless a single piece is longer. This is how long a
#: client can have to wait for the batch of another one.
WINDOW_TOKENS = 512
#: Pieces per batch.
_BATCH_SIZE = 16
#: OpenAI's limits of its embedding models: tokens of a text, and of all texts of a request.
_MAX_TEXT_TOKENS = 8_192
_MAX_TOKENS = 300_000


class Piece(Struct, frozen=True):
    """A text, or a part of a text, that the model reads at once. ``tokens``: how many tokens it
    has. An estimate is enough."""

    text: Text
    tokens: int


class ThreadedEmbedder:
    """``Embedder`` that computes vectors by calling a blocking function. The function runs on a
    separate thread, one call at a time.

    - ``call`` gets one batch of texts and returns their vectors and the number of tokens.
    - ``split`` cuts a text into pieces. It is called on the thread, too. The vector of a text with
      several pieces is the mean of their vectors, weighted by their tokens. It may stop after more
      than ``limit`` tokens, its last argument.
    - ``release`` frees the model. The result is awaited, if there is one.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Text], Role], tuple[list[Vector], int]],
        release: Callable[[], Awaitable[None] | None],
        *,
        dimensions: int,
        split: Callable[[Text, Role, int], Sequence[Piece]],
        vocabulary_size: int | None = None,
    ) -> None:
        self._call = call
        self._split = split
        self._release = release
        self.dimensions = dimensions
        self.vocabulary_size = vocabulary_size
        self._thread = TurnThread("embeddings")

    async def embed(
        self, texts: Sequence[Text], role: Role = "query", *, tenant: str = ""
    ) -> EmbeddingResult:
        parts = await self._split_all(texts, role, tenant)
        vectors: list[Vector] = []
        tokens = 0
        for batch in _batches([piece for pieces in parts for piece in pieces]):
            call = partial(self._call, [piece.text for piece in batch], role)
            made, read = await self._thread.run(tenant, call)
            vectors += made
            tokens += read
        of_pieces = iter(vectors)
        return EmbeddingResult(tuple(_combine(pieces, of_pieces) for pieces in parts), tokens)

    async def _split_all(
        self, texts: Sequence[Text], role: Role, tenant: str
    ) -> list[Sequence[Piece]]:
        """Split all texts. Raises ``InvalidRequest`` if a text, or all texts together, have too
        many tokens."""
        parts: list[Sequence[Piece]] = []
        total = 0
        for index, text in enumerate(texts):
            pieces = await self._thread.run(
                tenant, partial(self._split, text, role, _MAX_TEXT_TOKENS)
            )
            tokens = sum(piece.tokens for piece in pieces)
            total += tokens
            if tokens > _MAX_TEXT_TOKENS:
                raise _too_long(f"Text {index} of the input has", _MAX_TEXT_TOKENS, "a text")
            if total > _MAX_TOKENS:
                raise _too_long("The texts of the input have", _MAX_TOKENS, "a request")
            parts.append(pieces)
        return parts

    async def close(self) -> None:
        if self._thread.closed:
            return
        await self._thread.close()
        if (ending := self._release()) is not None:
            await ending


def _batches(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield consecutive pieces that together have at most ``WINDOW_TOKENS`` tokens. A longer piece
    is a batch of its own."""
    batch: list[Piece] = []
    tokens = 0
    for piece in pieces:
        if batch and (len(batch) == _BATCH_SIZE or tokens + piece.tokens > WINDOW_TOKENS):
            yield batch
            batch, tokens = [], 0
        batch.append(piece)
        tokens += piece.tokens
    if batch:
        yield batch


def _combine(pieces: Sequence[Piece], vectors: Iterator[Vector]) -> Vector:
    """Return the vector of a text from the vectors of its pieces."""
    if len(pieces) == 1:
        return next(vectors)
    rows = [(piece.tokens, next(vectors)) for piece in pieces]
    sums = array("f", (sum(n * row[at] for n, row in rows) for at in range(len(rows[0][1]))))
    return truncate_vector(sums, len(sums))


def _too_long(what: str, limit: int, of: str) -> InvalidRequest:
    return InvalidRequest(
        f"{what} more than {limit} tokens, the limit for {of}. Divide the text into shorter ones.",
        param="input",
        code=CONTEXT_LENGTH_EXCEEDED,
    )

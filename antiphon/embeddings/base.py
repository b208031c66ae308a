"""The contract of an embedder: texts in, vectors out."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

__all__ = ["Embedder", "EmbeddingResult", "Prefixes", "Role", "Vector", "truncate_vector"]

#: 32-bit floats. Embedders normalize vectors to length 1, so the dot product is the cosine.
Vector: TypeAlias = "array[float]"

#: The purpose of a text, for models that distinguish it: to search with, or to be searched.
Role = Literal["query", "passage"]


class Prefixes(Struct, frozen=True, kw_only=True):
    """Texts that a model expects before a query or a passage; see the model's card."""

    query: str = ""
    passage: str = ""

    def for_role(self, role: Role) -> str:
        return self.query if role == "query" else self.passage


class EmbeddingResult(Struct, frozen=True):
    """One vector per text, in order, and the number of tokens read."""

    vectors: tuple[Vector, ...]
    tokens: int


class Embedder(Protocol):
    """Computes vectors with one model. The factories in ``embeddings`` create embedders; the owner
    of an embedder closes it."""

    @property
    def dimensions(self) -> int:
        """The length of its vectors."""

    @property
    def vocabulary_size(self) -> int | None:
        """The number of token ids; None if the model accepts only texts."""

    async def embed(
        self, texts: Sequence[str | Sequence[int]], role: Role = "query"
    ) -> EmbeddingResult:
        """Compute the vectors of ``texts``. Each element is a text or the token ids of a text.

        ``role``: whether the texts are queries or passages. Models that do not distinguish them
        ignore it. Raises ``InvalidRequest`` with the param ``input`` for a text that is too long,
        and ``BackendError`` if the model fails.
        """

    async def close(self) -> None:
        """Free the model."""


def truncate_vector(vector: Vector, dimensions: int) -> Vector:
    """Return the first ``dimensions`` numbers of a vector, normalized to length 1.

    Models with Matryoshka training are made for this and lose little accuracy. For other models the
    result is an approximation.
    """
    shorter = vector[:dimensions]
    length = math.sqrt(sum(number * number for number in shorter))
    return array("f", [number / length for number in shorter]) if length else shorter

"""The contract of an embedder: texts in, vectors out. It knows no requests and no stores."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

__all__ = ["Embedder", "EmbeddingResult", "Prefixes", "Role", "Vector", "truncate_vector"]

#: 32-bit floats; of length 1 as embedders give them, so that a dot product is the likeness.
Vector: TypeAlias = "array[float]"

#: What a text is for, where a model was trained to tell them apart: to be found, or to find.
Role = Literal["query", "passage"]


class Prefixes(Struct, frozen=True, kw_only=True):
    """What stands before a text, by what it is for; see the model's card."""

    query: str = ""
    passage: str = ""

    def for_role(self, role: Role) -> str:
        return self.query if role == "query" else self.passage


class EmbeddingResult(Struct, frozen=True):
    """A vector for each text, in order, and how many tokens were read."""

    vectors: tuple[Vector, ...]
    tokens: int


class Embedder(Protocol):
    """Makes vectors with one model. Made by a factory in ``embeddings``; closed once."""

    @property
    def dimensions(self) -> int:
        """The length of its vectors."""

    @property
    def vocabulary_size(self) -> int | None:
        """How many token ids there are; None if it takes texts only."""

    async def embed(
        self, texts: Sequence[str | Sequence[int]], role: Role = "query"
    ) -> EmbeddingResult:
        """The vectors of ``texts``, each a text or its token ids. Models that know no roles make no
        difference. Raises ``InvalidRequest`` with the param ``input`` for what is too long,
        ``BackendError`` when the model fails."""

    async def close(self) -> None:
        """Free the model."""


def truncate_vector(vector: Vector, dimensions: int) -> Vector:
    """The first so many numbers, of length 1 again: the shorter vector of models that were trained
    for it (Matryoshka), a rough one of others."""
    shorter = vector[:dimensions]
    length = math.sqrt(sum(number * number for number in shorter))
    return array("f", [number / length for number in shorter]) if length else shorter

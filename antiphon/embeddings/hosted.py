"""``Embedder`` for a model that another process of the same Antiphon server has loaded."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from msgspec import Struct

from antiphon.ipc.client import CallClient

from .base import EmbeddingResult, Role, Text


class EmbedderDescription(Struct, frozen=True):
    """The properties of an embedder that never change. The process that has loaded the model sends
    them to other processes."""

    dimensions: int
    vocabulary_size: int | None


class PackedEmbeddings(Struct, frozen=True):
    """An ``EmbeddingResult`` in the form in which processes send it to each other. Each vector is
    encoded as bytes: its components are 32-bit floats, one after another."""

    vectors: tuple[bytes, ...]
    tokens: int


class HostedEmbedder:
    """``Embedder`` for a model that another process has loaded. ``name``: the model's name.
    ``description``: its properties. ``calls``: the client that sends RPC calls to that process."""

    def __init__(self, name: str, description: EmbedderDescription, calls: CallClient) -> None:
        self._name = name
        self._calls = calls
        self.dimensions = description.dimensions
        self.vocabulary_size = description.vocabulary_size

    async def embed(
        self, texts: Sequence[Text], role: Role = "query", *, tenant: str = ""
    ) -> EmbeddingResult:
        given = [text if isinstance(text, str) else list(text) for text in texts]
        packed: PackedEmbeddings = await self._calls.call(
            "embed", self._name, given, role, tenant, returns=PackedEmbeddings
        )
        vectors = tuple(array("f", each) for each in packed.vectors)
        return EmbeddingResult(vectors, packed.tokens)

    async def close(self) -> None:
        """Do nothing. The model stays loaded, because the process that loaded it also unloads
        it."""

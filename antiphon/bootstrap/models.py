"""Load the models of a server while its other parts are opened. Load them again when the settings
are reloaded."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import structlog

from antiphon.backends.catalog import ModelCatalog
from antiphon.config.settings import Settings
from antiphon.engines.base import DiskCache
from antiphon.errors import SetupError
from antiphon.inference.sampling import SessionSignal
from antiphon.models import catalog
from antiphon.models.download import progress_bar
from antiphon.models.factories import disk_cache, prefix_folder
from antiphon.models.packaged_embedder import NO_EMBEDDINGS
from antiphon.resources.reading_models import Rerankers
from antiphon.retrieval.vector_search import require_numpy
from antiphon.store.base import Store
from antiphon.support.tasks import repeat, running
from antiphon.workers.context import WorkerContext

from .clock import read_clock

_log = structlog.get_logger(__name__)

#: Seconds from one check for unneeded states on disk to the next.
_CHECK_S = 3600


@asynccontextmanager
async def loading_models(
    settings: Settings, worker: WorkerContext | None, store: Store
) -> AsyncIterator[asyncio.Task[catalog.Catalog]]:
    """Context manager that loads the models in the background and yields the loading task. During
    the loading, the ``async with`` block can open other parts of the server. At the end of the
    block, the models are closed. ``store``: what it no longer contains is first, and then each
    hour, deleted from the states of prompts on disk."""
    unowned = UnownedPrefixes(settings, store)
    failure = "unneeded states on disk cannot be deleted"
    try:
        await unowned.delete()
    except OSError as error:
        _log.warning(failure, reason=str(error))
    checks = repeat(unowned.delete, _CHECK_S, failure=failure, is_first_delayed=True)
    try:
        async with running(checks), running(load_models(settings, worker)) as loading:
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
    from antiphon.engines.llama.disk_states import delete_states, deletion_mark

    owner, tenant, cache = signal.owner, signal.tenant, disk_cache(settings)
    if cache is not None:
        delete_states(
            cache.folder,
            cache.secret,
            lambda state: state.tenant == tenant if owner is None else state.owner == owner,
        )
        deletion_mark(cache.folder, tenant, owner).unlink(missing_ok=True)


def mark_prefixes(settings: Settings, tenant: str, owner: str) -> None:
    """Record that a part of a conversation will be deleted, until ``erase_prefixes`` is called. If
    there is no folder, there are no states. Blocks."""
    from antiphon.engines.llama.disk_states import deletion_mark

    if (cache := disk_cache(settings)) is not None and cache.folder.is_dir():
        try:
            deletion_mark(cache.folder, tenant, owner).touch()
        except OSError as error:  # the states are still deleted, unless the server is killed
            _log.warning("the deletion of states cannot be recorded", reason=str(error))


class UnownedPrefixes:
    """The states of prompts on disk that nobody needs. Their response or conversation is not in the
    store: it expired, or it was deleted and the server was killed before it deleted the states. Or
    a part of the conversation was deleted then. Or the settings keep no states on disk any more."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._cache = disk_cache(settings)
        #: Where states of earlier settings may be, if the settings keep none.
        self._outdated = prefix_folder(settings) if self._cache is None else None
        self._store = store
        #: What had no owner at the last check. None before the first one, when nobody writes.
        self._suspects: set[tuple[str, str | None]] | None = None

    async def delete(self) -> None:
        """Delete these states. A response is stored after its state, so its state is deleted only
        if it is not in the store at two checks. States of earlier settings are deleted once, since
        other servers of the store may have other settings."""
        from antiphon.engines.llama.disk_states import delete_states, deletion_mark, state_owners

        if (cache := self._cache) is None:
            if self._outdated is not None:
                await asyncio.to_thread(shutil.rmtree, self._outdated, ignore_errors=True)
                self._outdated = None
            return
        found = await asyncio.to_thread(state_owners, cache.folder, cache.secret)
        unowned = {each for each in found if not await self._is_needed(cache, *each)}
        meant = unowned if self._suspects is None else unowned & self._suspects
        self._suspects = unowned
        await asyncio.to_thread(
            delete_states,
            cache.folder,
            cache.secret,
            lambda state: (state.tenant, state.owner) in meant,
        )
        for tenant, owner in meant:
            deletion_mark(cache.folder, tenant, owner).unlink(missing_ok=True)

    async def _is_needed(self, cache: DiskCache, tenant: str, owner: str | None) -> bool:
        """Return whether there is a response or a conversation with this id, of which no part was
        deleted."""
        from antiphon.engines.llama.disk_states import deletion_mark

        if owner is None or deletion_mark(cache.folder, tenant, owner).exists():
            return False
        if await self._store.has_response(tenant, owner):
            return True
        return await self._store.load_conversation(tenant, owner) is not None

"""Manage the served models at run time: list their states, and load, unload and download models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct, convert

from antiphon.backends.base import Backend
from antiphon.backends.memory_budget import MemoryBudget
from antiphon.backends.on_demand import OnDemandBackend
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.errors import (
    BackendError,
    Forbidden,
    NotFound,
    Overloaded,
    SetupError,
    unsupported_model,
)
from antiphon.support.tasks import running
from antiphon.wire.admin.managed_models import (
    ManagedModel,
    ManagedModelList,
    ModelMemory,
    PromptCache,
    PullCompleted,
    PullEvent,
    PullFailed,
    PullProgress,
)
from antiphon.wire.models import ModelStatus

from .files import (
    deletable_files,
    delete_files,
    estimate_memory,
    fetch_files,
    has_files,
    local_files,
)

#: Seconds between two progress events of one file.
_PROGRESS_INTERVAL_S = 0.2


#: What ``ModelManager`` can do with one model: names of its methods.
ManagingAction: TypeAlias = Literal["retrieve", "load", "unload", "delete"]


class ConfiguredModel(Struct, frozen=True, kw_only=True):
    """A configured model and its backend. ``on_demand``: the part of the backend that loads and
    unloads the model. It is None for a model on another server, unless its settings load it on
    demand."""

    name: str
    model: Model
    backend: Backend
    on_demand: OnDemandBackend | None


class ModelManager:
    """Lists, loads, unloads and downloads the served models at the operator's request. ``budget``:
    the memory budget that all models share."""

    def __init__(
        self,
        configured_models: tuple[ConfiguredModel, ...],
        settings: Settings,
        budget: MemoryBudget,
    ) -> None:
        self._configured_models = configured_models
        self._settings = settings
        self._budget = budget
        self._by_name: Mapping[str, ConfiguredModel] = {
            name: each
            for each in configured_models
            for name in (each.name, *each.model.aliases, *each.model.adapters)
        }

    async def list(self) -> ManagedModelList:
        """Return all models, each with its state (such as loaded or not loaded), and the memory
        that they use."""
        return ManagedModelList(
            data=tuple([await self._describe(each) for each in self._configured_models]),
            memory=ModelMemory(
                used_bytes=self._budget.used_bytes, budget_bytes=self._budget.limit_bytes
            ),
        )

    async def retrieve(self, name: str) -> ManagedModel:
        """Return one model, by name or alias. Raises ``NotFound``."""
        return await self._describe(self._find(name))

    def on_demand(self, name: str) -> OnDemandBackend:
        """Return the backend that loads and unloads this model. Raises ``NotFound`` for an unknown
        name. Raises ``InvalidRequest`` if the model runs on another server."""
        return self._loader(self._find(name))

    async def load(self, name: str) -> ManagedModel:
        """Load a model and wait until it is loaded. Raises ``Overloaded`` with the reason if the
        model cannot be loaded."""
        configured = self._find(name)
        try:
            await self._loader(configured).load()
        except (SetupError, BackendError) as error:
            raise Overloaded(
                f"The model '{configured.name}' could not be loaded: {error}",
                retry_after_s=10,
                status=503,
                code="model_not_loaded",
            ) from None
        return await self._describe(configured)

    async def unload(self, name: str) -> ManagedModel:
        """Unload a model. Waits for its running requests, and returns when the model is
        unloaded."""
        configured = self._find(name)
        await self._loader(configured).unload()
        return await self._describe(configured)

    def pull(self, name: str) -> AsyncGenerator[PullEvent, None]:
        """Download the files of a model and yield the progress. Closing the iterator stops the
        download. The next call resumes the download. Raises ``InvalidRequest`` if the engine of the
        model reads no files from this machine."""
        configured = self._find(name)
        if not has_files(configured.model):
            raise unsupported_model(f"The model '{configured.name}' has no files on this server.")
        return self._pull(configured)

    async def delete(self, name: str) -> ManagedModel:
        """Unload a model, and delete its downloaded files. The model stays in the settings, so a
        later request downloads it again. Raises ``Forbidden`` if it has no downloaded files, or
        if another model uses them, too."""
        configured = self._find(name)
        if configured.on_demand is not None and has_files(configured.model):
            others = [each.model for each in self._configured_models if each is not configured]
            files = await asyncio.to_thread(
                deletable_files, configured.model, self._settings, others
            )
            # A model whose files stay goes on to answer requests.
            if files:
                await configured.on_demand.unload()
                await asyncio.to_thread(delete_files, files)
                return await self._describe(configured)
        raise Forbidden(
            f"The model '{configured.name}' has no files of its own that this server has"
            " downloaded. Only such files can be deleted.",
            param="model",
        )

    async def _pull(self, configured: ConfiguredModel) -> AsyncGenerator[PullEvent, None]:
        steps = _Steps(asyncio.get_running_loop())
        work = fetch_files(configured.model, self._settings, steps.report)
        async with running(work) as pulling:
            pulling.add_done_callback(lambda _: steps.finish())
            try:
                while (step := await steps.next()) is not None:
                    yield step
                await pulling
            except SetupError as error:
                yield PullFailed(message=str(error))
            else:
                yield PullCompleted(model=await self._describe(configured))

    async def _describe(self, configured: ConfiguredModel) -> ManagedModel:
        model, settings = configured.model, self._settings
        files = await asyncio.to_thread(local_files, model, settings)
        memory = await estimate_memory(model, settings) if configured.on_demand else 0
        status = configured.backend.status
        return ManagedModel(
            id=configured.name,
            aliases=(*model.aliases, *model.adapters),
            engine=model.engine,
            source=model.source if has_files(model) else None,
            status=convert(status, ModelStatus, from_attributes=True),
            can_unload=configured.on_demand is not None,
            size_bytes=sum(file.stat().st_size for file in files) or None,
            memory_bytes=memory or None,
            context_size=configured.backend.context_size,
            prompt_cache=convert(status.prefix_cache, PromptCache | None, from_attributes=True),
            threads=status.threads or None,
            running_requests=configured.on_demand.users if configured.on_demand else 0,
        )

    def _find(self, name: str) -> ConfiguredModel:
        if name not in self._by_name:
            raise NotFound(
                f"The model '{name}' does not exist.", param="model", code="model_not_found"
            )
        return self._by_name[name]

    def _loader(self, configured: ConfiguredModel) -> OnDemandBackend:
        if configured.on_demand is None:
            raise unsupported_model(
                f"The model '{configured.name}' runs on another server; it is neither loaded nor"
                " unloaded here."
            )
        return configured.on_demand


class _Steps:
    """Passes progress reports of a download from any thread to the event loop. A report is dropped
    if it comes less than ``_PROGRESS_INTERVAL_S`` after the previous report of the same file. The
    last report of a file is always passed on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[PullProgress | None] = asyncio.Queue()
        self._reported_at: dict[str, float] = {}

    def report(self, file: str, done: int, total: int | None) -> None:
        now = self._loop.time()
        if done != total and now < self._reported_at.get(file, -1.0) + _PROGRESS_INTERVAL_S:
            return
        self._reported_at[file] = now
        step = PullProgress(file=file, bytes=done, total_bytes=total)
        self._loop.call_soon_threadsafe(self._queue.put_nowait, step)

    def finish(self) -> None:
        self._queue.put_nowait(None)

    async def next(self) -> PullProgress | None:
        """Wait for the next progress report. Returns None when the download has ended."""
        return await self._queue.get()

"""The catalog of served models: loaded from the settings and found by all their names.

``factories`` builds their backends.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import Backend, Status
from antiphon.backends.embedding import EmbeddingBackend, OnDemandEmbeddingBackend
from antiphon.backends.lora import LoraBackend
from antiphon.backends.memory_budget import MemoryBudget
from antiphon.backends.on_demand import OnDemandBackend
from antiphon.clients import model_not_found
from antiphon.config.model import Model
from antiphon.config.settings import Settings

from .download import DEFAULT, DEFAULT_SAMPLING, Progress
from .embedding_factories import EMBEDDERS
from .factories import backend_factory
from .files import estimate_memory, fetch_files
from .hosted_models import HostedModelManager, HostedModels, is_hosted
from .manager import ModelManager, Resident

__all__ = ["Catalog", "ServedModel", "load"]

_MIB = 2**20
#: Engines whose models run on another server: there is nothing to load.
_REMOTE_ENGINES = frozenset({"chat_completions", "completions", "embeddings", "responses"})
#: Fields of ``Model`` that are defaults for a request's options.
_DEFAULT_FIELDS = (
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
)


class ServedModel(Struct, frozen=True, kw_only=True):
    """A model that clients can request.

    - ``created``: unix seconds, shown to clients.
    - ``operator_defaults``: the operator's values for fields that a request omits.
    - ``recommended``: the values of the model's makers, if its files state none.
    - ``thinking_budgets``: effort → maximum number of reasoning tokens.
    """

    name: str
    aliases: tuple[str, ...] = ()
    backend: Backend
    created: int
    operator_defaults: Mapping[str, Any] = {}
    recommended: Mapping[str, Any] = {}
    thinking_budgets: Mapping[str, int] = {}

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The values for fields that a request omits."""
        recommended = self.recommended or self.backend.recommended_options
        known = {name: recommended[name] for name in _DEFAULT_FIELDS if name in recommended}
        return {**known, **self.operator_defaults}

    @property
    def status(self) -> Status:
        """Whether the model is loaded."""
        return self.backend.status

    async def ready(self) -> None:
        """Start loading the model if it is not loaded. Raises ``Overloaded``."""
        await self.backend.ready()

    @property
    def embedding(self) -> EmbeddingBackend | OnDemandEmbeddingBackend | None:
        """The backend if this is an embedding model, else None."""
        return (
            self.backend
            if isinstance(self.backend, EmbeddingBackend | OnDemandEmbeddingBackend)
            else None
        )

    @property
    def context_size(self) -> int | None:
        """Tokens of prompt and answer together; None if only an upstream knows it."""
        return self.backend.context_size


class Catalog:
    """The served models in the operator's order.

    ``default``: the name of the model for requests that name none. Unset: the first one that is not
    an embedding model. ``manager`` loads and unloads them at run time.
    """

    def __init__(
        self,
        models: tuple[ServedModel, ...],
        default: str | None = None,
        *,
        manager: ModelManager | HostedModelManager | None = None,
    ) -> None:
        self.manager = manager
        self._models = models
        self._by_name = {name: model for model in models for name in (model.name, *model.aliases)}
        able = (model for model in models if model.embedding is None)
        self._default = self._by_name[default] if default is not None else next(able, models[0])

    def all(self) -> tuple[ServedModel, ...]:
        """Return every model once."""
        return self._models

    def find(self, name: str | None) -> ServedModel:
        """Return a model by its name or alias; None: the default model. Raises ``NotFound``."""
        found = self._default if name is None else self._by_name.get(name)
        if found is None:
            raise model_not_found(str(name))
        return found

    async def close(self) -> None:
        """Close every backend, the last one first, even if some fail."""
        async with AsyncExitStack() as stack:
            for model in self._models:
                stack.push_async_callback(model.backend.close)


async def load(
    settings: Settings,
    progress: Progress | None = None,
    *,
    now: int = 0,
    hosted: HostedModels | None = None,
) -> Catalog:
    """Load every model of the settings and download missing files. ``now``: unix seconds.
    ``hosted``: the models that another process runs for this one.

    Raises ``SetupError`` after it closes the models loaded before.
    """
    budget = MemoryBudget(settings.model_memory_mb * _MIB or None)
    async with AsyncExitStack() as stack:
        models: list[ServedModel] = []
        residents: list[Resident] = []
        for name, model in settings.models.items():
            resident = await _load_resident(name, model, settings, budget, progress, hosted)
            backend = resident.backend
            stack.push_async_callback(backend.close)
            residents.append(resident)
            served = ServedModel(
                name=name,
                aliases=model.aliases,
                backend=backend,
                created=now,
                operator_defaults=_operator_defaults(model),
                recommended=DEFAULT_SAMPLING if model.source == DEFAULT else {},
                thinking_budgets=model.thinking_budgets,
            )
            models += [served, *_adapter_models(served, model)]
        manager: ModelManager | HostedModelManager
        if hosted is None:
            manager = ModelManager(tuple(residents), settings, budget)
        else:
            manager = HostedModelManager(hosted.calls)
        catalog = Catalog(tuple(models), settings.default_model, manager=manager)
        stack.pop_all()
    return catalog


def _adapter_models(served: ServedModel, model: Model) -> list[ServedModel]:
    """Return the model under the name of each of its adapters."""
    return [
        replace(served, name=name, aliases=(), backend=LoraBackend(served.backend, name))
        for name in model.adapters
    ]


async def _load_resident(
    name: str,
    model: Model,
    settings: Settings,
    budget: MemoryBudget,
    progress: Progress | None,
    hosted: HostedModels | None,
) -> Resident:
    """Load a model, or prepare its load by the first request. One that does not fit into the memory
    budget together with those before it is left to its first request."""
    make = partial(backend_factory(name, model), name, model, settings)
    is_lazy = model.load == "demand" or model.idle_unload_s > 0
    if model.engine in _REMOTE_ENGINES and not is_lazy:
        return Resident(name=name, model=model, backend=await make(progress), on_demand=None)

    async def fetch(progress: Progress) -> int:
        await fetch_files(model, settings, progress)
        return await estimate_memory(model, settings)

    if hosted is not None and is_hosted(model):
        lazy: OnDemandBackend = hosted.backend(name, model, settings)
    else:
        lazy = OnDemandBackend(
            name,
            make,
            fetch=fetch,
            budget=budget,
            idle_s=model.idle_unload_s,
            context_size=model.context_size,
        )
    if model.load == "start":
        await lazy.load(progress or _ignore_progress, evict=False)
    embeds = model.engine in EMBEDDERS
    return Resident(
        name=name,
        model=model,
        backend=OnDemandEmbeddingBackend(name, lazy) if embeds else lazy,
        on_demand=lazy,
    )


def _ignore_progress(stage: str, done: int, total: int | None) -> None:
    """Report a load at server start nowhere, neither in the log."""


def _operator_defaults(model: Model) -> dict[str, Any]:
    """Return the sampling options that the operator set."""
    values = {name: getattr(model, name) for name in _DEFAULT_FIELDS}
    return {name: value for name, value in values.items() if value is not None}

"""The catalog of served models. It is loaded from the settings and finds models by name or alias.

The module ``factories`` builds the backends of the models.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.backends.base import Backend
from antiphon.backends.lora import LoraBackend
from antiphon.backends.memory_budget import MemoryBudget
from antiphon.backends.on_demand import OnDemandBackend, ProgressCallback
from antiphon.backends.reading import OnDemandTaskBackend
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.errors import model_not_found
from antiphon.support.tasks import BackgroundTasks

from .download import DEFAULT, DEFAULT_SAMPLING
from .factories import REMOTE_ENGINES, TASKS_OF_ENGINES, backend_factory
from .files import estimate_memory, fetch_files
from .hosted_models import HostedModelManager, HostedModels, is_hosted
from .manager import ConfiguredModel, ModelManager

_MIB = 2**20
#: Fields of ``Model`` with default values for options that a request does not set.
_DEFAULT_FIELDS = (
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
)
#: The tag that Ollama adds to names without one.
_LATEST = ":latest"


class ServedModel(Struct, frozen=True, kw_only=True):
    """A model that clients can request.

    - ``created``: time in Unix seconds, which clients see in the field ``created``.
    - ``instructions``: the default system prompt; None if there is none.
    - ``operator_defaults``: values from the settings for sampling options that a request does not
      set.
    - ``recommended_options``: values of sampling options that the authors of the model recommend.
      If this is empty, the recommended values come from the model's files.
    - ``thinking_budgets``: reasoning effort → maximum number of reasoning tokens.
    """

    name: str
    aliases: tuple[str, ...] = ()
    backend: Backend
    created: int
    instructions: str | None = None
    operator_defaults: Mapping[str, Any] = {}
    recommended_options: Mapping[str, Any] = {}
    thinking_budgets: Mapping[str, int] = {}

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Values of sampling options for requests that do not set them. A value from the operator's
        settings has priority over a value that the model's authors recommend."""
        recommended = self.recommended_options or self.backend.recommended_options
        if not recommended:
            return self.operator_defaults
        known = {name: recommended[name] for name in _DEFAULT_FIELDS if name in recommended}
        return {**known, **self.operator_defaults}


class Catalog:
    """The served models, in the order of the settings.

    ``default``: name of the model for requests that name no model. If it is None, the first model
    that answers conversations is used. ``manager`` loads and unloads models at run time.
    ``configured_models``: the configured models with their backends. ``budget``: the memory budget
    that the models share.
    """

    def __init__(
        self,
        models: tuple[ServedModel, ...],
        default: str | None = None,
        *,
        manager: ModelManager | HostedModelManager | None = None,
        configured_models: tuple[ConfiguredModel, ...] = (),
        budget: MemoryBudget | None = None,
    ) -> None:
        self.manager = manager
        self.configured_models = configured_models
        self.budget = budget or MemoryBudget()
        self._set_models(models, default)
        #: Backends of removed models. Some of their requests may still be running.
        self._former: list[Backend] = []
        self._closings = BackgroundTasks("end of a model")

    def _set_models(self, models: tuple[ServedModel, ...], default: str | None) -> None:
        self._models = models
        self._by_name = {name: model for model in models for name in (model.name, *model.aliases)}
        able = (m for m in models if m.backend.task is None)
        self._default = self._by_name[default] if default is not None else next(able, models[0])

    def all(self) -> tuple[ServedModel, ...]:
        """Return all models and adapters, in the order of the settings. A model with aliases is
        listed once."""
        return self._models

    def find(self, name: str | None) -> ServedModel:
        """Return a model by its name or alias. If ``name`` is None, return the default model.
        Raises ``NotFound``. Ollama's clients put ``:latest`` after a name, also at OpenAI's
        endpoints."""
        if name is None:
            return self._default
        found = self._by_name.get(name) or self._by_name.get(name.removesuffix(_LATEST))
        if found is None:
            raise model_not_found(str(name))
        return found

    def replace(self, new: Catalog) -> None:
        """Serve the models of ``new`` instead of the current models. Do not use ``new`` itself
        afterwards.

        A removed model that runs on this machine is closed when its running requests have ended. A
        removed model that runs on an upstream server keeps its HTTP client until ``Catalog.close``
        is called.
        """
        kept = {id(each) for each in new.configured_models}
        removed = [each for each in self.configured_models if id(each) not in kept]
        self.manager, self.configured_models = new.manager, new.configured_models
        self._set_models(new._models, new._default.name)
        for configured in removed:
            if configured.on_demand is None:
                self._former.append(configured.backend)
                continue
            self._closings.start(_close_idle(configured.on_demand))

    async def close_models_not_in(self, other: Catalog) -> None:
        """Close the models of this catalog, except those that are also in the catalog ``other``.
        Call this method to discard this catalog while ``other`` stays in use."""
        kept = {id(each) for each in other.configured_models}
        for configured in self.configured_models:
            if id(configured) not in kept:
                await configured.backend.close()

    async def close(self) -> None:
        """Close all backends, one after the other, in the reverse order of the settings. If one
        backend fails to close, the other backends are still closed."""
        async with AsyncExitStack() as stack:
            for backend in (*self._former, *(model.backend for model in self._models)):
                stack.push_async_callback(backend.close)
            stack.push_async_callback(self._closings.close)


async def _close_idle(on_demand: OnDemandBackend) -> None:
    """Wait until the running requests of a model have finished, and close the model."""
    await on_demand.unload()
    await on_demand.close()


async def load(
    settings: Settings,
    progress: ProgressCallback | None = None,
    *,
    now: int = 0,
    hosted: HostedModels | None = None,
    earlier: Catalog | None = None,
) -> Catalog:
    """Load every model of the settings and download missing files.

    ``now``: Unix seconds. ``hosted``: the models that another process runs for this process.
    ``earlier``: the catalog that the new catalog will replace. A model with unchanged settings is
    taken from ``earlier`` and is not loaded again; see ``Catalog.replace``.

    If a model cannot be loaded, closes the models that are already loaded and raises
    ``SetupError``.
    """
    known = {} if earlier is None else {each.name: each for each in earlier.configured_models}
    budget = MemoryBudget(settings.model_memory_mb * _MIB or None)
    budget = budget if earlier is None else earlier.budget
    async with AsyncExitStack() as stack:
        models: list[ServedModel] = []
        configured_models: list[ConfiguredModel] = []
        for name, model in settings.models.items():
            configured = known.get(name)
            if configured is None or configured.model != model:
                configured = await _load_configured_model(
                    name, model, settings, budget, progress, hosted
                )
                stack.push_async_callback(configured.backend.close)
            configured_models.append(configured)
            models += _served_models(configured, now)
        manager: ModelManager | HostedModelManager
        if hosted is None:
            manager = ModelManager(tuple(configured_models), settings, budget)
        else:
            manager = HostedModelManager(hosted.calls)
        catalog = Catalog(
            tuple(models),
            settings.default_model,
            manager=manager,
            configured_models=tuple(configured_models),
            budget=budget,
        )
        stack.pop_all()
    return catalog


def _served_models(configured: ConfiguredModel, now: int) -> list[ServedModel]:
    """Return the catalog entries of a model: one for the model, and one for each of its LoRA
    adapters."""
    model = configured.model
    served = ServedModel(
        name=configured.name,
        aliases=model.aliases,
        backend=configured.backend,
        created=now,
        instructions=model.instructions,
        operator_defaults=_operator_defaults(model),
        recommended_options=DEFAULT_SAMPLING if model.source == DEFAULT else {},
        thinking_budgets=model.thinking_budgets,
    )
    adapters = (
        replace(served, name=name, aliases=(), backend=LoraBackend(served.backend, name))
        for name in model.adapters
    )
    return [served, *adapters]


async def _load_configured_model(
    name: str,
    model: Model,
    settings: Settings,
    budget: MemoryBudget,
    progress: ProgressCallback | None,
    hosted: HostedModels | None,
) -> ConfiguredModel:
    """Build the backend of a model. If the setting ``load`` of the model is ``start`` and the
    memory budget has room for it, the model is loaded now. Otherwise the first request loads it."""
    make = partial(backend_factory(name, model), name, model, settings)
    is_lazy = model.load == "demand" or model.idle_unload_s > 0
    if model.engine in REMOTE_ENGINES and not is_lazy:
        return ConfiguredModel(name=name, model=model, backend=await make(progress), on_demand=None)

    async def fetch(progress: ProgressCallback) -> int:
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
    task = TASKS_OF_ENGINES.get(model.engine)
    return ConfiguredModel(
        name=name,
        model=model,
        backend=lazy if task is None else OnDemandTaskBackend(name, task, lazy),
        on_demand=lazy,
    )


def _ignore_progress(stage: str, done: int, total: int | None) -> None:
    """Ignore the progress of loading. Used if the caller gave no progress callback."""


def _operator_defaults(model: Model) -> dict[str, Any]:
    """Return the sampling options that the settings of a model set."""
    values = {name: getattr(model, name) for name in _DEFAULT_FIELDS}
    return {name: value for name, value in values.items() if value is not None}

"""The catalog: the models the settings name, loaded and ready to answer, under all their names.

How a backend is made of its settings is told by ``factories``. It knows no requests and no HTTP.
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
from antiphon.backends.on_demand import OnDemandBackend
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.errors import NotFound

from .download import DEFAULT, DEFAULT_SAMPLING, Progress
from .embedding_factories import EMBEDDERS
from .factories import backend_factory

__all__ = ["Catalog", "ServedModel", "load"]

#: Fields of ``Model`` that stand in for options a request did not give.
_DEFAULT_FIELDS = (
    "max_output_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
)


class ServedModel(Struct, frozen=True, kw_only=True):
    """A model that can be asked. ``created``: unix seconds, shown to clients. ``set``: what stands
    in for the fields that a request does not give, by the operator's will; ``recommended``, by that
    of the model's makers, where its files do not say."""

    name: str
    aliases: tuple[str, ...] = ()
    backend: Backend
    created: int
    operator_defaults: Mapping[str, Any] = {}
    recommended: Mapping[str, Any] = {}
    #: Effort → the most tokens of thinking.
    thinking_budgets: Mapping[str, int] = {}

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What stands in for the fields that a request does not give."""
        recommended = self.recommended or self.backend.recommended_options
        known = {name: recommended[name] for name in _DEFAULT_FIELDS if name in recommended}
        return {**known, **self.operator_defaults}

    @property
    def status(self) -> Status:
        """Whether it can answer at once."""
        return self.backend.status

    async def ready(self) -> None:
        """Load it where it is not, which may go on behind this. Raises ``Overloaded``."""
        await self.backend.ready()

    @property
    def embedding(self) -> EmbeddingBackend | OnDemandEmbeddingBackend | None:
        """What makes its vectors, if it makes any; then it answers nothing."""
        return (
            self.backend
            if isinstance(self.backend, EmbeddingBackend | OnDemandEmbeddingBackend)
            else None
        )

    @property
    def context_size(self) -> int | None:
        """Tokens of prompt and answer together; None if only an upstream knows."""
        return self.backend.context_size


class Catalog:
    """What is served, in the operator's order. ``default`` answers requests that name no model;
    unset, the first model that answers."""

    def __init__(self, models: tuple[ServedModel, ...], default: str | None = None) -> None:
        self._models = models
        self._by_name = {name: model for model in models for name in (model.name, *model.aliases)}
        able = (model for model in models if model.embedding is None)
        self._default = self._by_name[default] if default is not None else next(able, models[0])

    def all(self) -> tuple[ServedModel, ...]:
        """Every model once."""
        return self._models

    def find(self, name: str | None) -> ServedModel:
        """By name or alias; None: the default one. Raises ``NotFound``, in OpenAI's words."""
        found = self._default if name is None else self._by_name.get(name)
        if found is None:
            raise NotFound(
                f"The model '{name}' does not exist or you do not have access to it.",
                param="model",
                code="model_not_found",
            )
        return found

    async def close(self) -> None:
        """Free every model, the last one first, whatever the others do."""
        async with AsyncExitStack() as stack:
            for model in self._models:
                stack.push_async_callback(model.backend.close)


async def load(settings: Settings, progress: Progress | None = None, *, now: int = 0) -> Catalog:
    """Load every model of the settings, fetching what is not on this machine. ``now``: unix
    seconds. Raises ``SetupError``; what was loaded before it is closed again."""
    async with AsyncExitStack() as stack:
        models: list[ServedModel] = []
        for name, model in settings.models.items():
            backend = await _backend(name, model, settings, progress)
            stack.push_async_callback(backend.close)
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
        catalog = Catalog(tuple(models), settings.default_model)
        stack.pop_all()
    return catalog


def _adapter_models(served: ServedModel, model: Model) -> list[ServedModel]:
    """The model once more under the name of each of its adapters."""
    return [
        replace(served, name=name, aliases=(), backend=LoraBackend(served.backend, name))
        for name in model.adapters
    ]


async def _backend(
    name: str, model: Model, settings: Settings, progress: Progress | None
) -> Backend:
    made = partial(backend_factory(name, model), name, model, settings)
    if model.load == "start" and not model.idle_unload_s:
        return await made(progress)
    lazy = OnDemandBackend(
        name,
        made,
        idle_s=model.idle_unload_s,
        context_size=model.context_size,
    )
    if model.load == "start":
        await lazy.load()
    return OnDemandEmbeddingBackend(name, lazy) if model.engine in EMBEDDERS else lazy


def _operator_defaults(model: Model) -> dict[str, Any]:
    """What the operator set."""
    given = {name: getattr(model, name) for name in _DEFAULT_FIELDS}
    return {name: value for name, value in given.items() if value is not None}

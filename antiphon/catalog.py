"""The catalog: the models the settings name, loaded and ready to answer, under all their names.

It knows which engine goes with which dialect; it knows no requests and no HTTP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.backends.base import Backend
from antiphon.errors import NotFound, SetupError
from antiphon.options import nearest
from antiphon.pull import DEFAULT, DEFAULT_SAMPLING, Progress, pull
from antiphon.settings import Model, Settings

__all__ = ["ENGINES", "Catalog", "Factory", "ServedModel", "load"]

#: Makes the backend of one model: its name, its settings, the general ones, whom to tell of
#: downloads. Raises ``SetupError``.
Factory = Callable[[str, Model, Settings, Progress | None], Awaitable[Backend]]

#: Fields of ``Model`` that stand in for options a request did not give.
_DEFAULTS = ("max_output_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class ServedModel(Struct, frozen=True, kw_only=True):
    """A model that can be asked. ``created``: unix seconds, shown to clients. ``defaults`` stand
    in for the fields that a request does not give."""

    name: str
    aliases: tuple[str, ...] = ()
    backend: Backend
    created: int
    defaults: Mapping[str, Any] = {}

    @property
    def context_size(self) -> int | None:
        """Tokens of prompt and answer together; None if only an upstream knows."""
        return self.backend.context_size


class Catalog:
    """What is served, in the operator's order. ``default`` answers requests that name no model."""

    def __init__(self, models: tuple[ServedModel, ...], default: str | None = None) -> None:
        self._models = models
        self._by_name = {name: model for model in models for name in (model.name, *model.aliases)}
        self._default = self._by_name[default] if default is not None else models[0]

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
            backend = await _factory(name, model.engine)(name, model, settings, progress)
            stack.push_async_callback(backend.close)
            served = ServedModel(
                name=name,
                aliases=model.aliases,
                backend=backend,
                created=now,
                defaults=_defaults(backend, model),
            )
            models.append(served)
        catalog = Catalog(tuple(models), settings.default_model)
        stack.pop_all()
    return catalog


# --- engines -------------------------------------------------------------------------------------


async def _llama(name: str, model: Model, settings: Settings, progress: Progress | None) -> Backend:
    """llama.cpp in this process, spoken to through the model's chat template."""
    from antiphon.backends.local import Local
    from antiphon.dialects.chat import Dialect
    from antiphon.engines.llama import load as load_engine

    engine = await load_engine(
        await _file(model.source, settings.cache_dir, progress),
        name=name,
        threads=model.threads or settings.threads,
        context_size=model.context_size,
        parallel=model.parallel,
        gpu_layers=model.gpu_layers,
    )
    try:
        dialect = Dialect(
            engine.card,
            engine.tokenizer,
            template=_text(model.template) if model.template else None,
            reasoning_format=model.reasoning_format,
            tool_format=model.tool_format,
            settings=model.template_kwargs,
        )
    except BaseException:
        await engine.close()
        raise
    return Local(engine, dialect)


async def _scripted(
    name: str, model: Model, settings: Settings, progress: Progress | None
) -> Backend:
    """No model at all: says the text that is its source, whatever it is asked. ``wait_s`` of its
    template's arguments: seconds before each word."""
    from antiphon.backends.scripted import Scripted

    wait_s = float(model.template_kwargs.get("wait_s", 0))
    return Scripted((model.source,), wait_s=wait_s, tokens=True)


#: Engine → what makes its backend. Others come from entry points of the same group.
ENGINES: Mapping[str, Factory] = {"llama": _llama, "scripted": _scripted}
_GROUP = "antiphon.engines"


def _factory(name: str, kind: str) -> Factory:
    if kind in ENGINES:
        return ENGINES[kind]
    installed = entry_points(group=_GROUP)
    if kind not in installed.names:
        known = (*ENGINES, *installed.names)
        raise SetupError(
            f"model {name}: there is no engine {kind!r}{nearest(kind, known)}"
            f" (there are: {', '.join(known)})"
        )
    found: Factory = installed[kind].load()
    return found


async def _file(source: str, cache: Path, progress: Progress | None) -> Path:
    """The GGUF file a source stands for."""
    path = Path(source).expanduser()
    if path.is_dir():
        return _only_gguf(path)
    return await pull(str(path) if path.is_file() else source, cache, progress)


def _only_gguf(folder: Path) -> Path:
    # "mmproj" files are picture encoders; of a model in several files the first one stands for all.
    files = sorted(
        file
        for file in folder.glob("*.gguf")
        if "mmproj" not in file.name.lower() and _is_first(file.name)
    )
    if len(files) == 1:
        return files[0]
    if files:
        offered = ", ".join(file.name for file in files)
        raise SetupError(f"{folder} holds several models: name one of {offered}")
    if (folder / "config.json").is_file():
        raise SetupError(
            f"{folder} is a Hugging Face folder of weights for the engine 'transformers', which"
            " this version does not have: convert the model to GGUF for the engine 'llama'"
        )
    raise SetupError(f"{folder} holds no GGUF file")


def _is_first(name: str) -> bool:
    numbered = name.rsplit("-of-", 1)
    return len(numbered) == 1 or numbered[0].endswith("-00001")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"The template {path} cannot be read: {error}") from None


# --- defaults ------------------------------------------------------------------------------------


def _defaults(backend: Backend, model: Model) -> dict[str, Any]:
    """What the operator set, over what the model's files recommend."""
    recommended = DEFAULT_SAMPLING if model.source == DEFAULT else backend.recommended
    given = {name: getattr(model, name) for name in _DEFAULTS}
    return {
        **{name: recommended[name] for name in _DEFAULTS if name in recommended},
        **{name: value for name, value in given.items() if value is not None},
    }

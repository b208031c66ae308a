"""Build the backends of models that write down speech or read texts aloud: one function per engine.

Each function imports the modules of its engine itself, because they load slowly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from antiphon.backends.base import Backend
from antiphon.backends.on_demand import ProgressCallback
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.support.cpus import spare_cpus

from .download import pull_folder
from .embedding_factories import upstream_options

_Factory = Callable[[str, Model, Settings, ProgressCallback | None], Awaitable[Backend]]


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
        threads=model.threads or settings.threads or spare_cpus(),
        engine_options=model.engine_options,
    )
    return TranscriptionBackend(name, transcriber)


async def _transcriptions(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend that sends recordings to the endpoint ``/audio/transcriptions`` of an
    upstream server. The setting ``source`` is the address of this server."""
    from antiphon.audio.upstream import load_transcriber
    from antiphon.backends.reading import TranscriptionBackend

    transcriber = await load_transcriber(
        name,
        model.source,
        key=model.api_key,
        model=model.upstream_model,
        options=upstream_options(model),
    )
    return TranscriptionBackend(name, transcriber)


async def _speech(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend that sends texts to the endpoint ``/audio/speech`` of an upstream server. The
    setting ``source`` is the address of this server."""
    from antiphon.audio.upstream import load_speaker
    from antiphon.backends.reading import SpeechBackend

    speaker = await load_speaker(
        name,
        model.source,
        key=model.api_key,
        model=model.upstream_model,
        options=upstream_options(model),
    )
    return SpeechBackend(name, speaker)


async def _speech_program(
    name: str, model: Model, settings: Settings, progress: ProgressCallback | None
) -> Backend:
    """Build a backend that lets a program read texts aloud. The setting ``source`` is its
    command."""
    from antiphon.audio.program import load
    from antiphon.backends.reading import SpeechBackend

    return SpeechBackend(name, load(name, model.source, model.engine_options))


#: Name of an engine → function that builds the backend of a model: models that write down speech,
#: and models that read texts aloud.
TRANSCRIBERS: Mapping[str, _Factory] = {"transcriptions": _transcriptions, "whisper": _whisper}
SPEAKERS: Mapping[str, _Factory] = {"speech": _speech, "speech_program": _speech_program}

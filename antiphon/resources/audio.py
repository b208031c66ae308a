"""Write down speech and read texts aloud with any served model that can."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from hashlib import sha256

from msgspec import Struct

from antiphon.audio.base import (
    MEDIA_TYPES,
    RecordingFacts,
    Speaker,
    SpeechTask,
    Transcriber,
    TranscriptionTask,
    TranscriptPiece,
)
from antiphon.backends.base import Task
from antiphon.backends.catalog import CatalogModel, ModelCatalog
from antiphon.errors import TooLarge
from antiphon.limits.clients import ANYONE, Client

from .reading_models import use_model

__all__ = [
    "MEDIA_TYPES",
    "Audio",
    "CatalogModel",
    "RecordingFacts",
    "SpeechTask",
    "TranscriptPiece",
    "TranscriptionTask",
    "WholeTranscript",
]

#: Maximum number of characters of transcripts that are kept for further turns of conversations.
_KEPT_CHARS = 2**20
#: Called with the model that does a task, before its first result.
_OnModel = Callable[[CatalogModel], None]


class WholeTranscript(Struct, frozen=True):
    """A whole transcript."""

    passages: tuple[TranscriptPiece, ...]
    summary: RecordingFacts

    @property
    def text(self) -> str:
        return "".join(passage.text for passage in self.passages).strip()


class Audio:
    """Uses the models for the tasks ``transcription`` and ``speech``.

    ``max_bytes``: maximum size of a recording. ``input_model``: the model that writes down the
    recordings of requests to models that cannot hear; None if no model does.
    """

    def __init__(self, models: ModelCatalog, input_model: str | None, max_bytes: int) -> None:
        self._models = models
        self.max_bytes = max_bytes
        self.input_model = input_model
        #: Transcripts by tenant and digest of the recording. Each turn of a conversation contains
        #: the recordings of the turns before.
        self._kept: OrderedDict[tuple[str, bytes], str] = OrderedDict()
        self._kept_chars = 0

    def offers(self, task: Task) -> bool:
        """Return whether a served model does a task."""
        return any(model.backend.task == task for model in self._models.all())

    async def transcribe(
        self,
        name: str | None,
        task: TranscriptionTask,
        *,
        tenant: str,
        client: Client = ANYONE,
        on_model: _OnModel = lambda model: None,
    ) -> AsyncGenerator[TranscriptPiece | RecordingFacts, None]:
        """Yield the pieces of a transcript, and a summary last. ``name``: the model. Raises
        ``RequestError``, ``BackendError``."""
        if len(task.content) > self.max_bytes:
            raise TooLarge(f"The recording has more than {self.max_bytes} bytes.", param="file")
        async with use_model(self._models, name, "transcription", client) as (model, transcriber):
            on_model(model)
            worker: Transcriber = transcriber
            async with aclosing(worker.transcribe(task, tenant=tenant)) as parts:
                async for part in parts:
                    yield part

    async def transcript(
        self, name: str | None, task: TranscriptionTask, *, tenant: str
    ) -> WholeTranscript:
        """Return a whole transcript. See ``transcribe``."""
        passages: list[TranscriptPiece] = []
        summary = RecordingFacts()
        async with aclosing(self.transcribe(name, task, tenant=tenant)) as parts:
            async for part in parts:
                if isinstance(part, RecordingFacts):
                    summary = part
                else:
                    passages.append(part)
        return WholeTranscript(tuple(passages), summary)

    async def input_text(self, content: bytes, *, tenant: str) -> str:
        """Return the text of a recording in a conversation. Raises ``RequestError``,
        ``BackendError``."""
        key = (tenant, sha256(content).digest())
        if (kept := self._kept.pop(key, None)) is None:
            task = TranscriptionTask(content=content)
            kept = (await self.transcript(self.input_model, task, tenant=tenant)).text
            self._kept_chars += len(kept)
        self._kept[key] = kept
        while self._kept_chars > _KEPT_CHARS and len(self._kept) > 1:
            self._kept_chars -= len(self._kept.popitem(last=False)[1])
        return kept

    async def speak(
        self,
        name: str | None,
        task: SpeechTask,
        *,
        tenant: str,
        client: Client = ANYONE,
        on_model: _OnModel = lambda model: None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the audio of a text, piece by piece. ``name``: the model. Raises ``RequestError``,
        ``BackendError``."""
        async with use_model(self._models, name, "speech", client) as (model, found):
            on_model(model)
            speaker: Speaker = found
            async with aclosing(speaker.speak(task, tenant=tenant)) as pieces:
                async for piece in pieces:
                    yield piece

"""Write down speech and read texts aloud with any served model that can."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from hashlib import sha256
from typing import TypeAlias

from antiphon.audio.base import (
    MEDIA_TYPES,
    RecordingFacts,
    Speaker,
    SpeechTask,
    Transcriber,
    TranscriptionTask,
    TranscriptPiece,
)
from antiphon.backends.catalog import CatalogModel, ModelCatalog
from antiphon.errors import TooLarge
from antiphon.limits.clients import ANYONE, Client
from antiphon.support.aging_cache import AgingCache
from antiphon.wire.resources.audio import AudioTranscript

from .reading_models import use_model

__all__ = [
    "MEDIA_TYPES",
    "Audio",
    "RecordingFacts",
    "SpeechTask",
    "TranscriptPiece",
    "TranscriptionTask",
    "whole_transcript",
]

#: Maximum number of characters of transcripts, with their digests, that are kept for further turns
#: of conversations.
_KEPT_CHARS = 2**20
_TranscriptParts: TypeAlias = AsyncGenerator[TranscriptPiece | RecordingFacts, None]


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
        self._kept = AgingCache[str](max_bytes=_KEPT_CHARS, max_age_s=math.inf)

    @asynccontextmanager
    async def transcribe(
        self, name: str | None, task: TranscriptionTask, *, tenant: str, client: Client = ANYONE
    ) -> AsyncIterator[tuple[CatalogModel, _TranscriptParts]]:
        """Yield the model that writes down a recording, and an iterator over the pieces of the
        transcript with a summary last. ``name``: the name of the model. The work ends with the
        block. This method and the iterator raise ``RequestError`` and ``BackendError``."""
        if len(task.content) > self.max_bytes:
            raise TooLarge(f"The recording has more than {self.max_bytes} bytes.", param="file")
        async with use_model(self._models, name, "transcription", client) as (model, worker):
            transcriber: Transcriber = worker
            async with aclosing(transcriber.transcribe(task, tenant=tenant)) as parts:
                yield model, parts

    async def input_text(self, content: bytes, *, tenant: str) -> str:
        """Return the text of a recording in a conversation. Raises ``RequestError``,
        ``BackendError``."""
        digest = (await asyncio.to_thread(sha256, content)).hexdigest()
        kept = self._kept.get((tenant, digest))
        if kept is None:
            task = TranscriptionTask(content=content)
            async with self.transcribe(self.input_model, task, tenant=tenant) as (_, parts):
                text = (await whole_transcript(parts)).text
        else:
            text = kept.value
        # Also if it was there: it becomes the newest one.
        self._kept.add((tenant, digest), text, len(digest) + len(text))
        return text

    @asynccontextmanager
    async def speak(
        self, name: str | None, task: SpeechTask, *, tenant: str, client: Client = ANYONE
    ) -> AsyncIterator[tuple[CatalogModel, AsyncGenerator[bytes, None]]]:
        """Yield the model that reads a text aloud, and an iterator over the pieces of the audio.
        See ``transcribe``."""
        async with use_model(self._models, name, "speech", client) as (model, worker):
            speaker: Speaker = worker
            async with aclosing(speaker.speak(task, tenant=tenant)) as pieces:
                yield model, pieces


async def whole_transcript(parts: _TranscriptParts) -> AudioTranscript:
    """Read the pieces of a transcript to their end, and put them together."""
    pieces: list[TranscriptPiece] = []
    facts = RecordingFacts()
    async for part in parts:
        if isinstance(part, RecordingFacts):
            facts = part
        else:
            pieces.append(part)
    return AudioTranscript(
        text="".join(piece.text for piece in pieces).strip(),
        segments=tuple(piece.segment for piece in pieces if piece.segment is not None),
        words=tuple(word for piece in pieces for word in piece.words),
        language=facts.language,
        duration=facts.duration,
        usage=facts.usage,
    )

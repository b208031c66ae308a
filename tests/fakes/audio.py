"""A transcriber and a speaker for tests that need no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from antiphon.audio.base import (
    RecordingFacts,
    SpeechTask,
    TranscriptionTask,
    TranscriptPiece,
    unsupported,
)
from antiphon.errors import InvalidRequest
from antiphon.wire.resources.audio import DurationUsage, TranscriptSegment, TranscriptWord


class WordTranscriber:
    """``Transcriber`` without a model. A recording is a text in UTF-8. Each of its sentences is a
    segment, and each word takes a second. ``tasks``: the tasks so far. ``closings``: how many of
    them have ended. While ``error`` is set, every call raises this error after the first segment.
    While ``pause`` is not set, every call waits after the first segment."""

    def __init__(self) -> None:
        self.tasks: list[TranscriptionTask] = []
        self.tenants: list[str] = []
        self.closings = 0
        self.error: Exception | None = None
        self.pause = asyncio.Event()
        self.pause.set()

    async def transcribe(
        self, task: TranscriptionTask, *, tenant: str = ""
    ) -> AsyncGenerator[TranscriptPiece | RecordingFacts, None]:
        self.tasks.append(task)
        self.tenants.append(tenant)
        try:
            if task.language not in (None, "en"):
                raise unsupported("language", "this model knows en")
            try:
                text = task.content.decode()
            except UnicodeDecodeError:
                raise InvalidRequest("Invalid 'file': no audio.", param="file") from None
            at = 0
            for number, sentence in enumerate(text.split(".")[:-1]):
                words = tuple(
                    TranscriptWord(word=word, start=at + index, end=at + index + 1)
                    for index, word in enumerate(sentence.split())
                )
                yield _passage(number, f" {sentence.strip()}.", words if task.has_words else (), at)
                at += len(words)
                await self.pause.wait()
                if self.error is not None:
                    raise self.error
            yield RecordingFacts(language="en", duration=float(at), usage=DurationUsage(seconds=at))
        finally:
            self.closings += 1

    async def close(self) -> None:
        """Do nothing, because the transcriber has no resources to close."""


def _passage(
    number: int, text: str, words: tuple[TranscriptWord, ...], start: int
) -> TranscriptPiece:
    end = start + len(text.split())
    segment = TranscriptSegment(id=number, start=start, end=end, text=text)
    return TranscriptPiece(text=text, segment=segment, words=words)


class WordSpeaker:
    """``Speaker`` without a model. The audio of each word is ``[word]``. ``tasks``: the tasks so
    far. While ``error`` is set, every call raises this error after the first word."""

    def __init__(self) -> None:
        self.tasks: list[SpeechTask] = []
        self.error: Exception | None = None

    async def speak(self, task: SpeechTask, *, tenant: str = "") -> AsyncGenerator[bytes, None]:
        self.tasks.append(task)
        if task.voice != "alloy":
            raise unsupported("voice", "the voices are alloy")
        for word in task.text.split():
            yield f"[{word}]".encode()
            if self.error is not None:
                raise self.error

    async def close(self) -> None:
        """Do nothing, because the speaker has no resources to close."""

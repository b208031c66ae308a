"""The contracts of transcribers, which write down speech, and of speakers, which read texts
aloud."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct

from antiphon.errors import InvalidRequest, unsupported_value
from antiphon.wire.resources.audio import (
    AudioFormat,
    AudioUsage,
    TranscriptSegment,
    TranscriptWord,
)

#: The media types of speech.
MEDIA_TYPES: dict[AudioFormat, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}


class TranscriptionTask(Struct, frozen=True, kw_only=True):
    """A recording to write down.

    - ``content``: the file. ``filename``: its name without folders.
    - ``language``: the language of the speech, such as ``en``. None: the model detects it.
    - ``prompt``: a text in the style of the transcript, with names that it may contain.
    - ``temperature``: None means that the transcriber chooses.
    - ``translates``: whether the transcript is a translation into English.
    - ``has_segments``, ``has_words``: whether the times of segments and words are needed.
    - ``streams``: whether the client reads the transcript while it is written.
    """

    content: bytes
    filename: str = "audio"
    language: str | None = None
    prompt: str | None = None
    temperature: float | None = None
    translates: bool = False
    has_segments: bool = False
    has_words: bool = False
    streams: bool = False


class TranscriptPiece(Struct, frozen=True, kw_only=True, tag=True):
    """A piece of a transcript. ``text`` begins with the space that separates it from the piece
    before. ``segment`` is None if the transcriber reports no times."""

    text: str
    segment: TranscriptSegment | None = None
    words: tuple[TranscriptWord, ...] = ()


class RecordingFacts(Struct, frozen=True, kw_only=True, tag=True):
    """What a transcriber knows at the end of a recording. ``duration``: in seconds. A field is None
    if it is unknown."""

    language: str | None = None
    duration: float | None = None
    usage: AudioUsage | None = None


class Transcriber(Protocol):
    """Writes down speech with one model. The owner of a transcriber must close it."""

    def transcribe(
        self, task: TranscriptionTask, *, tenant: str = ""
    ) -> AsyncGenerator[TranscriptPiece | RecordingFacts, None]:
        """Yield the pieces of the transcript, and a summary last. Closing the iterator ends the
        work soon. Tenants take turns at a model of this process.

        Raises ``InvalidRequest`` with the name of the field, such as ``file``, for a recording that
        cannot be read or an option that the model does not support, and ``BackendError`` if the
        model fails.
        """

    async def close(self) -> None:
        """Free the model's memory."""


class SpeechTask(Struct, frozen=True, kw_only=True):
    """A text to read aloud. ``speed``: 1 is normal. ``instructions``: how to read it."""

    text: str
    voice: str
    format: AudioFormat = "mp3"
    speed: float = 1
    instructions: str | None = None


class Speaker(Protocol):
    """Reads texts aloud with one model. The owner of a speaker must close it."""

    def speak(self, task: SpeechTask, *, tenant: str = "") -> AsyncGenerator[bytes, None]:
        """Yield the audio in the format of the task, piece by piece. Closing the iterator ends the
        work. Raises ``InvalidRequest`` with the name of the field for an option that the speaker
        does not support, and ``BackendError`` if it fails."""

    async def close(self) -> None:
        """Free what the speaker holds."""


def unsupported(field: str, why: str) -> InvalidRequest:
    """Return the error for a field that a transcriber or a speaker does not support."""
    return unsupported_value(field, f"'{field}': {why}.")

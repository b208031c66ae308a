"""Objects of OpenAI's audio endpoints. The fields follow the types of the ``openai`` SDK 3.57."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from antiphon.wire.json_types import JsonObject

__all__ = [
    "AudioFormat",
    "AudioTranscript",
    "AudioUsage",
    "DurationUsage",
    "SpeechDelta",
    "SpeechDone",
    "SpeechEvent",
    "TokenUsage",
    "TranscriptDelta",
    "TranscriptDone",
    "TranscriptEvent",
    "TranscriptSegment",
    "TranscriptWord",
    "Transcription",
]


#: The formats of speech.
AudioFormat: TypeAlias = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


class TranscriptWord(Struct, frozen=True, kw_only=True):
    """A word, with its start and end in seconds."""

    word: str
    start: float
    end: float


class TranscriptSegment(Struct, frozen=True, kw_only=True):
    """A part of a transcript, with its start and end in seconds.

    ``seek``: the position of the model's window in hundredths of a second. ``avg_logprob``,
    ``compression_ratio`` and ``no_speech_prob`` show how sure the model is.
    """

    id: int
    seek: int = 0
    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    temperature: float = 0
    avg_logprob: float = 0
    compression_ratio: float = 0
    no_speech_prob: float = 0


class DurationUsage(Struct, frozen=True, kw_only=True, tag_field="type", tag="duration"):
    """What a transcript costs, as the duration of the audio."""

    seconds: float


class TokenUsage(Struct, frozen=True, kw_only=True, tag_field="type", tag="tokens"):
    """What a transcript costs, in tokens. Only upstream models count tokens."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: JsonObject | UnsetType = UNSET


AudioUsage = DurationUsage | TokenUsage


class AudioTranscript(Struct, frozen=True, kw_only=True):
    """The text of a recording, and facts about the recording. ``segments`` is empty if the model
    reports no times. ``duration``: in seconds. ``language``, ``duration`` and ``usage`` are None if
    they are unknown."""

    text: str
    segments: tuple[TranscriptSegment, ...] = ()
    words: tuple[TranscriptWord, ...] = ()
    language: str | None = None
    duration: float | None = None
    usage: AudioUsage | None = None


class Transcription(Struct, frozen=True, kw_only=True):
    """The answer with a transcript. It has fields besides ``text`` and ``usage`` only if
    ``response_format`` is ``verbose_json``, and ``words`` only if the client asks for their
    times."""

    text: str
    task: Literal["transcribe", "translate"] | UnsetType = UNSET
    language: str | UnsetType = UNSET
    duration: float | UnsetType = UNSET
    segments: tuple[TranscriptSegment, ...] | UnsetType = UNSET
    words: tuple[TranscriptWord, ...] | UnsetType = UNSET
    usage: AudioUsage | UnsetType = UNSET


class TranscriptDelta(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="transcript.text.delta"
):
    """The event for a further piece of the text."""

    delta: str


class TranscriptDone(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="transcript.text.done"
):
    """The last event of a transcript, with its whole text."""

    text: str
    usage: AudioUsage | UnsetType = UNSET


class SpeechDelta(Struct, frozen=True, kw_only=True, tag_field="type", tag="speech.audio.delta"):
    """The event for a further piece of the audio, in base64."""

    audio: str


class SpeechDone(Struct, frozen=True, kw_only=True, tag_field="type", tag="speech.audio.done"):
    """The last event of speech. ``usage`` is missing, because models of this kind count no
    tokens."""

    usage: TokenUsage | UnsetType = UNSET


TranscriptEvent = TranscriptDelta | TranscriptDone
SpeechEvent = SpeechDelta | SpeechDone

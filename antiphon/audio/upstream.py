"""Transcription and speech by other servers with OpenAI's audio endpoints: vLLM, SGLang, speaches,
LocalAI, Kokoro-FastAPI, OpenAI."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from antiphon.errors import BackendError
from antiphon.upstream.endpoint import UpstreamModel
from antiphon.upstream.errors import parse_error, upstream_error
from antiphon.upstream.multipart import FormFile, encode_form
from antiphon.wire.resources.audio import (
    AudioUsage,
    DurationUsage,
    TranscriptSegment,
    TranscriptWord,
)

from .base import RecordingFacts, SpeechTask, TranscriptionTask, TranscriptPiece

_INVALID = "The upstream's response is not a transcript."


class UpstreamTranscriber(UpstreamModel):
    """``Transcriber`` that sends recordings to an upstream."""

    async def transcribe(
        self, task: TranscriptionTask, *, tenant: str = ""
    ) -> AsyncGenerator[TranscriptPiece | RecordingFacts, None]:
        times = task.has_segments or task.has_words
        fields: dict[str, object] = {
            **self._body,
            "response_format": "verbose_json" if times else "json",
            **({"stream": True} if task.streams else {}),
        }
        for name in ("language", "prompt", "temperature"):
            if (value := getattr(task, name)) is not None:
                fields[name] = value
        if times and not task.translates:
            wanted = {"segment": task.has_segments, "word": task.has_words}
            fields["timestamp_granularities"] = [each for each, is_on in wanted.items() if is_on]
        file = FormFile(
            field="file",
            filename=task.filename,
            media_type="application/octet-stream",
            content=task.content,
        )
        kind, body = encode_form(fields, (file,))
        route = "translations" if task.translates else "transcriptions"
        answer = self._upstream.stream(
            f"{self._upstream.versioned_url}/audio/{route}", body, {"content-type": kind}
        )
        streamed = False
        async with aclosing(answer) as batches:
            async for payloads in batches:
                for payload in payloads:
                    for part in _parts(payload, streamed):
                        streamed = True
                        yield part
                        if isinstance(part, RecordingFacts):
                            return
        raise BackendError("The upstream ended without a transcript.")


class UpstreamSpeaker(UpstreamModel):
    """``Speaker`` that lets an upstream read texts aloud."""

    async def speak(self, task: SpeechTask, *, tenant: str = "") -> AsyncGenerator[bytes, None]:
        fields: dict[str, object] = {
            **self._body,
            "input": task.text,
            "voice": task.voice,
            "response_format": task.format,
        }
        if task.speed != 1:
            fields["speed"] = task.speed
        if task.instructions is not None:
            fields["instructions"] = task.instructions
        answer = self._upstream.stream(
            f"{self._upstream.versioned_url}/audio/speech", msgspec.json.encode(fields)
        )
        is_empty = True
        async with aclosing(answer) as batches:
            async for pieces in batches:
                for piece in pieces:
                    is_empty = False
                    yield piece
        if is_empty:
            raise BackendError("The upstream ended without audio.")


def _parts(payload: bytes, streamed: bool) -> list[TranscriptPiece | RecordingFacts]:
    """Return what a payload of the upstream adds to the transcript. ``streamed``: whether pieces
    came before. Raises ``BackendError``."""
    try:
        message = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BackendError(_INVALID) from None
    if not isinstance(message, dict):
        raise BackendError(_INVALID)
    kind = message.get("type")
    if message.get("error") or kind == "error":
        raise upstream_error(400, parse_error(message))
    if kind == "transcript.text.delta":
        return [TranscriptPiece(text=str(message.get("delta", "")))]
    if (kind is not None and kind != "transcript.text.done") or "text" not in message:
        return _chunk(message)
    try:
        pieces = [] if streamed else _passages(message)
        language = message.get("language")
        usage = _usage(message.get("usage"), message.get("duration"))
        summary = RecordingFacts(
            language=language if isinstance(language, str) else None,
            duration=usage.seconds if isinstance(usage, DurationUsage) else None,
            usage=usage,
        )
    except (msgspec.ValidationError, TypeError, ValueError):
        raise BackendError(_INVALID) from None
    return [*pieces, summary]


def _chunk(message: Mapping[str, Any]) -> list[TranscriptPiece | RecordingFacts]:
    """Return the piece in a chunk of vLLM's stream, whose chunks have the form of Chat Completions.
    Other messages are ignored."""
    choices = message.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return []
    delta = choices[0].get("delta")
    text = delta.get("content") if isinstance(delta, dict) else None
    pieces: list[TranscriptPiece | RecordingFacts] = (
        [TranscriptPiece(text=text)] if isinstance(text, str) else []
    )
    return [*pieces, RecordingFacts()] if choices[0].get("finish_reason") else pieces


def _passages(message: Mapping[str, Any]) -> list[TranscriptPiece | RecordingFacts]:
    words = tuple(msgspec.convert(message.get("words") or (), tuple[TranscriptWord, ...]))
    segments = message.get("segments") or ()
    if not segments:
        return [TranscriptPiece(text=str(message["text"]), words=words)]
    found = msgspec.convert(segments, tuple[TranscriptSegment, ...], strict=False)
    return [
        TranscriptPiece(text=each.text, segment=each, words=words if number == 0 else ())
        for number, each in enumerate(found)
    ]


def _usage(usage: object, duration: Any) -> AudioUsage | None:
    if isinstance(usage, dict) and usage.get("type") in ("tokens", "duration"):
        counted: AudioUsage = msgspec.convert(usage, AudioUsage, strict=False)
        return counted
    return None if duration is None else DurationUsage(seconds=float(duration))

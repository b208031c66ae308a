"""Transcripts and speech from another server: requests and responses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from antiphon.audio.base import RecordingFacts, SpeechTask, TranscriptionTask, TranscriptPiece
from antiphon.audio.upstream import UpstreamSpeaker, UpstreamTranscriber
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.errors import BackendError, InvalidRequest
from antiphon.models.catalog import load as load_catalog
from antiphon.resources.audio import Audio
from antiphon.upstream.endpoint import connecting_model
from antiphon.wire.resources.audio import DurationUsage, TokenUsage

VERBOSE = {
    "language": "english",
    "duration": "2.5",
    "text": "Come in.",
    "segments": [{"id": 0, "start": 0, "end": 2.5, "text": " Come in.", "tokens": [1]}],
    "words": [{"word": "Come", "start": 0, "end": 1}],
}
TASK = TranscriptionTask(content=b"RIFF", filename="a.wav")


@asynccontextmanager
async def answering(
    content: str | bytes, kind: str = "application/json", status: int = 200
) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A server with one answer, and the requests that it received."""
    requests: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        if request.content_type == "application/json":
            fields: dict[str, Any] = await request.json()
        else:
            form = await request.post()
            fields = {name: form.getall(name) for name in form}
        requests.append({"path": request.path, **fields})
        body = content.encode() if isinstance(content, str) else content
        return web.Response(body=body, content_type=kind, status=status)

    app = web.Application()
    app.router.add_post("/v1/audio/{what}", answer)
    async with TestServer(app, host="127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.port}", requests


async def transcribe(
    url: str, task: TranscriptionTask = TASK
) -> list[TranscriptPiece | RecordingFacts]:
    options = {"body": {"hotwords": "a"}}
    async with connecting_model("m", url, "k", "w", options) as (upstream, body):
        transcriber = UpstreamTranscriber(upstream, body)
    try:
        return [part async for part in transcriber.transcribe(task)]
    finally:
        await transcriber.close()


async def test_request_has_the_file_and_the_options() -> None:
    task = TranscriptionTask(
        content=b"RIFF", filename="a.wav", language="en", prompt="P", temperature=0, has_words=True
    )
    async with answering(json.dumps(VERBOSE)) as (url, requests):
        parts = await transcribe(url, task)
    [request] = requests
    assert request["path"] == "/v1/audio/transcriptions"
    assert request["file"][0].filename == "a.wav"
    assert request["response_format"] == ["verbose_json"] and request["language"] == ["en"]
    assert request["timestamp_granularities[]"] == ["word"] and request["temperature"] == ["0"]
    assert request["model"] == ["w"] and request["hotwords"] == ["a"]
    passage, summary = parts
    assert isinstance(passage, TranscriptPiece) and isinstance(summary, RecordingFacts)
    assert passage.segment is not None and passage.segment.end == 2.5
    assert passage.words[0].word == "Come"
    assert (summary.duration, summary.usage) == (2.5, DurationUsage(seconds=2.5))


async def test_name_of_a_file_adds_no_field() -> None:
    name = 'a"; name="model'
    async with answering('{"text": "Come in."}') as (url, requests):
        await transcribe(url, TranscriptionTask(content=b"RIFF", filename=name))
    assert requests[0]["file"][0].filename.replace("%22", '"') == name
    assert requests[0]["model"] == ["w"]


async def test_translation_has_its_own_route() -> None:
    async with answering('{"text": "Come in."}') as (url, requests):
        parts = await transcribe(url, TranscriptionTask(content=b"RIFF", translates=True))
    assert requests[0]["path"] == "/v1/audio/translations"
    assert parts == [TranscriptPiece(text="Come in."), RecordingFacts()]


OPENAI_STREAM = (
    'data: {"type":"transcript.text.delta","delta":"Come"}\n\n'
    'data: {"type":"transcript.text.delta","delta":" in."}\n\n'
    'data: {"type":"transcript.text.done","text":"Come in.","usage":'
    '{"type":"tokens","input_tokens":5,"output_tokens":3,"total_tokens":8}}\n\n'
)
VLLM_STREAM = (
    'data: {"object":"transcription.chunk","choices":[{"delta":{"content":"Come"}}]}\n\n'
    'data: {"object":"transcription.chunk","choices":'
    '[{"delta":{"content":" in."},"finish_reason":"stop"}]}\n\n'
    "data: [DONE]\n\n"
)


@pytest.mark.parametrize(
    ("stream", "usage"),
    [
        (OPENAI_STREAM, TokenUsage(input_tokens=5, output_tokens=3, total_tokens=8)),
        (VLLM_STREAM, None),
    ],
)
async def test_stream_is_passed_on(stream: str, usage: TokenUsage | None) -> None:
    async with answering(stream, "text/event-stream") as (url, requests):
        parts = await transcribe(url, TranscriptionTask(content=b"RIFF", streams=True))
    assert requests[0]["stream"] == ["true"]
    assert parts == [
        TranscriptPiece(text="Come"),
        TranscriptPiece(text=" in."),
        RecordingFacts(usage=usage),
    ]


@pytest.mark.parametrize(
    ("content", "status", "error"),
    [
        ("[]", 200, BackendError),
        ('{"text": "a", "segments": [1]}', 200, BackendError),
        ('{"text": "a", "duration": "long"}', 200, BackendError),
        ('{"error": {"message": "It broke."}}', 500, BackendError),
        ("", 200, BackendError),
    ],
)
async def test_unusable_answers_are_failures(
    content: str, status: int, error: type[Exception]
) -> None:
    kind = "text/event-stream" if not content else "application/json"
    async with answering(content, kind, status) as (url, _):
        with pytest.raises(error):
            await transcribe(url)


async def test_speech_is_passed_on() -> None:
    async with answering(b"data: \x00\xff" * 9_000, "audio/mpeg") as (url, requests):
        models = {"s": Model(engine="speech", source=url, upstream_model="tts")}
        catalog = await load_catalog(Settings(models=models))
        audio = Audio(catalog, None, 9)
        task = SpeechTask(text="Hi", voice="alloy", speed=2, instructions="Whisper.")
        async with audio.speak("s", task, tenant="a") as (_, pieces):
            spoken = b"".join([piece async for piece in pieces])
        with pytest.raises(InvalidRequest, match="does not write down speech"):
            async with audio.transcribe("s", TASK, tenant="a"):
                pass
        await catalog.close()
    assert spoken == b"data: \x00\xff" * 9_000
    assert requests == [
        {
            "path": "/v1/audio/speech",
            "model": "tts",
            "input": "Hi",
            "voice": "alloy",
            "response_format": "mp3",
            "speed": 2,
            "instructions": "Whisper.",
        }
    ]


async def test_speech_without_audio_is_a_failure() -> None:
    async with answering(b"", "audio/mpeg") as (url, _):
        async with connecting_model("m", url, None, "tts", None) as (upstream, body):
            speaker = UpstreamSpeaker(upstream, body)
        with pytest.raises(BackendError):
            [piece async for piece in speaker.speak(SpeechTask(text="Hi", voice="alloy"))]
        await speaker.close()

"""Endpoints of OpenAI's Audio API: transcripts, translations and speech, by the served models that
write down speech or read texts aloud."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from msgspec import UNSET
from starlette.requests import Request

from antiphon.compat.audio import (
    SpeechRequest,
    TranscriptionForm,
    TranslationForm,
    parse_speech,
    parse_transcription,
    parse_translation,
    render_transcript,
)
from antiphon.errors import invalid_field
from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.json_response import Reply, json_reply
from antiphon.http.middleware.request_context import RequestContext, request_context
from antiphon.http.openapi.operation import Form, operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests import multipart
from antiphon.http.streaming import sse
from antiphon.http.streaming.disconnect import CancelOnDisconnect
from antiphon.http.streaming.response import StreamFormat
from antiphon.http.streaming.task_stream import (
    TaskStream,
    first_awaited,
)
from antiphon.resources.audio import (
    MEDIA_TYPES,
    RecordingFacts,
    SpeechTask,
    TranscriptionTask,
    TranscriptPiece,
    whole_transcript,
)
from antiphon.wire.resources.audio import (
    SpeechDelta,
    SpeechDone,
    SpeechEvent,
    TranscriptDelta,
    TranscriptDone,
    TranscriptEvent,
    Transcription,
)


class AudioRoutes:
    """All routes below ``/v1/audio``."""

    def __init__(self, deps: EndpointDependencies) -> None:
        self._deps = deps
        self._audio = deps.service.audio

    @operation(
        "POST /v1/audio/transcriptions",
        "createTranscription",
        form=Form(file="file", fields=TranscriptionForm),
        answer=Transcription,
        events=TranscriptEvent,
        errors=(403, 404, 502),
    )
    async def transcribe(self, request: Request) -> Reply | TaskStream:
        """Write down a recording."""
        content, filename, pairs = await self._read(request)
        form = parse_transcription(pairs)
        needs_times = form.response_format not in ("json", "text")
        task = TranscriptionTask(
            content=content,
            filename=filename,
            language=form.language,
            prompt=form.prompt,
            temperature=form.temperature,
            has_segments=needs_times,
            has_words="word" in form.timestamp_granularities,
            streams=form.stream,
        )
        if not form.stream:
            return await self._answer(request, form, task)
        context = request_context(request.scope)
        events = await first_awaited(request, self._events(context, form, task))
        return TaskStream(events, self._deps.service.keepalive_s)

    @operation(
        "POST /v1/audio/translations",
        "createTranslation",
        form=Form(file="file", fields=TranslationForm),
        answer=Transcription,
        errors=(403, 404, 502),
    )
    async def translate(self, request: Request) -> Reply:
        """Write down a recording in English."""
        content, filename, pairs = await self._read(request)
        form = parse_translation(pairs)
        task = TranscriptionTask(
            content=content,
            filename=filename,
            prompt=form.prompt,
            temperature=form.temperature,
            translates=True,
            has_segments=form.response_format not in ("json", "text"),
        )
        return await self._answer(request, form, task)

    @operation(
        "POST /v1/audio/speech",
        "createSpeech",
        body=SpeechRequest,
        media_type="audio/mpeg",
        events=SpeechEvent,
        errors=(403, 404, 502),
    )
    async def speak(self, request: Request) -> TaskStream:
        """Read a text aloud."""
        parsed = await bodies.parse(request, self._deps.limits, parse_speech)
        task = SpeechTask(
            text=parsed.input,
            voice=parsed.voice_name,
            format=parsed.response_format,
            speed=parsed.speed,
            instructions=parsed.instructions,
        )
        context = request_context(request.scope)
        pieces = await first_awaited(request, self._pieces(context, parsed, task))
        if parsed.stream_format == "sse":
            return TaskStream(_speech_events(pieces), self._deps.service.keepalive_s)
        kind = (b"content-type", MEDIA_TYPES[parsed.response_format].encode())
        audio = StreamFormat(headers=(kind, *sse.HEADERS[1:]), end_mark=b"")
        # Audio has no form of keepalives and errors.
        return TaskStream(pieces, 0, bytes, audio, failure=None)

    async def _read(self, request: Request) -> tuple[bytes, str, tuple[tuple[str, str], ...]]:
        """Read the form of a request: the recording, its name and the fields. Raises
        ``RequestError``."""
        limit = min(self._audio.max_bytes, self._deps.limits.max_file_bytes)
        async with multipart.open_form(
            request.scope, request.receive, file="file", limit=limit
        ) as form:
            content = await multipart.read_content(request.scope, form)
        if not content:
            raise invalid_field("file", "the file is empty.", code="empty_file")
        return content, form.filename, form.pairs

    async def _answer(
        self, request: Request, form: TranslationForm, task: TranscriptionTask
    ) -> Reply:
        context = request_context(request.scope)
        parts = self._parts(context, form.model, task)
        async with CancelOnDisconnect(request.scope, request.receive), aclosing(parts):
            transcript = await whole_transcript(parts)
        found = render_transcript(form, transcript)
        if isinstance(found, tuple):
            media_type, text = found
            return Reply(text, media_type=media_type)
        return json_reply(found)

    async def _events(
        self, context: RequestContext, form: TranscriptionForm, task: TranscriptionTask
    ) -> AsyncGenerator[TranscriptEvent, None]:
        text = ""
        parts = self._parts(context, form.model, task)
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, RecordingFacts):
                    yield TranscriptDone(text=text, usage=part.usage or UNSET)
                elif piece := part.text if text else part.text.lstrip():
                    text += piece
                    yield TranscriptDelta(delta=piece)

    async def _parts(
        self, context: RequestContext, model: str, task: TranscriptionTask
    ) -> AsyncGenerator[TranscriptPiece | RecordingFacts, None]:
        """Yield the pieces of a transcript, within the limits of the client, and count it."""
        async with (
            self._deps.slot(context),
            self._audio.transcribe(model, task, tenant=context.tenant, client=context.client) as (
                used,
                parts,
            ),
        ):
            async for part in parts:
                if isinstance(part, RecordingFacts):
                    seconds = round(part.duration or 0)
                    self._deps.record_task(context, "transcription", used.name, seconds)
                yield part

    async def _pieces(
        self, context: RequestContext, parsed: SpeechRequest, task: SpeechTask
    ) -> AsyncGenerator[bytes, None]:
        async with (
            self._deps.slot(context),
            self._audio.speak(parsed.model, task, tenant=context.tenant, client=context.client) as (
                used,
                pieces,
            ),
        ):
            async for piece in pieces:
                yield piece
            self._deps.record_task(context, "speech", used.name, len(task.text))


async def _speech_events(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[Any, None]:
    async with aclosing(pieces):
        async for piece in pieces:
            yield SpeechDelta(audio=base64.b64encode(piece).decode())
    yield SpeechDone()

"""Whisper models that run in this process, with faster-whisper on CTranslate2.

A recording is written down in windows of 30 seconds. The model reads one window at a time, so
tenants take turns window by window, and a cancelled request stops after its current window.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.errors import BackendError, SetupError
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.fair_threads import TurnThread
from antiphon.support.installation import require_package
from antiphon.wire.resources.audio import DurationUsage, TranscriptSegment, TranscriptWord

from .base import RecordingFacts, TranscriptionTask, TranscriptPiece, unsupported
from .decoding import AudioDecoder
from .decoding_worker import SAMPLE_BYTES, SAMPLE_RATE

#: Seconds of a recording for which the model gets the spectrum at once. A longer recording is cut
#: where the last sentence of such a part begins, so that neither the memory nor a turn grows with
#: the recording.
_PART_S = 300
_PART_BYTES = _PART_S * SAMPLE_RATE * SAMPLE_BYTES
#: Recordings that are decoded and written down at a time, and how many of them one tenant may have.
#: Each needs memory for its samples.
_MAX_RECORDINGS, _MAX_PER_TENANT = 4, 3


class WhisperOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``engine_options`` of a Whisper model, with the names and values of faster-whisper. The
    ``compute_type`` ``auto`` is the fastest one of the device, which is ``int8`` on most CPUs."""

    device: str = "auto"
    compute_type: str = "auto"
    beam_size: int = 5
    vad_filter: bool = False
    condition_on_previous_text: bool = True


async def load(
    name: str,
    folder: Path,
    decoder: AudioDecoder,
    *,
    threads: int,
    engine_options: dict[str, Any],
) -> WhisperTranscriber:
    """Load a model in the format of CTranslate2. ``name``: its name in the settings. Raises
    ``SetupError``."""
    require_package("faster_whisper", "faster-whisper", "audio")
    try:
        options = msgspec.convert(engine_options, WhisperOptions)
    except msgspec.ValidationError as error:
        raise SetupError(f"models.{name}.engine_options: {error}") from None
    model = await asyncio.to_thread(_load, name, folder, threads, options)
    return WhisperTranscriber(model, decoder, options)


def _load(name: str, folder: Path, threads: int, options: WhisperOptions) -> Any:
    from faster_whisper import WhisperModel

    try:
        return WhisperModel(
            str(folder),
            device=options.device,
            compute_type=options.compute_type,
            cpu_threads=threads,
            local_files_only=True,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise SetupError(f"model {name}: {folder} cannot be loaded: {error}") from None


class WhisperTranscriber:
    """``Transcriber`` with a Whisper model. ``model``: a ``WhisperModel`` of faster-whisper.
    ``decoder`` decodes the recordings."""

    def __init__(self, model: Any, decoder: AudioDecoder, options: WhisperOptions) -> None:
        self._model = model
        self._decoder = decoder
        self._options = options
        self._recordings = FairLimiter(_MAX_RECORDINGS, max_per_tenant=_MAX_PER_TENANT)
        self._thread = TurnThread("whisper")

    async def transcribe(
        self, task: TranscriptionTask, *, tenant: str = ""
    ) -> AsyncGenerator[TranscriptPiece | RecordingFacts, None]:
        model = self._model
        languages = model.supported_languages
        if task.language is not None and task.language not in languages:
            raise unsupported("language", f"this model knows {', '.join(sorted(languages))}")
        if task.translates and not model.model.is_multilingual:
            raise unsupported("model", "this model knows only English and does not translate")
        async with self._recordings.slot(tenant):
            samples = await self._decoder.decode(task.content, tenant=tenant)
            async with aclosing(self._write_down(samples, task, tenant)) as parts:
                async for part in parts:
                    yield part

    async def _write_down(
        self, samples: bytes, task: TranscriptionTask, tenant: str
    ) -> AsyncGenerator[TranscriptPiece | RecordingFacts, None]:
        language, start, number = task.language, 0, 0
        while start < len(samples):
            part = samples[start : start + _PART_BYTES]
            is_last = start + len(part) >= len(samples)
            found, language = await self._run(tenant, partial(self._open, part, task, language))
            offset, held = start / SAMPLE_BYTES / SAMPLE_RATE, None
            while (segment := await self._run(tenant, partial(next, found, None))) is not None:
                if held is not None:
                    yield _passage(held, number, offset)
                    number += 1
                held = segment
            next_start = start + len(part)
            if held is not None and not is_last and held.start > 0:
                # The end of the part may have cut this sentence: the next part begins with it.
                next_start = start + int(held.start * SAMPLE_RATE) * SAMPLE_BYTES
            elif held is not None:
                yield _passage(held, number, offset)
                number += 1
            start = next_start
        seconds = len(samples) / SAMPLE_BYTES / SAMPLE_RATE
        yield RecordingFacts(
            language=language, duration=seconds, usage=DurationUsage(seconds=round(seconds, 2))
        )

    async def _run(self, tenant: str, work: Any) -> Any:
        try:
            return await self._thread.run(tenant, work)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise BackendError(f"The model failed: {error}") from None

    def _open(
        self, samples: bytes, task: TranscriptionTask, language: str | None
    ) -> tuple[Iterator[Any], str]:
        """Start to write down a part of a recording. Returns the iterator over its segments, which
        does the work, and the language."""
        import numpy

        waves = numpy.frombuffer(samples, numpy.dtype("<i2")).astype(numpy.float32) / 32_768
        given = {} if task.temperature is None else {"temperature": task.temperature}
        segments, info = self._model.transcribe(
            waves,
            language=language,
            task="translate" if task.translates else "transcribe",
            initial_prompt=task.prompt,
            word_timestamps=task.has_words,
            beam_size=self._options.beam_size,
            vad_filter=self._options.vad_filter,
            condition_on_previous_text=self._options.condition_on_previous_text,
            **given,
        )
        return segments, info.language

    async def close(self) -> None:
        if not self._thread.closed:
            await self._thread.close()
            self._model = None


def _passage(segment: Any, number: int, offset: float) -> TranscriptPiece:
    """Convert a segment of faster-whisper. ``offset``: where its part of the recording begins, in
    seconds."""
    return TranscriptPiece(
        text=segment.text,
        segment=TranscriptSegment(
            id=number,
            seek=segment.seek + round(offset * 100),
            start=round(float(segment.start) + offset, 3),
            end=round(float(segment.end) + offset, 3),
            text=segment.text,
            tokens=tuple(segment.tokens),
            temperature=float(segment.temperature or 0),
            avg_logprob=float(segment.avg_logprob),
            compression_ratio=float(segment.compression_ratio),
            no_speech_prob=float(segment.no_speech_prob),
        ),
        words=tuple(
            TranscriptWord(
                word=word.word.strip(),
                start=round(float(word.start) + offset, 3),
                end=round(float(word.end) + offset, 3),
            )
            for word in segment.words or ()
        ),
    )

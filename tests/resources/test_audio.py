"""Transcripts that are kept for further turns of a conversation."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.backends.reading import TranscriptionBackend
from antiphon.models.catalog import Catalog, ServedModel
from antiphon.resources import audio as module
from antiphon.resources.audio import Audio
from tests.fakes.audio import WordTranscriber


async def test_transcripts_are_kept_by_tenant_and_the_oldest_one_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_KEPT_CHARS", 210)
    transcriber = WordTranscriber()
    backend = TranscriptionBackend("hears", transcriber)
    catalog = Catalog((ServedModel(name="hears", backend=backend, created=1),))
    audio = Audio(catalog, "hears", 1000)
    transcriber.pause.clear()  # one conversation may contain a recording twice
    both = [asyncio.create_task(audio.input_text(b"One.", tenant="a")) for _ in range(2)]
    async with asyncio.timeout(20):
        while len(transcriber.tasks) < 2:
            await asyncio.sleep(0)
        transcriber.pause.set()
        await asyncio.gather(*both)

    async def hear(content: bytes, tenant: str) -> int:
        assert await audio.input_text(content, tenant=tenant) == content.decode()
        return len(transcriber.tasks)

    assert [await hear(each, "a") for each in (b"Two.", b"One.", b"Two.")] == [3, 3, 3]
    assert await hear(b"One.", "b") == 4
    assert await hear(b"One.", "a") == await hear(b"Two.", "a") == 4
    assert await hear(b"Three.", "a") == 5
    assert await hear(b"One.", "a") == await hear(b"Two.", "a") == 5
    assert await hear(b"One.", "b") == 6

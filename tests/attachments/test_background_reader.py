"""A reader of documents that is opened in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.attachments.background_reader import BackgroundReader
from antiphon.attachments.documents import DocumentReader, ProcessReader


class _Reader:
    """``DocumentReader`` that repeats what it gets."""

    async def read(self, content: bytes, kind: str, *, max_chars: int, timeout_s: float) -> bytes:
        return b"read: " + content


class _Opening:
    """Opens ``reader`` when ``ready`` is set."""

    def __init__(self, reader: DocumentReader | None) -> None:
        self.ready = asyncio.Event()
        self.is_closed = False
        self._reader = reader

    @asynccontextmanager
    async def open(self) -> AsyncIterator[DocumentReader | None]:
        await self.ready.wait()
        try:
            yield self._reader
        finally:
            self.is_closed = True


async def test_documents_wait_until_the_reader_is_open() -> None:
    opening = _Opening(_Reader())
    async with BackgroundReader(opening.open()) as reader:
        reading = [
            asyncio.create_task(reader.read(text, "", max_chars=1, timeout_s=60))
            for text in (b"a", b"b")
        ]
        await asyncio.sleep(0)
        reading[0].cancel()
        opening.ready.set()
        assert await reading[1] == b"read: b"
    assert opening.is_closed


async def test_without_a_reader_a_subprocess_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessReader, "read", _Reader.read)
    opening = _Opening(None)
    opening.ready.set()
    async with BackgroundReader(opening.open()) as reader:
        assert await reader.read(b"a", "", max_chars=1, timeout_s=60) == b"read: a"


async def test_a_reader_that_is_not_open_yet_can_be_closed() -> None:
    opening = _Opening(_Reader())
    async with BackgroundReader(opening.open()):
        await asyncio.sleep(0)
    assert not opening.is_closed

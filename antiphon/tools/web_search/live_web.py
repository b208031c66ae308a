"""The web as a source: somebody who finds pages, and a fetcher that brings them to be read."""

from __future__ import annotations

import asyncio
from typing import Protocol

from antiphon.attachments.documents import Documents
from antiphon.attachments.fetch import Failed, Fetcher
from antiphon.errors import ToolError

from .browser import Asked
from .extract import read
from .index import Document
from .page import Found, Page

__all__ = ["Finder", "Web", "document_of"]

_READ_SECONDS = 20.0


class Finder(Protocol):
    """Who finds pages of the web."""

    async def find(self, query: str, asked: Asked) -> tuple[Found, ...]:
        """The best results first; filters may be left to the caller. Raises ``ToolError``."""

    async def close(self) -> None: ...


class Web:
    """``Source`` over a finder, which it closes, and others' means to fetch and to read."""

    def __init__(self, finder: Finder, fetcher: Fetcher, documents: Documents) -> None:
        self._finder = finder
        self._fetcher = fetcher
        self._documents = documents

    async def search(self, query: str, asked: Asked) -> tuple[Found, ...]:
        return await self._finder.find(query, asked)

    async def page(self, url: str) -> Page:
        found = await document_of(url, self._fetcher, self._documents)
        return await asyncio.to_thread(Page.of, found.url, found.title, found.text, found.links)

    async def close(self) -> None:
        await self._finder.close()


async def document_of(url: str, fetcher: Fetcher, documents: Documents) -> Document:
    """What stands behind a URL, read, under the URL where it was found in the end. Raises
    ``ToolError``."""
    try:
        fetched = await fetcher.fetch(url)
    except Failed as failed:
        raise ToolError(f"{url} could not be fetched: {failed}.") from None
    try:
        async with asyncio.timeout(_READ_SECONDS):
            return await read(fetched.url or url, fetched.content, fetched.mime, documents)
    except TimeoutError:
        raise ToolError(f"{url} took too long to read.") from None

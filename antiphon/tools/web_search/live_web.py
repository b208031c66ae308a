"""The web as a source: somebody who finds pages, and a fetcher that brings them to be read."""

from __future__ import annotations

import asyncio
from typing import Protocol

from antiphon.attachments.documents import Documents
from antiphon.attachments.fetch import Failed, Fetcher
from antiphon.errors import ToolError

from .browser import SearchOptions
from .extract import extract_document
from .index import PageDocument
from .page import SearchResult, WebPage

__all__ = ["LiveWeb", "SearchEngine", "fetch_document"]

_READ_TIMEOUT_S = 20.0


class SearchEngine(Protocol):
    """Who finds pages of the web."""

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        """The best results first; filters may be left to the caller. Raises ``ToolError``."""

    async def close(self) -> None: ...


class LiveWeb:
    """``Source`` over a finder, which it closes, and others' means to fetch and to read."""

    def __init__(self, engine: SearchEngine, fetcher: Fetcher, documents: Documents) -> None:
        self._engine = engine
        self._fetcher = fetcher
        self._documents = documents

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        return await self._engine.search(query, options)

    async def page(self, url: str) -> WebPage:
        found = await fetch_document(url, self._fetcher, self._documents)
        return await asyncio.to_thread(
            WebPage.from_text, found.url, found.title, found.text, found.links
        )

    async def close(self) -> None:
        await self._engine.close()


async def fetch_document(url: str, fetcher: Fetcher, documents: Documents) -> PageDocument:
    """What stands behind a URL, read, under the URL where it was found in the end. Raises
    ``ToolError``."""
    try:
        fetched = await fetcher.fetch(url)
    except Failed as failed:
        raise ToolError(f"{url} could not be fetched: {failed}.") from None
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            return await extract_document(
                fetched.url or url, fetched.content, fetched.mime, documents
            )
    except TimeoutError:
        raise ToolError(f"{url} took too long to read.") from None

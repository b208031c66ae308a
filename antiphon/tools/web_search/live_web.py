"""The web as a source of pages. A search engine finds pages, and a fetcher downloads them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from antiphon.attachments.documents import Documents
from antiphon.attachments.fetch import Fetcher, FetchError
from antiphon.errors import ToolError

from .browser import SearchOptions
from .extract import extract_document
from .index import PageDocument
from .page import SearchResult, WebPage

_READ_TIMEOUT_S = 20.0


class SearchEngine(Protocol):
    """A search engine that finds pages of the web."""

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        """Search the web. Return the results, with the best result first. An engine may ignore the
        domain filters in ``options``, because the caller applies them too. Raises ``ToolError``."""

    async def close(self) -> None: ...


class LiveWeb:
    """The ``PageSource`` for the web. It uses a search engine, a fetcher and a document reader.
    Without an engine, it only opens pages.
    Closing it closes the search engine. It does not close the fetcher and the document reader,
    because other objects use them too."""

    def __init__(self, engine: SearchEngine | None, fetcher: Fetcher, documents: Documents) -> None:
        self._engine = engine
        self._fetcher = fetcher
        self._documents = documents

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        if self._engine is None:
            raise ToolError("The web cannot be searched here.")
        return await self._engine.search(query, options)

    async def page(self, url: str, *, tenant: str = "") -> WebPage:
        document = await fetch_document(url, self._fetcher, self._documents, tenant=tenant)
        return await asyncio.to_thread(
            WebPage.from_text, document.url, document.title, document.text, document.links
        )

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()


async def fetch_document(
    url: str, fetcher: Fetcher, documents: Documents, *, tenant: str = ""
) -> PageDocument:
    """Fetch a page on behalf of a tenant, and convert it to text. The returned document has the URL
    after redirects. Raises ``ToolError``."""
    try:
        fetched = await fetcher.fetch(url, tenant=tenant)
    except FetchError as failed:
        raise ToolError(f"{url} could not be fetched: {failed}.") from None
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            return await extract_document(
                fetched.url or url, fetched.content, fetched.mime, documents, tenant=tenant
            )
    except TimeoutError:
        raise ToolError(f"{url} took too long to read.") from None

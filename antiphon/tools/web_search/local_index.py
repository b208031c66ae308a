"""A ``PageSource`` that reads web pages from a local index file instead of the web. The file may be
created while the server runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from antiphon.errors import SetupError, ToolError

from .browser import SearchOptions
from .index import PageIndex
from .page import SearchResult, WebPage


class LocalIndex:
    """The ``PageSource`` for a file with an index of web pages. The file may be missing at first.
    ``LocalIndex`` opens the file as soon as it exists.

    ``missing``: a function that returns instructions for creating the missing file. The constructor
    raises ``SetupError`` if the file exists but cannot be used as an index.
    """

    def __init__(self, path: Path, missing: Callable[[], str]) -> None:
        self._path = path
        self._missing = missing
        self._index: PageIndex | None = PageIndex(path) if path.is_file() else None

    def unavailable_reason(self) -> str | None:
        """Return the reason why the index cannot be searched. Return None if it can be searched. If
        the file exists but is not open yet, this method opens it."""
        if self._index is None and not self._path.is_file():
            return self._missing()
        try:
            self._index = self._index or PageIndex(self._path)
        except SetupError as error:
            return str(error)
        return None

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        return await self._opened().search(query, options)

    async def page(self, url: str, *, tenant: str = "") -> WebPage:
        return await self._opened().page(url, tenant=tenant)

    def _opened(self) -> PageIndex:
        reason = self.unavailable_reason()
        if self._index is None:
            raise ToolError(reason or "The index cannot be used.")
        return self._index

    async def close(self) -> None:
        if self._index is not None:
            await self._index.close()

"""The browser of one response: it searches, opens and looks through pages, and keeps those it has
shown by number, for what comes next and for citations. Semantics: gpt-oss's browser tool.

It knows no wire and does not know where pages come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from antiphon.errors import ToolError

from .page import Found, Page, domain

__all__ = ["Asked", "Browser", "Shown", "Source"]


class Asked(Struct, frozen=True, kw_only=True):
    """What a request wants of searches. ``count``: results; ``room``: characters of a view.
    ``allowed`` and ``blocked``: domains, with all that is below them."""

    count: int = 10
    room: int = 4000
    allowed: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    location: Mapping[str, Any] = {}

    def allows(self, url: str) -> bool:
        """Whether pages of this URL may be shown."""
        host = domain(url)
        if any(_is_below(host, name) for name in self.blocked):
            return False
        return not self.allowed or any(_is_below(host, name) for name in self.allowed)


class Source(Protocol):
    """Where pages come from."""

    async def search(self, query: str, asked: Asked) -> tuple[Found, ...]:
        """The best results first. Raises ``ToolError``."""

    async def page(self, url: str) -> Page:
        """Raises ``ToolError``."""

    async def close(self) -> None: ...


class Shown(Struct, frozen=True, kw_only=True):
    """What came of a step: the text for the model, what it was on the wire, and what it found."""

    text: str
    action: Mapping[str, Any]
    found: tuple[Found, ...] = ()


class Browser:
    """One a response."""

    def __init__(self, source: Source, asked: Asked) -> None:
        self._source = source
        self._asked = asked
        self._stack: list[Page] = []
        self._pages: dict[str, Page] = {}

    def shown(self, cursor: int) -> Page | None:
        """The page of a cursor."""
        return self._stack[cursor] if 0 <= cursor < len(self._stack) else None

    async def search(self, query: str) -> Shown:
        """Search. Raises ``ToolError``."""
        results = await self._source.search(query, self._asked)
        found = tuple(one for one in results if self._asked.allows(one.url))[: self._asked.count]
        page = Page.listing(query, found)
        return Shown(
            text=self._show(page, 0),
            action={"type": "search", "query": query, "queries": [query]},
            found=found,
        )

    async def open(
        self, id: int | str | None, cursor: int | None, loc: int, lines: int | None
    ) -> Shown:
        """Open a link of a page by its number, a URL, or a page that was shown, at line ``loc``.
        Raises ``ToolError``."""
        if isinstance(id, str):
            page = await self._page(id)
        elif id is None or id < 0:
            page = self._at(cursor)
        else:
            links = self._at(cursor).links
            if id >= len(links):
                raise ToolError(f"There is no link {id} on that page.")
            page = await self._page(links[id])
        return Shown(
            text=self._show(page, max(0, loc), lines),
            action={"type": "open_page", "url": page.url or None},
        )

    def find(self, pattern: str, cursor: int | None) -> Shown:
        """Look for ``pattern`` in a page that was shown. Raises ``ToolError``."""
        page = self._at(cursor)
        if page.is_results:
            raise ToolError("Open one of the results first: a list of them is not searched.")
        self._stack.append(page)
        text = page.find(len(self._stack) - 1, pattern)
        return Shown(
            text=text or f"{pattern!r} is not on the page {page.url}.",
            action={"type": "find_in_page", "url": page.url, "pattern": pattern},
        )

    def _at(self, cursor: int | None) -> Page:
        if not self._stack:
            raise ToolError("No page was opened yet: search, or open a URL.")
        if cursor is None or cursor == -1:
            return self._stack[-1]
        page = self.shown(cursor)
        if page is None:
            raise ToolError(f"There is no page [{cursor}].")
        return page

    async def _page(self, url: str) -> Page:
        if not self._asked.allows(url):
            raise ToolError(f"Pages of {domain(url)} are not allowed here.")
        if url not in self._pages:
            self._pages[url] = await self._source.page(url)
        return self._pages[url]

    def _show(self, page: Page, start: int, lines: int | None = None) -> str:
        self._stack.append(page)
        return page.view(len(self._stack) - 1, start, self._asked.room, lines)


def _is_below(host: str, name: str) -> bool:
    name = name.removeprefix("www.").lower()
    return host == name or host.endswith(f".{name}")

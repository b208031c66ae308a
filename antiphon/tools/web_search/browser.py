"""The browser of one response: it searches, opens and looks through pages, and keeps those it has
shown by number, for what comes next and for citations. Semantics: gpt-oss's browser tool.

It knows no wire and does not know where pages come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import ToolError

from .page import Found, Page, domain

__all__ = ["Asked", "Browser", "Shown", "Source"]

#: Lines that are shown before a hit that is opened.
_BEFORE = 4


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
    """One a response. Each step has a cursor, also one that failed; ``before`` are the pages of the
    steps that earlier responses took: what was shown is still known by its number."""

    def __init__(self, source: Source, asked: Asked, before: Sequence[Page | None] = ()) -> None:
        self._source = source
        self._asked = asked
        self._stack: list[Page | None] = list(before)
        self._pages: dict[str, Page] = {}

    def begin(self) -> int:
        """The cursor of the step that begins now."""
        self._stack.append(None)
        return len(self._stack) - 1

    def shown(self, cursor: int) -> Page | None:
        """The page of a cursor."""
        return self._stack[cursor] if 0 <= cursor < len(self._stack) else None

    async def search(self, query: str, *, at: int) -> Shown:
        """Search; the step's cursor is ``at``. Raises ``ToolError``."""
        results = await self._source.search(query, self._asked)
        found = tuple(one for one in results if self._asked.allows(one.url))[: self._asked.count]
        page = Page.listing(query, found)
        return Shown(
            text=self._show(at, page, 0),
            action={"type": "search", "query": query, "queries": [query]},
            found=found,
        )

    async def open(
        self,
        id: int | str | None,
        cursor: int | None,
        loc: int | None,
        lines: int | None,
        *,
        at: int,
    ) -> Shown:
        """Open a link of a page by its number, a URL, or a page that was shown, at line ``loc``.
        Raises ``ToolError``."""
        start = 0
        if isinstance(id, str):
            page = await self._page(id)
        elif id is None or id < 0:
            page = await self._read(self._at(cursor))
        else:
            links = self._at(cursor).links
            if id >= len(links):
                raise ToolError(f"There is no link {id} on that page.")
            url, start = links[id]
            page = await self._page(url)
        return Shown(
            text=self._show(at, page, start if loc is None else max(0, loc), lines),
            action={"type": "open_page", "url": page.url or None},
        )

    async def find(self, pattern: str, cursor: int | None, *, at: int) -> Shown:
        """Look for ``pattern`` in a page that was shown. Raises ``ToolError``."""
        page = self._at(cursor)
        if page.found is not None:
            raise ToolError("Open one of the results first: a list of them is not searched.")
        page = await self._read(page)
        hits = page.find(pattern)
        links = tuple((page.url, max(0, line - _BEFORE)) for line in hits)
        self._stack[at] = replace(page, links=links or page.links)
        told = (
            page.hits(at, hits, self._asked.room)
            if hits
            else f"{pattern!r} is not on the page {page.url}."
        )
        return Shown(
            text=told,
            action={"type": "find_in_page", "url": page.url, "pattern": pattern},
        )

    def _at(self, cursor: int | None) -> Page:
        if cursor is None or cursor == -1:
            page = next((page for page in reversed(self._stack) if page is not None), None)
            if page is None:
                raise ToolError("No page was opened yet: search, or open a URL.")
            return page
        page = self.shown(cursor)
        if page is None:
            raise ToolError(f"There is no page [{cursor}].")
        return page

    async def _read(self, page: Page) -> Page:
        """The page as it is read: those of earlier responses are only known by their URLs, and what
        was looked for in a page is not the page."""
        return page if page.found is not None else await self._page(page.url)

    async def _page(self, url: str) -> Page:
        self._check(url)
        if url not in self._pages:
            page = await self._source.page(url)
            self._check(page.url)  # where it was found in the end
            self._pages[url] = self._pages[page.url] = page
        return self._pages[url]

    def _check(self, url: str) -> None:
        if not self._asked.allows(url):
            raise ToolError(f"Pages of {domain(url)} are not allowed here.")

    def _show(self, at: int, page: Page, start: int, lines: int | None = None) -> str:
        self._stack[at] = page
        return page.view(at, start, self._asked.room, lines)


def _is_below(host: str, name: str) -> bool:
    name = name.removeprefix("www.").lower()
    return host == name or host.endswith(f".{name}")

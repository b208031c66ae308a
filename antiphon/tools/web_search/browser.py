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

from .page import SearchResult, WebPage, domain

__all__ = ["Browser", "PageSource", "SearchOptions", "StepResult"]

#: Lines that are shown before a hit that is opened.
_LINES_BEFORE_HIT = 4


class SearchOptions(Struct, frozen=True, kw_only=True):
    """What a request wants of searches. ``count``: results; ``room``: characters of a view.
    ``allowed`` and ``blocked``: domains, with all that is below them."""

    count: int = 10
    max_view_chars: int = 4000
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    location: Mapping[str, Any] = {}

    def allows(self, url: str) -> bool:
        """Whether pages of this URL may be shown."""
        host = domain(url)
        if any(_is_subdomain(host, name) for name in self.blocked_domains):
            return False
        return not self.allowed_domains or any(
            _is_subdomain(host, name) for name in self.allowed_domains
        )


class PageSource(Protocol):
    """Where pages come from."""

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        """The best results first. Raises ``ToolError``."""

    async def page(self, url: str) -> WebPage:
        """Raises ``ToolError``."""

    async def close(self) -> None: ...


class StepResult(Struct, frozen=True, kw_only=True):
    """What came of a step: the text for the model, what it was on the wire, and what it found."""

    text: str
    action: Mapping[str, Any]
    results: tuple[SearchResult, ...] = ()


class Browser:
    """One a response. Each step has a cursor, also one that failed; ``before`` are the pages of the
    steps that earlier responses took: what was shown is still known by its number."""

    def __init__(
        self,
        source: PageSource,
        options: SearchOptions,
        earlier_pages: Sequence[WebPage | None] = (),
    ) -> None:
        self._source = source
        self._options = options
        self._shown_pages: list[WebPage | None] = list(earlier_pages)
        self._page_cache: dict[str, WebPage] = {}

    def begin_step(self) -> int:
        """The cursor of the step that begins now."""
        self._shown_pages.append(None)
        return len(self._shown_pages) - 1

    def page_at(self, cursor: int) -> WebPage | None:
        """The page of a cursor."""
        return self._shown_pages[cursor] if 0 <= cursor < len(self._shown_pages) else None

    async def search(self, query: str, *, at: int) -> StepResult:
        """Search; the step's cursor is ``at``. Raises ``ToolError``."""
        results = await self._source.search(query, self._options)
        found = tuple(one for one in results if self._options.allows(one.url))[
            : self._options.count
        ]
        page = WebPage.from_results(query, found)
        return StepResult(
            text=self._show(at, page, 0),
            action={"type": "search", "query": query, "queries": [query]},
            results=found,
        )

    async def open(
        self,
        id: int | str | None,
        cursor: int | None,
        loc: int | None,
        lines: int | None,
        *,
        at: int,
    ) -> StepResult:
        """Open a link of a page by its number, a URL, or a page that was shown, at line ``loc``.
        Raises ``ToolError``."""
        start = 0
        if isinstance(id, str):
            page = await self._load_page(id)
        elif id is None or id < 0:
            page = await self._read_page(self._require_page(cursor))
        else:
            links = self._require_page(cursor).links
            if id >= len(links):
                raise ToolError(f"There is no link {id} on that page.")
            url, start = links[id]
            page = await self._load_page(url)
        return StepResult(
            text=self._show(at, page, start if loc is None else max(0, loc), lines),
            action={"type": "open_page", "url": page.url or None},
        )

    async def find(self, pattern: str, cursor: int | None, *, at: int) -> StepResult:
        """Look for ``pattern`` in a page that was shown. Raises ``ToolError``."""
        page = self._require_page(cursor)
        if page.results is not None:
            raise ToolError("Open one of the results first: a list of them is not searched.")
        page = await self._read_page(page)
        hits = page.find_lines(pattern)
        links = tuple((page.url, max(0, line - _LINES_BEFORE_HIT)) for line in hits)
        self._shown_pages[at] = replace(page, links=links or page.links)
        told = (
            page.view_hits(at, hits, self._options.max_view_chars)
            if hits
            else f"{pattern!r} is not on the page {page.url}."
        )
        return StepResult(
            text=told,
            action={"type": "find_in_page", "url": page.url, "pattern": pattern},
        )

    def _require_page(self, cursor: int | None) -> WebPage:
        if cursor is None or cursor == -1:
            page = next((page for page in reversed(self._shown_pages) if page is not None), None)
            if page is None:
                raise ToolError("No page was opened yet: search, or open a URL.")
            return page
        page = self.page_at(cursor)
        if page is None:
            raise ToolError(f"There is no page [{cursor}].")
        return page

    async def _read_page(self, page: WebPage) -> WebPage:
        """The page as it is read: those of earlier responses are only known by their URLs, and what
        was looked for in a page is not the page."""
        return page if page.results is not None else await self._load_page(page.url)

    async def _load_page(self, url: str) -> WebPage:
        self._check_allowed(url)
        if url not in self._page_cache:
            page = await self._source.page(url)
            self._check_allowed(page.url)  # where it was found in the end
            self._page_cache[url] = self._page_cache[page.url] = page
        return self._page_cache[url]

    def _check_allowed(self, url: str) -> None:
        if not self._options.allows(url):
            raise ToolError(f"Pages of {domain(url)} are not allowed here.")

    def _show(self, at: int, page: WebPage, start: int, lines: int | None = None) -> str:
        self._shown_pages[at] = page
        return page.view(at, start, self._options.max_view_chars, lines)


def _is_subdomain(host: str, name: str) -> bool:
    name = name.removeprefix("www.").lower()
    return host == name or host.endswith(f".{name}")

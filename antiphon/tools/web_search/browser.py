"""The browser of one response: the functions with which the model searches, opens pages and finds
text in pages.

Each tool call that the model makes is a step. Each step has a number, its cursor. The cursor also
stands for the page that the step has shown. Later steps and citations refer to pages by cursor. The
browser behaves like the browser tool of gpt-oss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import ToolError

from .page import SearchResult, WebPage, domain

#: Number of lines that are shown before a match, when the model opens a page at the match.
_LINES_BEFORE_HIT = 4


class SearchOptions(Struct, frozen=True, kw_only=True):
    """The search options of a request.

    - ``count``: the number of results.
    - ``max_view_chars``: the maximum number of characters of a page that one call shows.
    - ``allowed_domains``, ``blocked_domains``: domains, including their subdomains.
    - ``location``: the user's approximate location.
    - ``known_urls``: a function that returns whether the conversation contains a URL. If it is set,
      the model can open only such URLs, and the links of pages.
    - ``tenant``: the tenant that searches. If many searches wait, tenants are served alternately.
    """

    count: int = 10
    max_view_chars: int = 4000
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    location: Mapping[str, Any] = {}
    known_urls: Callable[[str], bool] | None = None
    tenant: str = ""

    def allows(self, url: str) -> bool:
        """Whether the model may be shown pages with this URL."""
        host = domain(url)
        if any(_is_subdomain(host, name) for name in self.blocked_domains):
            return False
        return not self.allowed_domains or any(
            _is_subdomain(host, name) for name in self.allowed_domains
        )


class PageSource(Protocol):
    """A source of pages for the browser: the web or a local index."""

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        """Search for pages. Return the results, with the best result first. Raises
        ``ToolError``."""

    async def page(self, url: str, *, tenant: str = "") -> WebPage:
        """Return the page at a URL, on behalf of a tenant. Raises ``ToolError``."""

    async def close(self) -> None: ...


class StepResult(Struct, frozen=True, kw_only=True):
    """The result of a step. ``text``: the text for the model. ``action``: the field ``action`` of
    the output item. ``results``: the search results, if the step was a search. ``page``: the page
    that the step has opened."""

    text: str
    action: Mapping[str, Any]
    results: tuple[SearchResult, ...] = ()
    page: WebPage | None = None


class Browser:
    """The browser of one response: the pages that its steps have shown. A step gets a cursor even
    if it fails.

    ``earlier_pages``: the pages of the steps of earlier responses. They keep the cursors of these
    steps valid.
    """

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
        """Begin a step, and return its cursor."""
        self._shown_pages.append(None)
        return len(self._shown_pages) - 1

    def page_at(self, cursor: int) -> WebPage | None:
        """Return the page that the step with this cursor has shown. Return None if there is no such
        page."""
        return self._shown_pages[cursor] if 0 <= cursor < len(self._shown_pages) else None

    async def search(self, query: str, *, step_cursor: int) -> StepResult:
        """Search for pages and show the model the list of results. ``step_cursor``: the cursor of
        this step. Raises ``ToolError``."""
        results = await self._source.search(query, self._options)
        allowed_results = tuple(one for one in results if self._options.allows(one.url))[
            : self._options.count
        ]
        page = WebPage.from_results(query, allowed_results)
        return StepResult(
            text=self._show(step_cursor, page, 0),
            action={"type": "search", "query": query, "queries": [query]},
            results=allowed_results,
        )

    async def open(
        self,
        id: int | str | None,
        cursor: int | None,
        loc: int | None,
        lines: int | None,
        *,
        step_cursor: int,
    ) -> StepResult:
        """Show a page. Raises ``ToolError``.

        - ``id``: a URL, or the number of a link in the page with the number ``cursor``. If ``id``
          is None or negative, this page itself is shown.
        - ``cursor``: the number of a page that an earlier step has shown. None means the page that
          was shown last.
        - ``loc``: the first line to show. By default, it is the line that the link refers to.
        - ``lines``: the maximum number of lines to show.
        - ``step_cursor``: the cursor of this step.
        """
        start = 0
        if isinstance(id, str):
            if self._options.known_urls is not None and not self._options.known_urls(id):
                raise ToolError("Only URLs that the user or a tool has given can be opened.")
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
            text=self._show(step_cursor, page, start if loc is None else max(0, loc), lines),
            action={"type": "open_page", "url": page.url or None},
            page=page,
        )

    async def find(self, pattern: str, cursor: int | None, *, step_cursor: int) -> StepResult:
        """Find ``pattern`` in a page that an earlier step has shown. ``cursor``: the cursor of that
        step; None means the page that was shown last. ``step_cursor``: the cursor of this step.
        Raises ``ToolError``."""
        page = self._require_page(cursor)
        if page.results is not None:
            raise ToolError("Open one of the results first: a list of results cannot be searched.")
        page = await self._read_page(page)
        hit_lines = page.find_lines(pattern)
        links = tuple((page.url, max(0, line - _LINES_BEFORE_HIT)) for line in hit_lines)
        self._shown_pages[step_cursor] = replace(page, links=links or page.links)
        text = (
            page.view_hits(step_cursor, hit_lines, self._options.max_view_chars)
            if hit_lines
            else f"{pattern!r} is not on the page {page.url}."
        )
        return StepResult(
            text=text,
            action={"type": "find_in_page", "url": page.url, "pattern": pattern},
        )

    def _require_page(self, cursor: int | None) -> WebPage:
        if cursor is None or cursor == -1:
            page = next((page for page in reversed(self._shown_pages) if page is not None), None)
            if page is None:
                raise ToolError("No page is open yet: search, or open a URL.")
            return page
        page = self.page_at(cursor)
        if page is None:
            raise ToolError(f"There is no page [{cursor}].")
        return page

    async def _read_page(self, page: WebPage) -> WebPage:
        """Return the page with its full text and its own links. A list of search results is
        returned unchanged.

        Any other page is loaded from its URL, for two reasons. A page of an earlier response has no
        text. A page that ``find`` has shown has links to the matches instead of its own links.
        """
        return page if page.results is not None else await self._load_page(page.url)

    async def _load_page(self, url: str) -> WebPage:
        self._check_allowed(url)
        if url not in self._page_cache:
            page = await self._source.page(url, tenant=self._options.tenant)
            self._check_allowed(page.url)  # the URL after redirects
            self._page_cache[url] = self._page_cache[page.url] = page
        return self._page_cache[url]

    def _check_allowed(self, url: str) -> None:
        if not self._options.allows(url):
            raise ToolError(f"Pages of {domain(url)} are not allowed here.")

    def _show(self, step_cursor: int, page: WebPage, start: int, lines: int | None = None) -> str:
        self._shown_pages[step_cursor] = page
        return page.view(step_cursor, start, self._options.max_view_chars, lines)


def _is_subdomain(host: str, name: str) -> bool:
    name = name.removeprefix("www.").lower()
    return host == name or host.endswith(f".{name}")

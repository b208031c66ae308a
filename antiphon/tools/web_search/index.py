"""A local index of pages: a SQLite file with full text search.

It provides web search without an API key and without network access.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TypeVar

import structlog
from msgspec import Struct

from antiphon.errors import SetupError, ToolError
from antiphon.store.common.search_terms import index_terms
from antiphon.store.common.search_terms import query_terms as query_terms

from .browser import SearchOptions
from .page import SearchResult, WebPage, strip_links

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)

#: ``source``: the folder or file from which a page was read. ``indexed_title``, ``indexed_text``:
#: the normalized title and text for the index. They are NULL if they equal ``title`` and ``text``.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS pages (
    id INTEGER PRIMARY KEY, url TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL,
    links TEXT NOT NULL, source TEXT NOT NULL DEFAULT '', indexed_title TEXT, indexed_text TEXT
);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    title, text, content='pages', content_rowid='id', tokenize='porter unicode61'
);
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON pages BEGIN
    INSERT INTO words (rowid, title, text) VALUES (
        new.id, coalesce(new.indexed_title, new.title), coalesce(new.indexed_text, new.text)
    );
END;
CREATE TRIGGER IF NOT EXISTS removed AFTER DELETE ON pages BEGIN
    INSERT INTO words (words, rowid, title, text) VALUES (
        'delete', old.id,
        coalesce(old.indexed_title, old.title), coalesce(old.indexed_text, old.text)
    );
END;
"""
_SEARCH = """
SELECT url, pages.title, pages.text FROM words JOIN pages ON id = words.rowid
WHERE words MATCH ? AND rank MATCH 'bm25(3.0, 1.0)' ORDER BY rank
"""
_PAGE = """
SELECT url, title, text, links FROM pages WHERE url IN (?1, ?2, ?3) ORDER BY url = ?1 DESC LIMIT 1
"""
_MAX_QUERY_TERMS = 64
#: The number of characters in a snippet, and the number of characters before the first match in it.
_SNIPPET_CHARS, _CHARS_BEFORE_HIT = 300, 60
#: The maximum number of word occurrences that are examined for a snippet.
_MAX_HITS = 1000


def _create_private(path: Path) -> None:
    """Create the file if it does not exist. Only its owner can read it, because it contains the
    full text of the pages."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


class PageDocument(Struct, frozen=True, kw_only=True):
    """A web page to add to a ``PageIndex``. ``text`` contains numbered links. The number of a link
    is its position in ``links``."""

    url: str
    title: str
    text: str
    links: tuple[str, ...] = ()


class PageIndex:
    """The ``PageSource`` for a file with an index of web pages. With the path ``:memory:``, the
    index is kept in memory.

    The constructor raises ``SetupError`` if the file cannot be used as an index.
    """

    def __init__(self, path: Path | str) -> None:
        try:
            if path != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                _create_private(Path(path))
            self._database = sqlite3.connect(path, check_same_thread=False)
            self._database.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise SetupError(f"The index {path} cannot be used: {error}") from None
        self._lock = Lock()

    async def add(self, documents: Iterable[PageDocument], source: str = "") -> int:
        """Add pages. They replace indexed pages with the same URL. Return the number of added
        pages.

        ``source``: the folder or file from which the pages were read.
        """
        rows = [
            (
                each.url,
                each.title,
                each.text,
                "\n".join(each.links),
                source,
                *(
                    None if index_terms(text) == text else index_terms(text)
                    for text in (each.title, each.text)
                ),
            )
            for each in documents
        ]

        def write() -> int:
            with self._database:
                self._database.executemany(
                    "DELETE FROM pages WHERE url = ?", [(row[0],) for row in rows]
                )
                self._database.executemany(
                    "INSERT INTO pages (url, title, text, links, source, indexed_title,"
                    " indexed_text) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    rows,
                )
            return len(rows)

        return await self._run_locked(write)

    async def remove_missing(self, source: str, urls: Collection[str]) -> int:
        """Remove the pages that were read from ``source`` and whose URL is not in ``urls``. Return
        the number of removed pages."""

        def write() -> int:
            found = self._database.execute("SELECT url FROM pages WHERE source = ?", (source,))
            missing = [row for row in found.fetchall() if row[0] not in urls]
            with self._database:
                self._database.executemany("DELETE FROM pages WHERE url = ?", missing)
            return len(missing)

        return await self._run_locked(write)

    async def list(self, prefix: str = "") -> tuple[tuple[str, str], ...]:
        """Return the URL and the title of each page whose URL starts with ``prefix``, ordered by
        URL."""
        query = "SELECT url, title FROM pages WHERE substr(url, 1, ?) = ? ORDER BY url"
        return await self._run_locked(
            lambda: tuple(self._database.execute(query, (len(prefix), prefix)).fetchall())
        )

    async def remove(self, prefix: str) -> int:
        """Remove the pages whose URL starts with ``prefix``. Return the number of removed pages."""

        def write() -> int:
            with self._database:
                found = self._database.execute(
                    "DELETE FROM pages WHERE substr(url, 1, ?) = ?", (len(prefix), prefix)
                )
            return found.rowcount

        return await self._run_locked(write)

    async def count(self) -> int:
        """Return the number of pages in the index."""
        return await self._run_locked(
            lambda: int(self._database.execute("SELECT count(*) FROM pages").fetchone()[0])
        )

    async def search(self, query: str, options: SearchOptions) -> tuple[SearchResult, ...]:
        words = query_terms(query)[:_MAX_QUERY_TERMS]

        def read() -> list[SearchResult]:
            rows = self._database.execute(_SEARCH, (" OR ".join(f'"{word}"' for word in words),))
            allowed = (row for row in rows if options.allows(row[0]))
            best = islice(allowed, options.count)
            return [
                SearchResult(url=url, title=title, text=_snippet(strip_links(text), words))
                for url, title, text in best
            ]

        found = await self._run_query(read) if words else []
        if not found and not await self.count():
            raise ToolError("The index of this server is empty, so nothing can be found.")
        return tuple(found)

    async def page(self, url: str, *, tenant: str = "") -> WebPage:
        plain, _, _ = url.partition("#")
        other_spelling = plain.removesuffix("/") if plain.endswith("/") else f"{plain}/"

        def read() -> tuple[str, str, str, str] | None:
            row: tuple[str, str, str, str] | None = self._database.execute(
                _PAGE, (url, plain, other_spelling)
            ).fetchone()
            return row

        row = await self._run_query(read)
        if row is None:
            raise ToolError(f"The page {url} is not in the index.")
        found, title, text, links = row
        return await asyncio.to_thread(
            WebPage.from_text, found, title, text, tuple(links.split("\n")) if links else ()
        )

    async def close(self) -> None:
        await self._run_locked(self._database.close)

    async def _run_query(self, work: Callable[[], _T]) -> _T:
        """Run a query for a tool call. ``work`` runs in a thread.

        Raises ``ToolError`` if SQLite fails, for example because another process is writing.
        """
        try:
            return await self._run_locked(work)
        except sqlite3.Error:
            _log.exception("the index could not be read")
            raise ToolError("The index of this server cannot be read now.") from None

    async def _run_locked(self, work: Callable[[], _T]) -> _T:
        def locked() -> _T:
            with self._lock:
                return work()

        return await asyncio.to_thread(locked)


def _snippet(text: str, words: list[str]) -> str:
    """Return an excerpt of the text that contains as many different words of the query as
    possible."""
    # The endings are cut off because the index stems words: "fjord" finds "fjords".
    stems = [re.escape(word[: max(3, len(word) - 2)]) for word in words]
    places = [hit.start() for hit in islice(re.finditer("|".join(stems), text, re.I), _MAX_HITS)]
    best, most = 0, 0
    for at, place in enumerate(places):
        near = {
            text[p : p + 3].lower()
            for p in places[at:]
            if p < place + _SNIPPET_CHARS - _CHARS_BEFORE_HIT
        }
        if len(near) > most:
            best, most = place, len(near)
    start = max(0, best - _CHARS_BEFORE_HIT)
    start = 0 if start == 0 else max(text.find(" ", start, best), start - 1) + 1
    end = start + _SNIPPET_CHARS
    end = len(text) if end >= len(text) else max(text.rfind(" ", best, end), best + 1)
    return f"{'… ' if start else ''}{text[start:end].strip()}{' …' if end < len(text) else ''}"


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

"""An index of pages of one's own: a SQLite file with full text search. It makes web search work
without a key and without the web. It knows nothing of browsers and of how pages are read.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TypeVar

from msgspec import Struct

from antiphon.errors import SetupError, ToolError

from .browser import Asked
from .page import Found, Page, unlinked

__all__ = ["Document", "Index"]

_T = TypeVar("_T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pages (
    id INTEGER PRIMARY KEY, url TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL,
    links TEXT NOT NULL, source TEXT NOT NULL DEFAULT ''
);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
    title, text, content='pages', content_rowid='id', tokenize='porter unicode61'
);
CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON pages BEGIN
    INSERT INTO words (rowid, title, text) VALUES (new.id, new.title, new.text);
END;
CREATE TRIGGER IF NOT EXISTS removed AFTER DELETE ON pages BEGIN
    INSERT INTO words (words, rowid, title, text)
    VALUES ('delete', old.id, old.title, old.text);
END;
"""
_SEARCH = """
SELECT url, pages.title, snippet(words, 1, '', '', ' … ', 40)
FROM words JOIN pages ON id = words.rowid
WHERE words MATCH ? AND rank MATCH 'bm25(3.0, 1.0)' ORDER BY rank
"""
_PAGE = """
SELECT url, title, text, links FROM pages WHERE url IN (?1, ?2, ?3) ORDER BY url = ?1 DESC LIMIT 1
"""
_WORD = re.compile(r"\w+")
_MOST_WORDS = 64


class Document(Struct, frozen=True, kw_only=True):
    """A page to be kept: where it is to be found, and what it says."""

    url: str
    title: str
    text: str
    links: tuple[str, ...] = ()


class Index:
    """``Source`` over a file; ``:memory:`` for none. Raises ``SetupError`` for one that is no
    index."""

    def __init__(self, path: Path | str) -> None:
        try:
            if path != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, check_same_thread=False)
            self._database.executescript(_SCHEMA)
            self._grow()
        except (OSError, sqlite3.Error) as error:
            raise SetupError(f"The index {path} cannot be used: {error}") from None
        self._lock = Lock()

    def _grow(self) -> None:
        """Indexes of earlier versions did not know where their pages came from."""
        columns = {row[1] for row in self._database.execute("PRAGMA table_info(pages)")}
        if "source" not in columns:
            self._database.execute("ALTER TABLE pages ADD COLUMN source TEXT NOT NULL DEFAULT ''")

    async def add(self, documents: Iterable[Document], source: str = "") -> int:
        """Keep them; one of the same URL is replaced. ``source``: the folder or file they were read
        from. Returns how many there were."""
        rows = [
            (each.url, each.title, each.text, "\n".join(each.links), source) for each in documents
        ]

        def write() -> int:
            with self._database:
                self._database.executemany(
                    "DELETE FROM pages WHERE url = ?", [(row[0],) for row in rows]
                )
                self._database.executemany(
                    "INSERT INTO pages (url, title, text, links, source) VALUES (?, ?, ?, ?, ?)",
                    rows,
                )
            return len(rows)

        return await self._with(write)

    async def keep(self, source: str, urls: Collection[str]) -> int:
        """Forget the pages of a source that are not among these. Returns how many there were."""

        def write() -> int:
            found = self._database.execute("SELECT url FROM pages WHERE source = ?", (source,))
            gone = [row for row in found.fetchall() if row[0] not in urls]
            with self._database:
                self._database.executemany("DELETE FROM pages WHERE url = ?", gone)
            return len(gone)

        return await self._with(write)

    async def list(self, prefix: str = "") -> tuple[tuple[str, str], ...]:
        """URL and title of the pages whose URL begins so, in order."""
        query = "SELECT url, title FROM pages WHERE substr(url, 1, ?) = ? ORDER BY url"
        return await self._with(
            lambda: tuple(self._database.execute(query, (len(prefix), prefix)).fetchall())
        )

    async def remove(self, prefix: str) -> int:
        """Forget the pages whose URL begins so. Returns how many there were."""

        def write() -> int:
            with self._database:
                found = self._database.execute(
                    "DELETE FROM pages WHERE substr(url, 1, ?) = ?", (len(prefix), prefix)
                )
            return found.rowcount

        return await self._with(write)

    async def count(self) -> int:
        """How many pages there are."""
        return await self._with(
            lambda: int(self._database.execute("SELECT count(*) FROM pages").fetchone()[0])
        )

    async def search(self, query: str, asked: Asked) -> tuple[Found, ...]:
        words = [f'"{word}"' for word in dict.fromkeys(_WORD.findall(query))][:_MOST_WORDS]

        def read() -> list[Found]:
            rows = self._database.execute(_SEARCH, (" OR ".join(words),))
            allowed = (row for row in rows if asked.allows(row[0]))
            best = islice(allowed, asked.count)
            return [Found(url=url, title=title, text=unlinked(text)) for url, title, text in best]

        found = await self._with(read) if words else []
        if not found and not await self.count():
            raise ToolError("Nothing can be found: the index of this server is empty.")
        return tuple(found)

    async def page(self, url: str) -> Page:
        plain, _, _ = url.partition("#")
        twin = plain.removesuffix("/") if plain.endswith("/") else f"{plain}/"

        def read() -> Page | None:
            row = self._database.execute(_PAGE, (url, plain, twin)).fetchone()
            if row is None:
                return None
            return Page.of(row[0], row[1], row[2], tuple(row[3].split("\n")) if row[3] else ())

        page = await self._with(read)
        if page is None:
            raise ToolError(f"The page {url} is not in the index.")
        return page

    async def close(self) -> None:
        await self._with(self._database.close)

    async def _with(self, work: Callable[[], _T]) -> _T:
        def locked() -> _T:
            with self._lock:
                return work()

        return await asyncio.to_thread(locked)

"""An index of pages of one's own: a SQLite file with full text search. It makes web search work
without a key and without the web. It knows nothing of browsers and of how pages are read.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock
from typing import TypeVar

from msgspec import Struct

from antiphon.errors import SetupError, ToolError

from .browser import Asked
from .page import Found, Page

__all__ = ["Document", "Index"]

_T = TypeVar("_T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pages (
    id INTEGER PRIMARY KEY, url TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL,
    links TEXT NOT NULL
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
WHERE words MATCH ? ORDER BY bm25(words, 3.0, 1.0) LIMIT ?
"""
_WORD = re.compile(r"\w+")
#: Results are asked for beyond what is wanted: filters take some away.
_BEYOND = 5


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
        except (OSError, sqlite3.Error) as error:
            raise SetupError(f"The index {path} cannot be used: {error}") from None
        self._lock = Lock()

    async def add(self, documents: Iterable[Document]) -> int:
        """Keep them; one of the same URL is replaced. Returns how many there were."""
        rows = [(each.url, each.title, each.text, "\n".join(each.links)) for each in documents]

        def write() -> int:
            with self._database:
                self._database.executemany(
                    "DELETE FROM pages WHERE url = ?", [(row[0],) for row in rows]
                )
                self._database.executemany(
                    "INSERT INTO pages (url, title, text, links) VALUES (?, ?, ?, ?)", rows
                )
            return len(rows)

        return await self._with(write)

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
        words = [f'"{word}"' for word in _WORD.findall(query)]
        if not words:
            return ()
        limit = asked.count * _BEYOND

        def read() -> list[tuple[str, str, str]]:
            return self._database.execute(_SEARCH, (" OR ".join(words), limit)).fetchall()

        rows = await self._with(read)
        return tuple(Found(url=url, title=title, text=text) for url, title, text in rows)

    async def page(self, url: str) -> Page:
        def read() -> tuple[str, str, str] | None:
            found: tuple[str, str, str] | None = self._database.execute(
                "SELECT title, text, links FROM pages WHERE url = ?", (url,)
            ).fetchone()
            return found

        row = await self._with(read)
        if row is None:
            raise ToolError(f"The page {url} is not in the index.")
        title, text, links = row
        return Page.of(url, title, text, tuple(links.split("\n")) if links else ())

    async def close(self) -> None:
        await self._with(self._database.close)

    async def _with(self, work: Callable[[], _T]) -> _T:
        def locked() -> _T:
            with self._lock:
                return work()

        return await asyncio.to_thread(locked)

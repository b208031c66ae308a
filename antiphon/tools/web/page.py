"""A page as a model reads it: lines of bounded width, links by number, a view at a time.

The form is that of gpt-oss's browser: it is what those models were trained on, and any model can
read it. It knows no network.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from urllib.parse import urlsplit

from msgspec import Struct

__all__ = ["Found", "Page", "domain", "plain"]

_WIDTH = 80
#: Hits that a search in a page shows, and the lines of each.
_HITS, _AROUND = 50, 4
_NOT_OURS = str.maketrans("【】", "〖〗")
_BLANKS = re.compile(r"\n{3,}")


class Found(Struct, frozen=True, kw_only=True):
    """One result of a search. ``text``: what it says there, in short."""

    url: str
    title: str
    text: str = ""


class Page(Struct, frozen=True, kw_only=True):
    """``links``: the URLs its text refers to as ``【0†…】``, ``【1†…】`` …. ``is_results``: it
    lists what a search found."""

    url: str
    title: str
    lines: tuple[str, ...]
    links: tuple[str, ...] = ()
    is_results: bool = False

    @classmethod
    def of(
        cls, url: str, title: str, text: str, links: tuple[str, ...] = (), *, results: bool = False
    ) -> Page:
        """The page with this text, wrapped."""
        lines = tuple(_wrapped(_BLANKS.sub("\n\n", text.strip())))
        title = plain(title) or domain(url)
        return cls(url=url, title=title, lines=lines, links=links, is_results=results)

    @classmethod
    def listing(cls, query: str, found: tuple[Found, ...]) -> Page:
        """What a search found, each result a link."""
        entries = [
            f"【{at}†{plain(one.title) or domain(one.url)}†{domain(one.url)}】\n{plain(one.text)}"
            for at, one in enumerate(found)
        ]
        text = "\n\n".join(entries) or "Nothing was found. Try other words."
        links = tuple(one.url for one in found)
        return cls.of("", f"Results for {query}", text, links, results=True)

    def view(self, cursor: int, start: int, room: int, most: int | None = None) -> str:
        """Lines from ``start`` on, as many as fit ``room`` characters, at most ``most``."""
        start = max(0, min(start, max(0, len(self.lines) - 1)))
        shown: list[str] = []
        size = 0
        for at in range(start, len(self.lines)):
            line = f"L{at}: {self.lines[at]}"
            size += len(line) + 1
            if shown and (size > room or (most is not None and len(shown) >= most)):
                break
            shown.append(line)
        last = start + max(0, len(shown) - 1)
        head = f"**viewing lines [{start} - {last}] of {max(0, len(self.lines) - 1)}**"
        return "\n".join((self._head(cursor), head, "", *shown))

    def find(self, cursor: int, pattern: str) -> str | None:
        """Where ``pattern`` stands, with the lines behind it; None if nowhere."""
        wanted = pattern.casefold()
        hits: list[str] = []
        at = 0
        while at < len(self.lines) and len(hits) < _HITS:
            if wanted in self.lines[at].casefold():
                after = self.lines[at : at + _AROUND]
                lines = [f"L{at + n}: {line}" for n, line in enumerate(after)]
                hits.append("\n".join((f"# match {len(hits)} at L{at}", *lines)))
                at += _AROUND
            else:
                at += 1
        return "\n\n".join((self._head(cursor), *hits)) if hits else None

    def _head(self, cursor: int) -> str:
        return f"[{cursor}] {self.title}" + (f" ({self.url})" if self.url else "")


def domain(url: str) -> str:
    """The host of a URL, as it is shown."""
    try:
        return (urlsplit(url).hostname or url).removeprefix("www.")
    except ValueError:
        return url


def plain(text: str) -> str:
    """Text of others, on one line, that cannot look like a citation or a link of ours."""
    return " ".join(text.translate(_NOT_OURS).split())


def _wrapped(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from textwrap.wrap(
            line, _WIDTH, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False
        ) or [""]

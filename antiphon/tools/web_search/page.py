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

__all__ = ["Found", "Page", "domain", "plain", "unlinked"]

_WIDTH = 80
#: Hits that a search in a page shows, and the lines of each.
_HITS, _AROUND = 50, 4
#: Characters of what is told of a result.
_SHORT = 600
_NOT_OURS = str.maketrans("【】", "〖〗")
_BLANKS = re.compile(r"\n{3,}")
_LINK = re.compile(r"【\d+†([^【】†\n]*)(?:†[^【】\n]*)?】")


class Found(Struct, frozen=True, kw_only=True):
    """One result of a search. ``text``: what it says there, in short."""

    url: str
    title: str
    text: str = ""


class Page(Struct, frozen=True, kw_only=True):
    """``links``: the URLs its text refers to as ``【0†…】``, ``【1†…】`` …, each with the line at
    which it is opened. ``found``: what a search found, each with the line where it is told of;
    None: this is no list of results. A page without lines has not been read."""

    url: str
    title: str
    lines: tuple[str, ...] = ()
    links: tuple[tuple[str, int], ...] = ()
    found: tuple[tuple[int, Found], ...] | None = None

    @classmethod
    def of(cls, url: str, title: str, text: str, links: tuple[str, ...] = ()) -> Page:
        """The page with this text, wrapped."""
        lines = tuple(_wrapped(_BLANKS.sub("\n\n", text.strip()))) or ("",)
        targets = tuple((link, 0) for link in links)
        return cls(url=url, title=plain(title) or domain(url), lines=lines, links=targets)

    @classmethod
    def listing(cls, query: str, results: tuple[Found, ...]) -> Page:
        """What a search found, each result a link."""
        lines: list[str] = []
        found: list[tuple[int, Found]] = []
        for at, one in enumerate(results):
            found.append((len(lines), one))
            lines += _wrapped(f"【{at}†{plain(one.title) or domain(one.url)}†{domain(one.url)}】")
            lines += (*_wrapped(_shortened(plain(one.text))), "")
        return cls(
            url="",
            title=f"Results for {plain(query)}",
            lines=tuple(lines[:-1]) or ("Nothing was found. Try other words.",),
            links=tuple((one.url, 0) for one in results),
            found=tuple(found),
        )

    def cited(self, line: int | None) -> Found | None:
        """What is cited by a line of this page: itself, or in a list the result that stands
        there."""
        if self.found is None:
            return Found(url=self.url, title=self.title)
        before = [one for at, one in self.found if line is not None and at <= line]
        return before[-1] if before else None

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

    def find(self, pattern: str) -> tuple[int, ...]:
        """The lines where ``pattern`` begins, links aside, and not again in the lines that are
        shown with them."""
        lines = self._read()
        wanted = " ".join(pattern.casefold().split())
        hits: list[int] = []
        for at, line in enumerate(lines):
            if len(hits) == _HITS:
                break
            if hits and at < hits[-1] + _AROUND:
                continue
            over = f"{line.rstrip()} {lines[at + 1].lstrip()}" if at + 1 < len(lines) else line
            found = line.casefold().find(wanted)
            if found < 0:  # it may go on in the next line
                found = over.casefold().find(wanted)
            if 0 <= found < len(line.casefold()):
                hits.append(at)
        return tuple(hits)

    def hits(self, cursor: int, found: tuple[int, ...], room: int) -> str:
        """The lines that were found, each hit a link to its place; as many as fit ``room``
        characters."""
        lines, said, size = self._read(), [self._head(cursor)], 0
        for number, at in enumerate(found):
            shown = (f"L{at + n}: {line}" for n, line in enumerate(lines[at : at + _AROUND]))
            hit = "\n".join((f"# 【{number}†match at L{at}】", *shown))
            size += len(hit) + 2
            if number and size > room:
                said.append(f"… and {len(found) - number} more")
                break
            said.append(hit)
        return "\n\n".join(said)

    def _read(self) -> list[str]:
        """The lines with the names of links alone."""
        return [unlinked(line) for line in self.lines]

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


def unlinked(text: str) -> str:
    """The text with the names of links alone."""
    return _LINK.sub(r"\1", text)


def _wrapped(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from textwrap.wrap(
            line, _WIDTH, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False
        ) or [""]


def _shortened(text: str) -> str:
    return textwrap.shorten(text, _SHORT, placeholder=" …")

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

__all__ = ["SearchResult", "WebPage", "domain", "plain_line", "strip_links"]

_WIDTH = 80
#: Hits that a search in a page shows, and the lines of each.
_MAX_HITS, _LINES_PER_HIT = 50, 4
#: Characters of what is told of a result.
_MAX_RESULT_CHARS = 600
_REPLACED_BRACKETS = str.maketrans("【】", "〖〗")
_BLANKS = re.compile(r"\n{3,}")
_LINK = re.compile(r"【\d+†([^【】†\n]*)(?:†[^【】\n]*)?】")


class SearchResult(Struct, frozen=True, kw_only=True):
    """One result of a search. ``text``: what it says there, in short."""

    url: str
    title: str
    text: str = ""


class WebPage(Struct, frozen=True, kw_only=True):
    """``links``: the URLs its text refers to as ``【0†…】``, ``【1†…】`` …, each with the line at
    which it is opened. ``found``: what a search found, each with the line where it is told of;
    None: this is no list of results. A page without lines has not been read."""

    url: str
    title: str
    lines: tuple[str, ...] = ()
    links: tuple[tuple[str, int], ...] = ()
    results: tuple[tuple[int, SearchResult], ...] | None = None

    @classmethod
    def from_text(cls, url: str, title: str, text: str, links: tuple[str, ...] = ()) -> WebPage:
        """The page with this text, wrapped."""
        lines = tuple(_wrap(_BLANKS.sub("\n\n", text.strip()))) or ("",)
        targets = tuple((link, 0) for link in links)
        return cls(url=url, title=plain_line(title) or domain(url), lines=lines, links=targets)

    @classmethod
    def from_results(cls, query: str, results: tuple[SearchResult, ...]) -> WebPage:
        """What a search found, each result a link."""
        lines: list[str] = []
        listed: list[tuple[int, SearchResult]] = []
        for at, one in enumerate(results):
            listed.append((len(lines), one))
            lines += _wrap(f"【{at}†{plain_line(one.title) or domain(one.url)}†{domain(one.url)}】")
            lines += (*_wrap(_shorten(plain_line(one.text))), "")
        return cls(
            url="",
            title=f"Results for {plain_line(query)}",
            lines=tuple(lines[:-1]) or ("Nothing was found. Try other words.",),
            links=tuple((one.url, 0) for one in results),
            results=tuple(listed),
        )

    def citation_target(self, line: int | None) -> SearchResult | None:
        """What is cited by a line of this page: itself, or in a list the result that stands
        there."""
        if self.results is None:
            return SearchResult(url=self.url, title=self.title)
        before = [one for at, one in self.results if line is not None and at <= line]
        return before[-1] if before else None

    def view(self, cursor: int, start: int, max_chars: int, max_lines: int | None = None) -> str:
        """Lines from ``start`` on, as many as fit ``room`` characters, at most ``most``."""
        start = max(0, min(start, max(0, len(self.lines) - 1)))
        shown: list[str] = []
        size = 0
        for at in range(start, len(self.lines)):
            line = f"L{at}: {self.lines[at]}"
            size += len(line) + 1
            if shown and (size > max_chars or (max_lines is not None and len(shown) >= max_lines)):
                break
            shown.append(line)
        last = start + max(0, len(shown) - 1)
        head = f"**viewing lines [{start} - {last}] of {max(0, len(self.lines) - 1)}**"
        return "\n".join((self._heading(cursor), head, "", *shown))

    def find_lines(self, pattern: str) -> tuple[int, ...]:
        """The lines where ``pattern`` begins, links aside, and not again in the lines that are
        shown with them."""
        lines = self._plain_lines()
        wanted = " ".join(pattern.casefold().split())
        hits: list[int] = []
        for at, line in enumerate(lines):
            if len(hits) == _MAX_HITS:
                break
            if hits and at < hits[-1] + _LINES_PER_HIT:
                continue
            over = f"{line.rstrip()} {lines[at + 1].lstrip()}" if at + 1 < len(lines) else line
            found = line.casefold().find(wanted)
            if found < 0:  # it may go on in the next line
                found = over.casefold().find(wanted)
            if 0 <= found < len(line.casefold()):
                hits.append(at)
        return tuple(hits)

    def view_hits(self, cursor: int, hit_lines: tuple[int, ...], max_chars: int) -> str:
        """The lines that were found, each hit a link to its place; as many as fit ``room``
        characters."""
        lines, said, size = self._plain_lines(), [self._heading(cursor)], 0
        for number, at in enumerate(hit_lines):
            shown = (f"L{at + n}: {line}" for n, line in enumerate(lines[at : at + _LINES_PER_HIT]))
            hit = "\n".join((f"# 【{number}†match at L{at}】", *shown))
            size += len(hit) + 2
            if number and size > max_chars:
                said.append(f"… and {len(hit_lines) - number} more")
                break
            said.append(hit)
        return "\n\n".join(said)

    def _plain_lines(self) -> list[str]:
        """The lines with the names of links alone."""
        return [strip_links(line) for line in self.lines]

    def _heading(self, cursor: int) -> str:
        return f"[{cursor}] {self.title}" + (f" ({self.url})" if self.url else "")


def domain(url: str) -> str:
    """The host of a URL, as it is shown."""
    try:
        return (urlsplit(url).hostname or url).removeprefix("www.")
    except ValueError:
        return url


def plain_line(text: str) -> str:
    """Text of others, on one line, that cannot look like a citation or a link of ours."""
    return " ".join(text.translate(_REPLACED_BRACKETS).split())


def strip_links(text: str) -> str:
    """The text with the names of links alone."""
    return _LINK.sub(r"\1", text)


def _wrap(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from textwrap.wrap(
            line, _WIDTH, replace_whitespace=False, drop_whitespace=False, break_on_hyphens=False
        ) or [""]


def _shorten(text: str) -> str:
    return textwrap.shorten(text, _MAX_RESULT_CHARS, placeholder=" …")

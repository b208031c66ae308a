"""A page in the form that a model reads: lines of limited width, and numbered links.

The format is that of the browser tool of the gpt-oss models, which were trained on it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from urllib.parse import urlsplit

from msgspec import Struct

_WIDTH = 80
#: The maximum number of matches when a page is searched, and the number of lines that are shown for
#: each match.
_MAX_HITS, _LINES_PER_HIT = 50, 4
#: Maximum number of characters in the text of a search result.
_MAX_RESULT_CHARS = 600
#: The brackets of links and citations → those that untrusted text gets instead.
REPLACED_BRACKETS = str.maketrans("【】", "〖〗")
#: ``_MAX_TEXTWRAP``: lines with more characters are not wrapped with ``textwrap``. ``_WORDS``:
#: matches the words of such a long line.
_MAX_TEXTWRAP = 10_000
_WORDS = re.compile(r"[\t\n\x0b\x0c\r ]+|[^\t\n\x0b\x0c\r ]+")
_BLANKS = re.compile(r"\n{3,}")
_LINK = re.compile(r"【\d+†([^【】†\n]*)(?:†[^【】\n]*)?】")


class SearchResult(Struct, frozen=True, kw_only=True):
    """One result of a web search. ``text``: a short excerpt of the page."""

    url: str
    title: str
    text: str = ""


class WebPage(Struct, frozen=True, kw_only=True):
    """A page of the web, or a list of search results.

    - ``lines``: the text of the page. It is empty if the page has not been loaded.
    - ``links``: the targets of the links that the text shows as ``【0†…】``, ``【1†…】`` …. Each
      entry contains the URL of the target page and the line at which that page is opened.
    - ``results``: for a list of search results, one entry for each result: the line at which the
      result is listed, and the result. For other pages, ``results`` is None.
    """

    url: str
    title: str
    lines: tuple[str, ...] = ()
    links: tuple[tuple[str, int], ...] = ()
    results: tuple[tuple[int, SearchResult], ...] | None = None

    @classmethod
    def from_text(cls, url: str, title: str, text: str, links: tuple[str, ...] = ()) -> WebPage:
        """Create a page from text. Long lines are wrapped."""
        lines = tuple(_wrap(_BLANKS.sub("\n\n", text.strip()))) or ("",)
        targets = tuple((link, 0) for link in links)
        return cls(url=url, title=plain_line(title) or domain(url), lines=lines, links=targets)

    @classmethod
    def from_results(cls, query: str, results: tuple[SearchResult, ...]) -> WebPage:
        """Create the page that lists search results. Each result is a link."""
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
        """Return the page or search result that a citation of ``line`` refers to. In a list of
        search results, this is the result on that line. In another page, it is the page itself."""
        if self.results is None:
            return SearchResult(url=self.url, title=self.title)
        before = [one for at, one in self.results if line is not None and at <= line]
        return before[-1] if before else None

    def view(self, cursor: int, start: int, max_chars: int, max_lines: int | None = None) -> str:
        """Return the part of the page that the model is shown: as many lines from ``start`` on as
        fit into ``max_chars`` characters and ``max_lines`` lines. ``cursor``: the number of the
        page, which the heading shows."""
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
        """Return the numbers of the lines in which a match of ``pattern`` begins. The markup of
        links is ignored. At most ``_MAX_HITS`` numbers are returned.

        For each match, ``view_hits`` shows ``_LINES_PER_HIT`` lines. If one of these lines contains
        the beginning of a later match, the later match is left out.
        """
        lines = self._plain_lines()
        wanted = " ".join(pattern.casefold().split())
        hits: list[int] = []
        for at, line in enumerate(lines):
            if len(hits) == _MAX_HITS:
                break
            if hits and at < hits[-1] + _LINES_PER_HIT:
                continue
            joined = f"{line.rstrip()} {lines[at + 1].lstrip()}" if at + 1 < len(lines) else line
            column = line.casefold().find(wanted)
            if column < 0:  # the match may continue in the next line
                column = joined.casefold().find(wanted)
            if 0 <= column < len(line.casefold()):
                hits.append(at)
        return tuple(hits)

    def view_hits(self, cursor: int, hit_lines: tuple[int, ...], max_chars: int) -> str:
        """Return the matches that ``find_lines`` found, as text, each with a link to its line. The
        text has at most about ``max_chars`` characters, but it always contains the first match.
        ``cursor``: the number of the page, which the heading shows. ``hit_lines``: the line numbers
        that ``find_lines`` returned."""
        lines, sections, size = self._plain_lines(), [self._heading(cursor)], 0
        for number, at in enumerate(hit_lines):
            shown = (f"L{at + n}: {line}" for n, line in enumerate(lines[at : at + _LINES_PER_HIT]))
            hit = "\n".join((f"# 【{number}†match at L{at}】", *shown))
            size += len(hit) + 2
            if number and size > max_chars:
                sections.append(f"… and {len(hit_lines) - number} more")
                break
            sections.append(hit)
        return "\n\n".join(sections)

    def text(self, max_chars: int) -> str:
        """Return the beginning of the page's text. Each link is replaced by its label."""
        return "\n".join(self._plain_lines())[:max_chars]

    def _plain_lines(self) -> list[str]:
        """Return the lines of the page. Each link is replaced by its label."""
        return [strip_links(line) for line in self.lines]

    def _heading(self, cursor: int) -> str:
        return f"[{cursor}] {self.title}" + (f" ({self.url})" if self.url else "")


def domain(url: str) -> str:
    """Return the host name of a URL without ``www.``."""
    try:
        return (urlsplit(url).hostname or url).removeprefix("www.")
    except ValueError:
        return url


def plain_line(text: str) -> str:
    """Return untrusted text as one line. The result cannot look like a citation or a link."""
    return " ".join(text.translate(REPLACED_BRACKETS).split())


def strip_links(text: str) -> str:
    """Return the text with each link replaced by its label."""
    return _LINK.sub(r"\1", text)


def _wrap(text: str) -> Iterator[str]:
    """Wrap text as ``textwrap`` does, but in linear time. For a long word, ``textwrap`` copies the
    remaining characters again for every line."""
    for line in text.splitlines():
        if len(line) <= _MAX_TEXTWRAP:
            yield from textwrap.wrap(
                line,
                _WIDTH,
                replace_whitespace=False,
                drop_whitespace=False,
                break_on_hyphens=False,
            ) or [""]
        else:
            yield from _wrap_long(line.expandtabs())


def _wrap_long(line: str) -> Iterator[str]:
    parts: list[str] = []
    free = _WIDTH
    for word in _WORDS.findall(line):
        if len(word) <= _WIDTH and len(word) > free:
            yield "".join(parts)
            parts, free = [], _WIDTH
        at = 0
        while len(word) - at > free:  # only a word longer than a line
            yield "".join((*parts, word[at : at + free]))
            parts, at, free = [], at + free, _WIDTH
        parts.append(word[at:])
        free -= len(word) - at
    if parts:
        yield "".join(parts)


def _shorten(text: str) -> str:
    return textwrap.shorten(text, _MAX_RESULT_CHARS, placeholder=" …")

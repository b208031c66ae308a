"""Citations: what a model writes as ``【3†L9-L11】`` becomes a link and an annotation of it.

A mark is held back until it is whole. What names no page that was seen stays text. It knows pages
by their place only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from antiphon.stream.deltas import Annotate, Delta, Text
from antiphon.wire.parts import UrlCitation

from .page import Page, domain

__all__ = ["Citations"]

_MARK = re.compile(r"【(\d{1,6})†[^【】]{0,64}】")
_OPENING = "【"
#: The longest mark that is waited for.
_LONGEST = 80


class Citations:
    """Reads the text of one message. ``page`` gives the page of a cursor, if there is one."""

    def __init__(self, page: Callable[[int], Page | None]) -> None:
        self._page = page
        self._held = ""
        #: Characters said so far, and the last of them.
        self._at = 0
        self._last = " "

    def feed(self, delta: Text) -> Iterable[Delta]:
        """What is to be said of it now."""
        if not self._held and _OPENING not in delta.text:
            self._count(delta.text)
            return (delta,)
        return self._read(self._held + delta.text, final=False)

    def end(self) -> Iterable[Delta]:
        """The message is over."""
        return self._read(self._held, final=True)

    def _read(self, text: str, *, final: bool) -> list[Delta]:
        out: list[Delta] = []
        done = 0
        for mark in _MARK.finditer(text):
            page = self._page(int(mark.group(1)))
            if page is None or not page.url:
                continue
            before = text[done : mark.start()]
            link = f"([{domain(page.url)}]({page.url}))"
            glue = "" if (before or self._last)[-1].isspace() else " "
            start = self._at + len(before) + len(glue)
            self._say(f"{before}{glue}{link}", out)
            cited = UrlCitation(
                url=page.url, title=page.title, start_index=start, end_index=start + len(link)
            )
            out.append(Annotate(cited))
            done = mark.end()
        rest = text[done:]
        opened = rest.rfind(_OPENING)
        waits = not final and opened >= 0 and "】" not in rest[opened:]
        cut = opened if waits and len(rest) - opened <= _LONGEST else len(rest)
        self._held = rest[cut:]
        self._say(rest[:cut], out)
        return out

    def _say(self, text: str, out: list[Delta]) -> None:
        if text:
            self._count(text)
            out.append(Text(text))

    def _count(self, text: str) -> None:
        self._at += len(text)
        self._last = text[-1:] or self._last

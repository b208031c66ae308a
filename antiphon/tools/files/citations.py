"""Citations: what a model writes as ``【f3】`` is taken out, and becomes an annotation of the file.

A mark is held back until it is whole. What names nothing that was shown stays text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from antiphon.stream.deltas import Annotate, Delta, Text
from antiphon.wire.parts import FileCitation

__all__ = ["FileCitations"]

#: With the name behind it, as it is shown, or lines, as some models add.
_MARK = re.compile(r" ?【f(\d{1,6})(?:†[^【】]{0,200})?】")
_OPENING = re.compile(r" ?【[^】]*\Z| \Z")
#: The longest mark that is waited for.
_LONGEST = 216


class FileCitations:
    """Reads the text of one message. ``cited`` gives (file id, filename) of a number, if it was
    shown."""

    def __init__(self, cited: Callable[[int], tuple[str, str] | None]) -> None:
        self._cited = cited
        self._held = ""
        #: Characters said so far.
        self._at = 0

    def feed(self, delta: Text) -> Iterable[Delta]:
        """What is to be said of it now."""
        if not self._held and not _OPENING.search(delta.text) and "【" not in delta.text:
            self._at += len(delta.text)
            return (delta,)
        return self._read(self._held + delta.text, final=False)

    def end(self) -> Iterable[Delta]:
        """The message is over."""
        return self._read(self._held, final=True)

    def _read(self, text: str, *, final: bool) -> list[Delta]:
        out: list[Delta] = []
        done = 0
        for mark in _MARK.finditer(text):
            found = self._cited(int(mark.group(1)))
            if found is None:
                continue
            self._say(text[done : mark.start()], out)
            file_id, filename = found
            out.append(Annotate(FileCitation(file_id=file_id, filename=filename, index=self._at)))
            done = mark.end()
        rest = text[done:]
        opened = None if final else _OPENING.search(rest)
        waits = opened is not None and len(rest) - opened.start() <= _LONGEST
        at = opened.start() if opened is not None and waits else len(rest)
        self._held = rest[at:]
        self._say(rest[:at], out)
        return out

    def _say(self, text: str, out: list[Delta]) -> None:
        if text:
            self._at += len(text)
            out.append(Text(text))

"""Citations: turn the citation marks (such as ``【f3】``) and the filenames that a model writes
into annotations.

A message may cite the results of several tools. One ``CitationReader`` replaces the marks of all
tools, so the positions in all annotations refer to the text that the client gets. Positions count
code points, as Python strings do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from antiphon.stream.deltas import Annotate, Delta, Text
from antiphon.wire.items import Annotation, Logprob


class Citation(Struct, frozen=True):
    """A citation: the text that replaces a citation mark (such as ``【f3】``), and the annotation
    of this text."""

    text: str
    annotation: Annotation


class CitationNotation(Struct, frozen=True, kw_only=True):
    """The notation for citations of one kind.

    - ``pattern``: matches a citation mark, such as ``【f3】``.
    - ``partial_pattern``: matches the beginning of a mark at the end of a text. Such a beginning is
      not sent to the client until it is known whether it becomes a mark.
    - ``max_length``: maximum number of characters that are held back.
    - ``cite``: makes the citation. Its arguments are the match, the number of code points before
      the match, and the code point before the match. If the message begins with the match, the last
      argument is a space. ``cite`` returns None if the mark refers to nothing. In this case, the
      mark stays in the text.
    """

    pattern: re.Pattern[str]
    partial_pattern: re.Pattern[str]
    max_length: int
    cite: Callable[[re.Match[str], int, str], Citation | None]


#: Finds citations by name in the whole text of a message.
CitationFinder = Callable[[str], Iterable[Annotation]]


class CitationReader:
    """Reads the text of one message, in pieces of any size, and replaces the citation marks (such
    as ``【f3】``) by citations. The log probabilities of a removed mark are sent with the text that
    follows the mark."""

    def __init__(
        self, notations: Sequence[CitationNotation], finders: Sequence[CitationFinder] = ()
    ) -> None:
        self._notations = notations
        self._finders = finders
        #: The text so far, kept for the finders.
        self._text: list[str] = []
        self._pending = ""
        self._logprobs: list[Logprob] = []
        #: Code points sent so far, and the last of them.
        self._position = 0
        self._last_char = " "

    def resume_after(self, text: str) -> CitationReader:
        """Continue a message whose beginning, ``text``, has already been sent. Return this
        reader."""
        self._position += len(text)
        self._last_char = text[-1:] or self._last_char
        self._text.append(text)
        return self

    def feed(self, delta: Text) -> Iterable[Delta]:
        """Process the next piece of the message's text. Return the deltas to send."""
        self._logprobs += delta.logprobs
        return self._read(self._pending + delta.text, final=False)

    def finish(self) -> Iterable[Delta]:
        """Return the last deltas: the text that was held back because it could be the beginning of
        a citation mark, and the annotations for files that the message mentions by name."""
        out = self._read(self._pending, final=True)
        if self._logprobs:  # of a mark that was removed
            out.append(self._text_delta(""))
        text = "".join(self._text)
        matches = (each for finder in self._finders for each in finder(text)) if text else ()
        return [*out, *map(Annotate, matches)]

    def _read(self, text: str, *, final: bool) -> list[Delta]:
        out: list[Delta] = []
        done = 0
        for notation, mark in self._marks(text):
            before = text[done : mark.start()]
            at, last = self._position + len(before), before[-1:] or self._last_char
            cited = notation.cite(mark, at, last)
            if cited is not None:
                self._emit_text(before + cited.text, out)
                out.append(Annotate(cited.annotation))
                done = mark.end()
        rest = text[done:]
        cut = len(rest) if final else min((self._partial_marks(rest)), default=len(rest))
        self._pending = rest[cut:]
        self._emit_text(rest[:cut], out)
        return out

    def _marks(self, text: str) -> list[tuple[CitationNotation, re.Match[str]]]:
        matches = [(each, mark) for each in self._notations for mark in each.pattern.finditer(text)]
        return sorted(matches, key=lambda pair: pair[1].start())

    def _partial_marks(self, text: str) -> Iterator[int]:
        """Yield the positions where an incomplete mark may begin."""
        for each in self._notations:
            partial = each.partial_pattern.search(text)
            if partial is not None and len(text) - partial.start() <= each.max_length:
                yield partial.start()

    def _emit_text(self, text: str, out: list[Delta]) -> None:
        if text:
            self._position += len(text)
            self._last_char = text[-1]
            if self._finders:
                self._text.append(text)
            out.append(self._text_delta(text))

    def _text_delta(self, text: str) -> Text:
        logprobs, self._logprobs = tuple(self._logprobs), []
        return Text(text, logprobs)

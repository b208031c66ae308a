"""Citations: marks that a model writes become text and annotations, and so do names in its text.

One reader reads a message for all the tools that are cited in it, so that every place it tells is a
place in the text that is said. Places are counted in code points, as Python's strings are; what a
mark names, only its notation knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from antiphon.stream.deltas import Annotate, Delta, Text
from antiphon.wire.items import Annotation, Logprob

__all__ = ["Citations", "Cited", "Naming", "Notation"]


class Cited(Struct, frozen=True):
    """What is said in the place of a mark, and what is told of it."""

    text: str
    annotation: Annotation


class Notation(Struct, frozen=True, kw_only=True):
    """How citations of one kind are written.

    ``whole`` finds a mark, ``begun`` what may become one at the end of a text: that is held back,
    up to ``longest`` characters. ``cite`` is given a mark, the number of code points said before it
    and the last of them (a blank at the beginning); None: it names nothing, and stays text.
    """

    whole: re.Pattern[str]
    begun: re.Pattern[str]
    longest: int
    cite: Callable[[re.Match[str], int, str], Cited | None]


#: Finds in the whole text of a message what is cited by its name.
Naming = Callable[[str], Iterable[Annotation]]


class Citations:
    """Reads the text of one message, wherever it is cut. What was sampled is told with the text
    that is said next."""

    def __init__(self, notations: Sequence[Notation], namings: Sequence[Naming] = ()) -> None:
        self._notations = notations
        self._namings = namings
        #: All that was said, if it is still to be looked through.
        self._said: list[str] = []
        self._held = ""
        self._logprobs: list[Logprob] = []
        #: Code points said so far, and the last of them.
        self._at = 0
        self._last = " "

    def behind(self, said: str) -> Citations:
        """The same, for a message of which so much has been said."""
        self._at += len(said)
        self._last = said[-1:] or self._last
        self._said.append(said)
        return self

    def feed(self, delta: Text) -> Iterable[Delta]:
        """What is to be said of it now."""
        self._logprobs += delta.logprobs
        return self._read(self._held + delta.text, final=False)

    def end(self) -> Iterable[Delta]:
        """The message is over."""
        out = self._read(self._held, final=True)
        if self._logprobs:  # of a mark that was taken out
            out.append(self._sampled(""))
        said = "".join(self._said)
        found = (each for naming in self._namings for each in naming(said)) if said else ()
        return [*out, *map(Annotate, found)]

    def _read(self, text: str, *, final: bool) -> list[Delta]:
        out: list[Delta] = []
        done = 0
        for notation, mark in self._marks(text):
            before = text[done : mark.start()]
            at, last = self._at + len(before), before[-1:] or self._last
            cited = notation.cite(mark, at, last)
            if cited is not None:
                self._say(before + cited.text, out)
                out.append(Annotate(cited.annotation))
                done = mark.end()
        rest = text[done:]
        cut = len(rest) if final else min((self._begun(rest)), default=len(rest))
        self._held = rest[cut:]
        self._say(rest[:cut], out)
        return out

    def _marks(self, text: str) -> list[tuple[Notation, re.Match[str]]]:
        found = [(each, mark) for each in self._notations for mark in each.whole.finditer(text)]
        return sorted(found, key=lambda pair: pair[1].start())

    def _begun(self, text: str) -> Iterator[int]:
        """Where marks may have begun that are still waited for."""
        for each in self._notations:
            begun = each.begun.search(text)
            if begun is not None and len(text) - begun.start() <= each.longest:
                yield begun.start()

    def _say(self, text: str, out: list[Delta]) -> None:
        if text:
            self._at += len(text)
            self._last = text[-1]
            if self._namings:
                self._said.append(text)
            out.append(self._sampled(text))

    def _sampled(self, text: str) -> Text:
        logprobs, self._logprobs = tuple(self._logprobs), []
        return Text(text, logprobs)

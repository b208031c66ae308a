"""Reads arguments that are written as pairs: Python's keywords, braced keys and values."""

from __future__ import annotations

import re
from typing import Protocol

from antiphon.dialects.formats.types import ParameterSyntax
from antiphon.dialects.json_stream import StringText

from .argument_values import string_text
from .lexer import QUOTE

__all__ = ["PairReader", "Target"]

_KEY = re.compile(r"[\w.\-$]*")
_BLANK = re.compile(r"\s*")
_GAP = re.compile(r"[\s,]*")
_TURN = re.compile(rf"""["'()\[\]{{}},\\{QUOTE}]""")
_QUOTES = ('"', "'", QUOTE)
#: What may stand before the quote of a string in Python.
_PREFIXES = frozenset({"b", "f", "r", "u", "br", "rb", "fr", "rf"})


class Target(Protocol):
    """Who is told what the pairs say."""

    #: Text that is part of nothing.
    junk: list[str]

    def key(self, key: str) -> None:
        """A pair begins; an empty key: a value by its position."""

    def value(self, text: str) -> None:
        """Its value, a whole literal."""

    def string(self, text: str) -> None:
        """Its value is a string, and this is some of it."""

    def string_end(self) -> None:
        """The string is whole."""


class PairReader:
    """``key=value, …)`` or ``key:value, …}``, as it comes. ``close``: the bracket that ends it."""

    def __init__(self, target: Target, form: ParameterSyntax, close: str) -> None:
        self._target = target
        self._between = form.json
        self._close = close
        self._step = self._key
        self._part: list[str] = []
        self._string: StringText | None = None
        self._mark = ""  # the quote of that string, once or three times
        self._marks = 0  # how many of the three there are that end it
        self._is_empty = self._is_raw = False
        self._quote = ""
        self._depth = 0
        self._is_escaped = False
        self.over = False
        self.failed = False

    @property
    def in_string(self) -> bool:
        """What looks like markup here is only text."""
        return self._step == self._in_string or bool(self._quote)

    def read(self, text: str) -> int:
        """Take text; returns how much of it belongs to the arguments."""
        at = 0
        while at < len(text) and not self.over:
            at = self._step(text, at)
        return at

    def leave(self) -> None:
        """The arguments are over, closed or not."""
        if self._string is not None:
            if self._step == self._in_string:
                self._target.string(self._mark[: self._marks] + self._string.finish())
            self._string_over()
        elif "".join(self._part).strip():
            if self._step == self._key:
                self._target.key("")
            self._literal_over()

    # Each step reads some of the text and returns the position it came to.

    def _key(self, text: str, at: int) -> int:
        at = _end(_BLANK if self._part else _GAP, text, at)
        end = _end(_KEY, text, at)
        if end > at:
            self._part.append(text[at:end])
            return end
        if at == len(text):
            return at
        char = text[at]
        if char == self._between:
            self._target.key("".join(self._part))
            self._part, self._step = [], self._value
            return at + 1
        if char == self._close and not self._part:
            self.over = True
            return at + 1
        if char == QUOTE:
            return at + 1  # some quote their keys
        self._target.key("")
        self._step = self._literal if self._part else self._value
        return at

    def _value(self, text: str, at: int) -> int:
        at = _end(_BLANK, text, at)
        if at == len(text):
            return at
        if text[at] in _QUOTES:
            self._begin_string(text[at])
            return at + 1
        self._step = self._literal
        return at

    def _begin_string(self, mark: str, *, raw: bool = False) -> None:
        self._mark, self._is_raw = mark, raw
        self._string, self._step = string_text(mark[0], raw=raw), self._in_string
        self._is_empty, self._marks = True, 0
        self._target.string("")

    def _in_string(self, text: str, at: int) -> int:
        assert self._string is not None
        if self._marks and text[at] != self._mark[0]:
            self._target.string(self._mark[: self._marks])  # fewer than three end nothing
            self._marks = 0
        said, at = self._string.read(text, at)
        self._is_empty &= not said
        self._target.string(said)
        if self._string.over:
            self._target.string(self._string.finish())
            self._marks += 1
            if self._marks == len(self._mark):
                self._step = self._behind_string
            else:
                self._string = string_text(self._mark[0], raw=self._is_raw)
        return at

    def _behind_string(self, text: str, at: int) -> int:
        """Two quotes may be the first of six around a string; one behind another goes on."""
        char = text[at]
        if char in "\"'" and self._is_empty and char == self._mark:
            self._begin_string(char * 3, raw=self._is_raw)
        elif char in "\"'":
            self._begin_string(char)
        elif not char.isspace():
            self._string_over()
            return at
        else:
            self._is_empty = False
        return at + 1

    def _string_over(self) -> None:
        self._target.string_end()
        self._string, self._step = None, self._after

    def _literal(self, text: str, at: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            self._part.append(text[at])
            return at + 1
        found = _TURN.search(text, at)
        if found is None:
            self._part.append(text[at:])
            return len(text)
        self._part.append(text[at : found.start()])
        char = found.group()
        if char in "\"'" and (prefix := "".join(self._part).lower()) in _PREFIXES:
            self._part = []
            self._begin_string(char, raw="r" in prefix)
            return found.end()
        if not self._quote and not self._depth and char in (",", self._close):
            self._literal_over()
            return found.start()
        self._nest(char)
        self._part.append(char)
        return found.end()

    def _nest(self, char: str) -> None:
        """Follow brackets and strings inside a literal."""
        if self._quote:
            self._is_escaped = char == "\\" and self._quote != QUOTE
            self._quote = "" if char == self._quote else self._quote
        elif char in _QUOTES:
            self._quote = char
        elif char in "([{":
            self._depth += 1
        elif char in ")]}":
            self._depth -= 1

    def _literal_over(self) -> None:
        self._target.value("".join(self._part).strip())
        self._part, self._quote, self._depth, self._step = [], "", 0, self._after

    def _after(self, text: str, at: int) -> int:
        char = text[at]
        self.over = char == self._close
        if char == ",":
            self._step = self._key
        elif not self.over:
            self._target.junk.append(char)
        return at + 1


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()

"""Reads a call that is written as one JSON object with its name and its arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from antiphon.dialects.json_stream import JsonSpan, StringText

__all__ = ["Record", "Recorded"]

_BLANK = re.compile(r"\s*")
_GAP = re.compile(r"[\s,]*")
_NAMES = frozenset({"name", "tool_name", "function"})
_ARGUMENTS = frozenset({"arguments", "parameters", "args", "input"})
#: What else models write into a call before its name; anything more, and it is no call.
_OTHERS = frozenset({"type", "id", "index", "tool_call_id", "call_id"})


_Step = Callable[[str, int], int]


class Recorded(Protocol):
    """The call that a record tells of."""

    name: str
    begun: bool
    junk: list[str]

    @property
    def is_likely(self) -> bool: ...

    def begin(self, *, sure: bool = False) -> bool: ...

    def arguments(self, text: str) -> None: ...


class Record:
    """``{"name": …, "arguments": {…}}`` as it comes, the keys in any order.

    The arguments may be called ``parameters``, may be a string that holds JSON, and both may lie
    in an object under ``function``. Arguments that come before the name wait for it.
    """

    def __init__(self, call: Recorded) -> None:
        self._call = call
        self._step: _Step = self._open
        self._depth = 0
        self._key = ""
        self._text: list[str] = []
        self._string = StringText()
        self._span = JsonSpan()
        self._waiting: list[str] = []
        self._has_arguments = False
        self.over = False
        self.failed = False

    @property
    def in_string(self) -> bool:
        """What looks like markup here is only text."""
        return self._span.in_string or self._step in (self._read_key, self._read_string)

    def read(self, text: str) -> int:
        """Take text; returns how much of it belongs to the call, up to where it is none."""
        at = 0
        while at < len(text) and not (self.over or self.failed):
            at = self._step(text, at)
        return at

    def leave(self) -> None:
        """A terminal came, or the end: what was said so far is all."""
        if self._step == self._read_scalar:
            self._scalar_over()
        elif self._step in (self._read_key, self._colon):
            self._call.junk += self._text
        if not self._call.begun and self._call.name:
            self._begin()

    # Each step reads some of the text and returns the position it came to.

    def _open(self, text: str, at: int) -> int:
        at = _end(_BLANK, text, at)
        if at == len(text):
            return at
        if text[at] != "{":
            return self._fail(at)
        self._depth += 1
        self._step = self._before_key
        return at + 1

    def _before_key(self, text: str, at: int) -> int:
        at = _end(_GAP, text, at)
        if at == len(text):
            return at
        if text[at] == "}":
            self._depth -= 1
            if not self._depth:
                self._close()
            return at + 1
        if text[at] != '"':
            return self._fail(at)
        self._expect_string(self._read_key)
        return at + 1

    def _read_key(self, text: str, at: int) -> int:
        said, at = self._string.read(text, at)
        self._text.append(said)
        if self._string.over:
            self._key = "".join(self._text)
            self._step = self._colon
            is_expected = self._key in _NAMES | _ARGUMENTS | _OTHERS
            if not is_expected and not (self._call.name and self._call.is_likely):
                self._fail(at)
        return at

    def _colon(self, text: str, at: int) -> int:
        at = _end(_BLANK, text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            return self._fail(at)
        self._step = self._value
        return at + 1

    def _value(self, text: str, at: int) -> int:
        at = _end(_BLANK, text, at)
        if at == len(text):
            return at
        char = text[at]
        if self._key == "function" and char == "{":
            self._step = self._open
        elif self._key in _NAMES:
            if char != '"':
                return self._fail(at)
            self._expect_string(self._read_string)
            return at + 1
        elif self._key in _ARGUMENTS and char == '"':
            self._has_arguments = True
            self._expect_string(self._read_string)
            return at + 1
        else:
            self._has_arguments |= self._key in _ARGUMENTS
            self._span, self._text = JsonSpan(), []
            self._step = self._read_span(char)
            self._begin_if_named()
        return at

    def _expect_string(self, step: _Step) -> None:
        self._string, self._text, self._step = StringText(), [], step

    def _read_string(self, text: str, at: int) -> int:
        said, at = self._string.read(text, at)
        over = self._string.over
        if self._key in _ARGUMENTS:
            self._argue(said + (self._string.finish() if over else ""))
        else:
            self._text.append(said)
            if over:
                self._call.name = "".join(self._text).strip()
                self._begin_if_named()
        if over:
            self._step = self._before_key
        return at

    def _read_span(self, char: str) -> _Step:
        if self._key not in _ARGUMENTS:
            return self._skip
        return self._read_arguments if char in "{[" else self._read_scalar

    def _read_arguments(self, text: str, at: int) -> int:
        end = self._span.read(text, at)
        self._argue(text[at:end])
        if self._span.over:
            self._step = self._before_key
        return end

    def _read_scalar(self, text: str, at: int) -> int:
        """Arguments that are no object: null means none, anything else is kept as it stands."""
        end = self._span.read(text, at)
        self._text.append(text[at:end])
        if self._span.over:
            self._scalar_over()
        return end

    def _scalar_over(self) -> None:
        text, self._text = "".join(self._text), []
        self._step = self._before_key
        self._argue("" if text == "null" else text)

    def _skip(self, text: str, at: int) -> int:
        at = self._span.read(text, at)
        if self._span.over:
            self._step = self._before_key
        return at

    # --- what it says -----------------------------------------------------------------------------

    def _argue(self, text: str) -> None:
        if self._call.begun:
            self._call.arguments(text)
        else:
            self._waiting.append(text)
            self._begin_if_named()

    def _begin_if_named(self) -> None:
        if self._call.name and self._has_arguments and not self._call.begun:
            self._begin()

    def _begin(self) -> None:
        if self._call.begin(sure=self._has_arguments):
            waiting, self._waiting = "".join(self._waiting), []
            self._call.arguments(waiting)
        else:
            self.failed = True

    def _close(self) -> None:
        if not self._call.begun:
            self._begin()
        self.over = not self.failed

    def _fail(self, at: int) -> int:
        """No call; or, after its arguments, a call whose end is missing."""
        self.over = self._call.begun
        self.failed = not self.over
        return at


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()

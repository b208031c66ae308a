"""Reader of a call that is one JSON object with its name and arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from antiphon.dialects.json_stream import JsonSpan, StringDecoder

__all__ = ["JsonCallReader", "JsonCallTarget"]

_BLANK = re.compile(r"\s*")
_GAP = re.compile(r"[\s,]*")
_NAMES = frozenset({"name", "tool_name", "function"})
_ARGUMENTS = frozenset({"arguments", "parameters", "args", "input"})
#: What else models write into a call before its name; anything more, and it is no call.
_OTHERS = frozenset({"type", "id", "index", "tool_call_id", "call_id"})


_Step = Callable[[str, int], int]


class JsonCallTarget(Protocol):
    """The call that a record tells of."""

    name: str
    has_started: bool
    stray_text: list[str]

    @property
    def is_likely(self) -> bool: ...

    def start(self, *, has_arguments: bool = False) -> bool: ...

    def add_json_arguments(self, text: str) -> None: ...


class JsonCallReader:
    """``{"name": …, "arguments": {…}}`` as it comes, the keys in any order.

    The arguments may be called ``parameters``, may be a string that holds JSON, and both may lie
    in an object under ``function``. Arguments that come before the name wait for it.
    """

    def __init__(self, call: JsonCallTarget) -> None:
        self._call = call
        self._step: _Step = self._read_opening
        self._depth = 0
        self._key = ""
        self._text: list[str] = []
        self._string = StringDecoder()
        self._span = JsonSpan()
        self._early_arguments: list[str] = []
        self._has_arguments = False
        self.complete = False
        self.failed = False

    @property
    def in_string(self) -> bool:
        """What looks like markup here is only text."""
        return self._span.in_string or self._step in (self._read_key, self._read_string)

    def read(self, text: str) -> int:
        """Take text; returns how much of it belongs to the call, up to where it is none."""
        at = 0
        while at < len(text) and not (self.complete or self.failed):
            at = self._step(text, at)
        return at

    def finish(self) -> None:
        """A terminal came, or the end: what was said so far is all."""
        if self._step == self._read_scalar:
            self._end_scalar()
        elif self._step in (self._read_key, self._read_colon):
            self._call.stray_text += self._text
        if not self._call.has_started and self._call.name:
            self._start()

    # Each step reads some of the text and returns the position it came to.

    def _read_opening(self, text: str, at: int) -> int:
        at = _match_end(_BLANK, text, at)
        if at == len(text):
            return at
        if text[at] != "{":
            return self._fail(at)
        self._depth += 1
        self._step = self._read_gap
        return at + 1

    def _read_gap(self, text: str, at: int) -> int:
        at = _match_end(_GAP, text, at)
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
        if self._string.complete:
            self._key = "".join(self._text)
            self._step = self._read_colon
            is_expected = self._key in _NAMES | _ARGUMENTS | _OTHERS
            if not is_expected and not (self._call.name and self._call.is_likely):
                self._fail(at)
        return at

    def _read_colon(self, text: str, at: int) -> int:
        at = _match_end(_BLANK, text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            return self._fail(at)
        self._step = self._read_value_start
        return at + 1

    def _read_value_start(self, text: str, at: int) -> int:
        at = _match_end(_BLANK, text, at)
        if at == len(text):
            return at
        char = text[at]
        if self._key == "function" and char == "{":
            self._step = self._read_opening
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
            self._step = self._step_for_value(char)
            self._start_if_named()
        return at

    def _expect_string(self, step: _Step) -> None:
        self._string, self._text, self._step = StringDecoder(), [], step

    def _read_string(self, text: str, at: int) -> int:
        said, at = self._string.read(text, at)
        over = self._string.complete
        if self._key in _ARGUMENTS:
            self._add_arguments(said + (self._string.finish() if over else ""))
        else:
            self._text.append(said)
            if over:
                self._call.name = "".join(self._text).strip()
                self._start_if_named()
        if over:
            self._step = self._read_gap
        return at

    def _step_for_value(self, char: str) -> _Step:
        if self._key not in _ARGUMENTS:
            return self._skip_value
        return self._read_arguments if char in "{[" else self._read_scalar

    def _read_arguments(self, text: str, at: int) -> int:
        end = self._span.read(text, at)
        self._add_arguments(text[at:end])
        if self._span.complete:
            self._step = self._read_gap
        return end

    def _read_scalar(self, text: str, at: int) -> int:
        """Arguments that are no object: null means none, anything else is kept as it stands."""
        end = self._span.read(text, at)
        self._text.append(text[at:end])
        if self._span.complete:
            self._end_scalar()
        return end

    def _end_scalar(self) -> None:
        text, self._text = "".join(self._text), []
        self._step = self._read_gap
        self._add_arguments("" if text == "null" else text)

    def _skip_value(self, text: str, at: int) -> int:
        at = self._span.read(text, at)
        if self._span.complete:
            self._step = self._read_gap
        return at

    # --- what it says -----------------------------------------------------------------------------

    def _add_arguments(self, text: str) -> None:
        if self._call.has_started:
            self._call.add_json_arguments(text)
        else:
            self._early_arguments.append(text)
            self._start_if_named()

    def _start_if_named(self) -> None:
        if self._call.name and self._has_arguments and not self._call.has_started:
            self._start()

    def _start(self) -> None:
        if self._call.start(has_arguments=self._has_arguments):
            waiting, self._early_arguments = "".join(self._early_arguments), []
            self._call.add_json_arguments(waiting)
        else:
            self.failed = True

    def _close(self) -> None:
        if not self._call.has_started:
            self._start()
        self.complete = not self.failed

    def _fail(self, at: int) -> int:
        """No call; or, after its arguments, a call whose end is missing."""
        self.complete = self._call.has_started
        self.failed = not self.complete
        return at


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()

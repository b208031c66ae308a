"""Repair the JSON of a call's arguments while it arrives.

Models write raw line ends in strings, invalid escapes, Python's literals, single quotes and
trailing commas, and they forget brackets. Most clients parse arguments strictly, so the arguments
that leave the parser are always valid JSON as far as they go. If the text cannot be repaired, it is
passed on as it is, and ``JsonRepair.is_broken`` is true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from antiphon.dialects.grammar.schema_types import SchemaTypes
from antiphon.dialects.json_stream import (
    ESCAPE_DIGITS,
    ESCAPES,
    PLAIN_QUOTES,
    StringDecoder,
    dump,
    escape_string,
)

from .argument_values import CLOSERS, convert_string, convert_word

_BLANK = re.compile(r"[ \t\r\n]+")
#: How much white space after a comma is passed on.
_MAX_BLANK = 256
_VALUE = re.compile(r"""[^,}\])\n"'{\[(]+""")
_KEY = re.compile(r"[\w.\-$]+")
_OPENERS: Mapping[str, str] = {"{": "{", "[": "[", "(": "["}
_CLOSED: Mapping[str, str] = {"}": "{", "]": "[", ")": "["}
#: Arguments that say that there are none.
_NOTHING = ("", "null", "None", "[]", '""')
#: What models write around the object of the arguments: a fenced code block, or a list.
_FENCE = "```json"
_AROUND = re.compile(r"\s*(?:```(?:json)?\s*)?(?:\[\s*)?")
#: In Python's strings, a quote may be escaped, too.
_STRING_ESCAPES: Mapping[str, str] = {**ESCAPES, "'": "'"}

Json = Mapping[str, Any]


def begin_object(text: str, *, final: bool = False) -> int | None:
    """Return where an object begins in the text of arguments: its position, or the text's length
    if the text says that there are no arguments. Returns -1 if the text is something else, and None
    if this cannot be decided yet. ``final``: whether the text is whole."""
    around = _AROUND.match(text)
    assert around is not None
    if text.startswith("{", around.end()):
        return around.end()
    word = "".join(text.split())
    if final:
        return len(text) if word in _NOTHING else -1
    is_begun = around.end() == len(text) or any(
        each.startswith(word) for each in (*_NOTHING, _FENCE)
    )
    return None if is_begun and len(text) <= _MAX_BLANK else -1


class _Frame:
    """An object or array that is not closed yet. ``bracket``: ``{`` or ``[``. ``schema``: its JSON
    schema. ``key``: the key of the current value in an object. ``extra``: how many more brackets
    than one opened it, as in ``{{"a": 1}}``."""

    def __init__(self, bracket: str, schema: Json) -> None:
        self.bracket = bracket
        self.schema = schema
        self.key = ""
        self.extra = 0


class JsonRepair:
    """Repairs the JSON object of a call's arguments, which arrives in pieces.

    Strings are passed on piece by piece. Numbers and words are passed on once they are complete,
    and so is a string where ``schema`` allows no string: ``"42"`` becomes 42 if the
    schema allows an integer.

    - ``schema``: the JSON schema of the arguments, or an empty mapping.
    - ``is_broken``: whether the text cannot be repaired. The text from the first fault on is then
      passed on as it is.
    - ``rest``: the text after the end of the value.
    """

    def __init__(self, schemas: SchemaTypes) -> None:
        self._schemas = schemas
        self._frames: list[_Frame] = []
        self._step = self._read_start
        self._out: list[str] = []
        self._comma = ""  # a comma and the white space after it, until a value follows
        self._word: list[str] = []
        self._string: StringDecoder | None = None
        self._text: list[str] | None = None  # of a string that is passed on once it is complete
        self._types: frozenset[str] = frozenset()
        self._is_key = False
        self._key: list[str] = []
        self.is_broken = False
        self.rest: list[str] = []

    def read(self, text: str) -> str:
        """Read the next piece of the value. Returns its repaired text as far as it is certain."""
        at = 0
        while at < len(text):
            at = self._step(text, at)
        out, self._out = self._out, []
        return "".join(out)

    def finish(self) -> str:
        """End the value, and return the text that completes it."""
        if self._string is not None:
            self._flush_string()
            self.is_broken = True
        elif self._step == self._read_nothing:
            word = "".join(self._word)
            if begin_object(word, final=True) == len(word):
                self._out.append("{}")
            else:
                self._break(word, 0)
        elif not self.is_broken:
            if self._word:
                self._end_word()
            if self._step == self._read_colon:
                self._out.append(": null")
            elif self._step == self._read_value and self._is_key:
                self._out.append("null")
            if not self.is_broken:
                self._out += [CLOSERS[frame.bracket] for frame in reversed(self._frames)]
        out, self._out = self._out, []
        return "".join(out)

    # The repair is a state machine. Each method that follows is a step: it reads some of the text,
    # returns the position after it, and sets the next step.

    def _read_start(self, text: str, at: int) -> int:
        """Read the start of the arguments."""
        if end := self._skip_blank(text, at):
            return end
        if text[at] == "{":
            return self._open("{", self._schemas.root, at)
        self._step = self._read_nothing
        return at

    def _read_nothing(self, text: str, at: int) -> int:
        """Read arguments that do not begin with an object. They can be repaired in two cases: an
        object follows, or the text means that the call has no arguments."""
        self._word.append(text[at:])
        word = "".join(self._word)
        begin = begin_object(word)
        if begin is None:
            return len(text)
        if begin < 0:
            self._break(word, 0)
            return len(text)
        self._word, self._step = [], self._read_start
        return len(text) - len(word) + begin

    def _read_value(self, text: str, at: int) -> int:
        """Read the start of a value after a colon or in an array."""
        if end := self._skip_blank(text, at):
            return end
        char, frame = text[at], self._frames[-1]
        if char in _OPENERS:
            return self._open(_OPENERS[char], self._child(frame), at)
        if char in PLAIN_QUOTES:
            self._begin_value(frame)
            is_held = self._types and "string" not in self._types
            return self._begin_string(char, at, is_held=bool(is_held))
        if char in _CLOSED or char == ",":
            if self._is_key:  # the value after a colon is missing
                self._out.append("null")
            elif char == ",":
                return at + 1
            self._is_key, self._step = False, self._read_next
            return at
        if char == ":":
            return self._break(text, at)
        self._step = self._read_word
        return at

    def _child(self, frame: _Frame) -> Json:
        """Return the schema of the current value in ``frame``. Empty if it is unknown."""
        if frame.bracket == "[":
            return self._schemas.items(frame.schema)
        return self._schemas.member(frame.schema, frame.key)

    def _open(self, bracket: str, schema: Json, at: int) -> int:
        self._write_comma()
        self._frames.append(_Frame(bracket, schema))
        self._out.append(bracket)
        self._is_key, self._step = False, self._read_key if bracket == "{" else self._read_value
        return at + 1

    def _begin_value(self, frame: _Frame) -> None:
        self._write_comma()
        self._types = self._schemas.of(self._child(frame))
        self._is_key = False

    def _read_word(self, text: str, at: int) -> int:
        found = _VALUE.match(text, at)
        if found is not None:
            self._word.append(found.group())
            return found.end()
        if not self._word:
            return self._break(text, at)
        self._end_word()
        return at

    def _end_word(self) -> None:
        word = "".join(self._word)
        self._word = []
        if self._step == self._read_key_word:
            self._out.append(dump(word))
            self._frames[-1].key, self._step = word, self._read_colon
            return
        else:
            self._begin_value(self._frames[-1])
            stripped = word.rstrip()
            self._out += [
                convert_word(stripped, self._types) or dump(stripped),
                word[len(stripped) :],
            ]
        self._step = self._read_next

    def _read_key(self, text: str, at: int) -> int:
        if end := self._skip_blank(text, at):
            return end
        char = text[at]
        if char in PLAIN_QUOTES:
            self._write_comma()
            self._is_key, self._key = True, []
            return self._begin_string(char, at, is_held=False)
        frame = self._frames[-1]
        if char == "," or (char == "{" and not frame.key):
            frame.extra += char == "{"
            return at + 1
        if char == "}":
            self._comma = ""
            self._step = self._read_next
            return at
        if _KEY.match(char) is None:
            return self._break(text, at)
        self._write_comma()
        self._is_key, self._step = True, self._read_key_word
        return at

    def _read_key_word(self, text: str, at: int) -> int:
        found = _KEY.match(text, at)
        if found is not None:
            self._word.append(found.group())
            return found.end()
        self._end_word()
        return at

    def _read_colon(self, text: str, at: int) -> int:
        if end := self._skip_blank(text, at):
            return end
        if text[at] not in ":=":
            return self._break(text, at)
        self._out.append(":")
        self._step = self._read_value
        return at + 1

    def _read_next(self, text: str, at: int) -> int:
        """Read the text after a value: a comma or a closing bracket."""
        if not self._frames:
            self.rest.append(text[at:])
            return len(text)
        if end := self._skip_blank(text, at):
            return end
        char, frame = text[at], self._frames[-1]
        if char == ",":
            self._comma = ","
            self._step = self._read_key if frame.bracket == "{" else self._read_value
            return at + 1
        if char in _CLOSED:
            return self._close(text, at)
        if char in "\"'{[" and (frame.bracket == "[" or char in PLAIN_QUOTES):  # a comma is missing
            self._comma = ","
            self._step = self._read_key if frame.bracket == "{" else self._read_value
            return at
        return self._break(text, at)

    def _close(self, text: str, at: int) -> int:
        bracket = _CLOSED[text[at]]
        if bracket == "{" and self._frames[-1].extra:
            self._frames[-1].extra -= 1
            return at + 1
        if all(frame.bracket != bracket for frame in self._frames):
            return self._break(text, at)
        self._comma = ""
        while self._frames:
            frame = self._frames.pop()
            self._out.append(CLOSERS[frame.bracket])
            if frame.bracket == bracket:
                break
        self._step = self._read_next
        return at + 1

    # --- strings ----------------------------------------------------------------------------------

    def _begin_string(self, quote: str, at: int, *, is_held: bool) -> int:
        """Start a string. ``is_held``: whether it is passed on once it is complete."""
        self._string = StringDecoder(quote, _STRING_ESCAPES, ESCAPE_DIGITS)
        self._text = [] if is_held else None
        if not is_held:
            self._out.append('"')
        self._step = self._read_string
        return at + 1

    def _read_string(self, text: str, at: int) -> int:
        assert self._string is not None
        decoded, at = self._string.read(text, at)
        self._add_string(decoded)
        if self._string.complete:
            self._add_string(self._string.finish())
            self._end_string()
        return at

    def _add_string(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)
        else:
            self._out.append(escape_string(text))
        if self._is_key:
            self._key.append(text)

    def _end_string(self) -> None:
        self._string, self._step = None, self._read_next
        if self._text is not None:
            text, self._text = "".join(self._text), None
            self._out.append(convert_string(text, self._types))
            return
        self._out.append('"')
        if self._is_key:
            self._frames[-1].key, self._step = "".join(self._key), self._read_colon

    def _flush_string(self) -> None:
        """Pass on the text of a string that has no end."""
        assert self._string is not None
        if self._text is not None:
            held, self._text = "".join(self._text), None
            self._out.append(f'"{escape_string(held)}')
        self._add_string(self._string.finish())

    # --- helpers ----------------------------------------------------------------------------------

    def _skip_blank(self, text: str, at: int) -> int:
        """Pass on white space. Returns the position after it, or 0 if there is none."""
        found = _BLANK.match(text, at)
        if found is None:
            return 0
        if self._comma:
            self._comma = (self._comma + found.group())[:_MAX_BLANK]
        else:
            self._out.append(found.group())
        return found.end()

    def _write_comma(self) -> None:
        self._out.append(self._comma)
        self._comma = ""

    def _break(self, text: str, at: int) -> int:
        """Pass on the text from the position ``at`` on as it is, because it cannot be repaired."""
        self._write_comma()
        self.is_broken, self._step = True, self._read_broken
        self._out.append(text[at:])
        return len(text)

    def _read_broken(self, text: str, at: int) -> int:
        self._out.append(text[at:])
        return len(text)

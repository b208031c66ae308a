"""Read JSON incrementally: find where a value ends, and decode what a string contains.

The classes here never raise, whatever the text, and they read no text twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

#: Quotes around strings: those of JSON, and those that models also write, as in Python.
PLAIN_QUOTES = ('"', "'")
_STRING_RUNS: Mapping[str, re.Pattern[str]] = {
    quote: re.compile(rf"[^{quote}\\]*") for quote in PLAIN_QUOTES
}
_PLAIN_RUN = re.compile(r"""[^"'{}\[\]]+""")
_SCALAR_RUN = re.compile(r"[^\s,}\]]*")
#: The character after a backslash → the character that the escape stands for, in JSON.
ESCAPES: Mapping[str, str] = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"} | {
    char: char for char in '"\\/'
}
#: The character after a backslash → the number of hexadecimal digits that follow it, in JSON.
ESCAPE_DIGITS: Mapping[str, int] = {"u": 4}
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_HEX = frozenset("0123456789abcdefABCDEF")
_REPLACEMENT = "\ufffd"


def load(text: str) -> Any:
    """Parse a JSON text. Raises ``ValueError`` if ``text`` is not JSON, or contains ``NaN`` or
    ``Infinity``."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deep") from None


def load_object(text: str) -> Mapping[str, Any] | None:
    """Parse a JSON object. Returns None if ``text`` is none."""
    try:
        value = load(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _refuse(name: str) -> Any:
    raise ValueError(name)


def dump(value: object) -> str:
    """Serialize a value to JSON in the style that models and clients expect: non-ASCII characters
    stay as they are, and a space follows each separator. Raises ``ValueError`` for infinite numbers
    and NaN."""
    return _ENCODER.encode(value)


def escape_string(text: str) -> str:
    """Return ``text`` as it appears between the quotes of a JSON string."""
    return dump(text)[1:-1]


class JsonSpan:
    """Finds where one JSON value ends in a text that arrives in pieces. White space may precede the
    value. Strings may stand in single quotes, as in Python."""

    __slots__ = (
        "_depth",
        "_escaped",
        "_last",
        "_quote",
        "_scalar",
        "_started",
        "complete",
        "in_string",
    )

    def __init__(self) -> None:
        self._depth = 0
        self._quote = '"'
        self._last = ""  # the last character outside of strings that is not white space
        self._started = self._scalar = self._escaped = False
        #: Whether the text so far ends inside a string, where markup is plain text.
        self.in_string = False
        self.complete = False

    def read(self, text: str, at: int = 0) -> int:
        """Read ``text`` from position ``at`` on. Returns the position after the last character that
        belongs to the JSON value. Sets ``complete`` if the value ends there."""
        while at < len(text) and not self.complete:
            at = self._read_string(text, at) if self.in_string else self._read_structure(text, at)
        return at

    def _read_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        at = match_end(_STRING_RUNS[self._quote], text, at)
        if at == len(text):
            return at
        if text[at] == "\\":
            self._escaped = True
        else:
            self.in_string, self._last = False, self._quote
            self.complete = self._depth == 0
        return at + 1

    def _read_structure(self, text: str, at: int) -> int:
        char = text[at]
        if not self._started:
            if char.isspace():
                return at + 1
            self._started = True
            self._scalar = char not in "{['\""
        if self._scalar:
            at = match_end(_SCALAR_RUN, text, at)
            self.complete = at < len(text)
            return at
        if char == '"' or (char == "'" and self._last in "{[(,:="):
            self.in_string, self._quote = True, char
        elif char == "'":
            self._last = char
        elif char in "{[":
            self._depth += 1
            self._last = char
        elif char in "}]":
            self._depth -= 1
            self._last = char
            self.complete = self._depth <= 0
        else:
            end = match_end(_PLAIN_RUN, text, at)
            self._last = text[at:end].rstrip()[-1:] or self._last
            return end
        return at + 1


def match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return where the match of ``pattern`` at the position ``at`` ends. Without a match, this is
    ``at``."""
    found = pattern.match(text, at)
    return at if found is None else found.end()


class StringDecoder:
    """Decodes a string literal, from the character after its opening quote to its closing quote.
    The text may arrive in pieces.

    - ``quote``: the quote character around the string.
    - ``escapes``: the character after a backslash → the character that the escape stands for. If it
      is empty, a backslash is a plain character.
    - ``digits``: the character after a backslash → the number of hexadecimal digits that follow it.

    By default, the literal is a JSON string. An invalid escape stays as written. Half a surrogate
    pair becomes U+FFFD.
    """

    __slots__ = ("_digits", "_escape", "_escapes", "_high_surrogate", "_run", "complete")

    def __init__(
        self,
        quote: str = '"',
        escapes: Mapping[str, str] = ESCAPES,
        digits: Mapping[str, int] = ESCAPE_DIGITS,
    ) -> None:
        self._run = re.compile(rf"[^{quote}\\]*" if escapes else f"[^{quote}]*")
        self._escapes = escapes
        self._digits = digits
        self._escape = ""
        self._high_surrogate = 0
        self.complete = False

    def read(self, text: str, at: int = 0) -> tuple[str, int]:
        """Read ``text`` from position ``at``. Returns the decoded text and the position after
        it."""
        parts: list[str] = []
        while at < len(text) and not self.complete:
            if self._escape:
                at = self._read_escape(text[at], at, parts)
                continue
            end = match_end(self._run, text, at)
            if end > at:
                parts.append(self._flush_surrogate() + text[at:end])
            at = end
            if at < len(text):
                if text[at] == "\\" and self._escapes:
                    self._escape = "\\"
                else:
                    self.complete = True
                at += 1
        return "".join(parts), at

    def finish(self) -> str:
        """Return the text that was held back because an escape or a surrogate pair is incomplete.
        The caller uses this method at the end of the string or of the output."""
        escape, self._escape = self._escape, ""
        return self._flush_surrogate() + escape

    def _read_escape(self, char: str, at: int, parts: list[str]) -> int:
        """Read the next character of an escape. ``char``: the character. ``at``: its position.
        Returns the position from which to read next. If the escape has ended, its text is added to
        ``parts``."""
        if len(self._escape) > 1 and char not in _HEX:
            parts.append(self.finish())
            return at
        self._escape += char
        kind = self._escape[1]
        if kind not in self._digits:
            parts.append(self._flush_surrogate() + self._escapes.get(char, self._escape))
            self._escape = ""
        elif len(self._escape) == 2 + self._digits[kind]:
            parts.append(self._decode_unit(int(self._escape[2:], 16)))
            self._escape = ""
        return at + 1

    def _decode_unit(self, unit: int) -> str:
        """Decode a UTF-16 code unit, which is a character or half of a surrogate pair. Returns the
        text that is complete now."""
        if 0xDC00 <= unit < 0xE000 and self._high_surrogate:
            high, self._high_surrogate = self._high_surrogate, 0
            return chr(0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00))
        lone = self._flush_surrogate()
        if 0xD800 <= unit < 0xDC00:
            self._high_surrogate = unit
            return lone
        is_lost = 0xDC00 <= unit < 0xE000 or unit > 0x10FFFF
        return lone + (_REPLACEMENT if is_lost else chr(unit))

    def _flush_surrogate(self) -> str:
        lost = _REPLACEMENT if self._high_surrogate else ""
        self._high_surrogate = 0
        return lost


_INPUT_BEGUN = re.compile(r'\s*(?:\{\s*(?:"(?:[\w\-]*(?:"\s*(?::\s*)?)?)?)?)?\Z', re.ASCII)
_INPUT_HEAD = re.compile(r'\s*\{\s*"[\w\-]*"\s*:\s*"', re.ASCII)
_HEAD_LIMIT = 128


class ToolInputDecoder:
    r"""Decodes the free text of a custom tool from its arguments ``{"input": "free\ntext"}``,
    incrementally.

    The only parameter may have any ASCII name, not only ``input``. If the arguments have another
    structure, they are returned unchanged as the free text.
    """

    def __init__(self) -> None:
        self._head = ""
        self._tail: list[str] = []
        self._string: StringDecoder | None = None
        self._plain = False

    @property
    def stray_text(self) -> str:
        """Unexpected text in the arguments, after the value of the only parameter. It is not part
        of the custom tool's free text."""
        return "".join(self._tail).strip().removesuffix("}").strip(", \t\r\n")

    def read(self, text: str) -> str:
        """Read the next piece of the arguments. Returns the part of the custom tool's free text
        that is decoded now."""
        if self._plain:
            return text
        if self._string is not None:
            return self._read_string(self._string, text, 0)
        self._head += text
        found = _INPUT_HEAD.match(self._head)
        if found is not None:
            self._string = StringDecoder()
            return self._read_string(self._string, self._head, found.end())
        if len(self._head) < _HEAD_LIMIT and _INPUT_BEGUN.match(self._head):
            return ""
        return self.finish()

    def _read_string(self, string: StringDecoder, text: str, at: int) -> str:
        decoded, at = string.read(text, at)
        if at < len(text):
            self._tail.append(text[at:])
        return decoded

    def finish(self) -> str:
        """Return the text that ``read`` has kept because it could not decode the text yet. The
        caller uses this method at the end of the arguments."""
        self._plain = True
        head, self._head = self._head, ""
        if self._string is not None:
            return self._string.finish()
        return head if head.strip(" {}\t\r\n") else ""

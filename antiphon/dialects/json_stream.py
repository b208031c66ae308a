"""JSON as models write it, piece by piece: where a value ends, what a string says.

Nothing here raises, whatever the text; nothing is read twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "ESCAPES",
    "ESCAPE_DIGITS",
    "JsonSpan",
    "StringDecoder",
    "ToolInputDecoder",
    "dump",
    "escape_string",
    "load",
]

_STRING_RUN = re.compile(r'[^"\\]*')
_PLAIN_RUN = re.compile(r'[^"{}\[\]]+')
_SCALAR_RUN = re.compile(r"[^\s,}\]]*")
#: JSON's escapes, and those with hexadecimal digits and how many.
ESCAPES: Mapping[str, str] = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"} | {
    char: char for char in '"\\/'
}
ESCAPE_DIGITS: Mapping[str, int] = {"u": 4}
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_HEX = frozenset("0123456789abcdefABCDEF")
_LOST = "\ufffd"


def load(text: str) -> Any:
    """The value of a JSON text. Raises ``ValueError`` for anything else, NaN included."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _refuse(name: str) -> Any:
    raise ValueError(name)


def dump(value: Any) -> str:
    """JSON text as models and clients expect it. Raises ``ValueError`` for infinite numbers."""
    return _ENCODER.encode(value)


def escape_string(text: str) -> str:
    """``text`` as it stands between the quotes of a JSON string."""
    return dump(text)[1:-1]


class JsonSpan:
    """Follows one JSON value from its first character, or the blanks before it, to its end."""

    __slots__ = ("_depth", "_escaped", "_scalar", "_started", "complete", "in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._started = self._scalar = self._escaped = False
        #: The text goes on inside a string: what looks like markup there is not.
        self.in_string = False
        self.complete = False

    def read(self, text: str, at: int = 0) -> int:
        """The position behind what belongs to the value; ``over`` tells whether it ended there."""
        while at < len(text) and not self.complete:
            at = self._read_string(text, at) if self.in_string else self._read_structure(text, at)
        return at

    def _read_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        at = _match_end(_STRING_RUN, text, at)
        if at == len(text):
            return at
        if text[at] == "\\":
            self._escaped = True
        else:
            self.in_string = False
            self.complete = self._depth == 0
        return at + 1

    def _read_structure(self, text: str, at: int) -> int:
        char = text[at]
        if not self._started:
            if char.isspace():
                return at + 1
            self._started = True
            self._scalar = char not in '{["'
        if self._scalar:
            at = _match_end(_SCALAR_RUN, text, at)
            self.complete = at < len(text)
            return at
        if char == '"':
            self.in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.complete = self._depth <= 0
        else:
            return _match_end(_PLAIN_RUN, text, at)
        return at + 1


def _match_end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


class StringDecoder:
    """What a string says, from behind its opening quote to the closing one.

    JSON's by default; Python's with its ``escapes`` and ``digits`` (escape → how many hexadecimal
    digits); without ``escapes`` a backslash is a backslash. An escape that is none stays as it was
    written; half a surrogate pair becomes U+FFFD.
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
        """What it says up to the position returned."""
        said: list[str] = []
        while at < len(text) and not self.complete:
            if self._escape:
                at = self._read_escape(text[at], at, said)
                continue
            end = _match_end(self._run, text, at)
            if end > at:
                said.append(self._flush_surrogate() + text[at:end])
            at = end
            if at < len(text):
                if text[at] == "\\" and self._escapes:
                    self._escape = "\\"
                else:
                    self.complete = True
                at += 1
        return "".join(said), at

    def finish(self) -> str:
        """What was held back, of a string that was cut or is over."""
        escape, self._escape = self._escape, ""
        return self._flush_surrogate() + escape

    def _read_escape(self, char: str, at: int, said: list[str]) -> int:
        """One more character of an escape; the position to go on from."""
        if len(self._escape) > 1 and char not in _HEX:
            said.append(self.finish())
            return at
        self._escape += char
        kind = self._escape[1]
        if kind not in self._digits:
            said.append(self._flush_surrogate() + self._escapes.get(char, self._escape))
            self._escape = ""
        elif len(self._escape) == 2 + self._digits[kind]:
            said.append(self._decode_unit(int(self._escape[2:], 16)))
            self._escape = ""
        return at + 1

    def _decode_unit(self, unit: int) -> str:
        """A UTF-16 unit: a character, or half of one."""
        if 0xDC00 <= unit < 0xE000 and self._high_surrogate:
            high, self._high_surrogate = self._high_surrogate, 0
            return chr(0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00))
        lone = self._flush_surrogate()
        if 0xD800 <= unit < 0xDC00:
            self._high_surrogate = unit
            return lone
        is_lost = 0xDC00 <= unit < 0xE000 or unit > 0x10FFFF
        return lone + (_LOST if is_lost else chr(unit))

    def _flush_surrogate(self) -> str:
        lost = _LOST if self._high_surrogate else ""
        self._high_surrogate = 0
        return lost


_INPUT_BEGUN = re.compile(r'\s*(?:\{\s*(?:"(?:[^"\\]*(?:"\s*(?::\s*)?)?)?)?)?\Z')
_INPUT_HEAD = re.compile(r'\s*\{\s*"[^"\\]*"\s*:\s*"')
_HEAD_LIMIT = 128


class ToolInputDecoder:
    """Turns ``{"input": "free\\ntext"}`` back into the free text of a custom tool, as it comes.

    Models that call the only parameter otherwise are understood; arguments of any other form are
    the input as they stand.
    """

    def __init__(self) -> None:
        self._head = ""
        self._string: StringDecoder | None = None
        self._plain = False

    def read(self, text: str) -> str:
        """The free text that ``text`` adds."""
        if self._plain:
            return text
        if self._string is not None:
            return self._string.read(text)[0]
        self._head += text
        found = _INPUT_HEAD.match(self._head)
        if found is not None:
            self._string = StringDecoder()
            return self._string.read(self._head, found.end())[0]
        if len(self._head) < _HEAD_LIMIT and _INPUT_BEGUN.match(self._head):
            return ""
        return self.finish()

    def finish(self) -> str:
        """What was held back, at the end of the arguments."""
        self._plain = True
        head, self._head = self._head, ""
        if self._string is not None:
            return self._string.finish()
        return head if head.strip(" {}\t\r\n") else ""

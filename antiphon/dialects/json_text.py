"""JSON as models write it, a piece at a time: where a value ends, what a call object says.

Nothing here raises, whatever the text; nothing is read twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["CallObject", "InputText", "ValueEnd", "load"]

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_BLANK = " \t\r\n"
_INPUT_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPES: Mapping[str, str] = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def load(text: str) -> Any:
    """The value of a JSON text. Raises ``ValueError`` for anything else, NaN included."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> Any:
    raise ValueError(name)


class ValueEnd:
    """Follows one JSON object, array or string to its end."""

    __slots__ = ("_depth", "_escaped", "begun", "in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._escaped = False
        self.in_string = False
        self.begun = False

    def feed(self, text: str, start: int = 0) -> int | None:
        """The position just behind the value, if it ends in ``text``; None if it goes on."""
        at = start
        if not self.begun:
            while at < len(text) and text[at] in _BLANK:
                at += 1
            if at == len(text):
                return None
            self.begun = True
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_INSIDE if self.in_string else _OUTSIDE).search(text, at)
            if found is None:
                return None
            at = found.end()
            if self._step(found.group()):
                return at
        return None

    def _step(self, char: str) -> bool:
        if char == "\\":
            self._escaped = True
        elif char == '"':
            self.in_string = not self.in_string
            return not self.in_string and self._depth == 0
        elif char in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            return self._depth <= 0
        return False


class CallObject:
    """Reads ``{"name": …, "arguments": {…}}`` as it comes: the name, and the raw text of the
    arguments piece by piece as soon as the name is known.

    ``arguments`` may also be called ``parameters``, and may be a string that holds JSON. Keys in
    another order wait for the end of their value.
    """

    _NAME = ("name", "tool_name", "function")
    _ARGUMENTS = ("arguments", "parameters", "args")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._state = "open"
        self._key = ""
        self._mark = 0
        self._value: ValueEnd | None = None
        self._streams = False
        self._has_arguments = False
        self._new: list[str] = []
        self.name: str | None = None
        self.done = False
        self.broken = False
        self.first_key: str | None = None

    def feed(self, text: str) -> int:
        """Take more text; returns how much of it belongs to the object."""
        held = len(self._text)
        self._text += text
        while not (self.done or self.broken) and self._at < len(self._text):
            if not _STEPS[self._state](self):
                break
        mine = self._at if self.done or self.broken else len(self._text)
        taken = mine - held
        if self._streams and self.name is not None:
            self._stream()
        return taken

    @property
    def in_string(self) -> bool:
        """The text so far ends inside a string."""
        return self._state == "value" and self._value is not None and self._value.in_string

    def take(self) -> str:
        """The text of the arguments that is new since the last call; all of it in the end."""
        if self.name is None:
            return ""
        if self.done and not self._has_arguments:
            self._has_arguments = True
            return "{}"
        new, self._new = self._new, []
        return "".join(new)

    def _stream(self) -> None:
        """Hand out what there is of the arguments, and forget it: nothing is kept twice."""
        self._new.append(self._text[self._mark : self._at])
        self._text = self._text[self._at :]
        self._at = self._mark = 0

    # Each step reads one thing; False: more text is needed.

    def _open(self) -> bool:
        if not self._skip(_BLANK):
            return False
        if self._text[self._at] != "{":
            self.broken = True
            return False
        self._at += 1
        self._state = "key"
        return True

    def _read_key(self) -> bool:
        if not self._skip(_BLANK + ","):
            return False
        if self._text[self._at] == "}":
            self._at += 1
            self.done = True
            return False
        if self._text[self._at] != '"':
            self.broken = True
            return False
        end = ValueEnd().feed(self._text, self._at)
        if end is None:
            return False
        self._key = self._text[self._at + 1 : end - 1]
        self.first_key = self.first_key or self._key
        self._at = end
        self._state = "colon"
        return True

    def _colon(self) -> bool:
        if not self._skip(_BLANK):
            return False
        if self._text[self._at] != ":":
            self.broken = True
            return False
        self._at += 1
        self._state = "gap"
        return True

    def _gap(self) -> bool:
        if not self._skip(_BLANK):
            return False
        self._mark = self._at
        self._value = ValueEnd() if self._text[self._at] in '{["' else None
        self._streams = self._key in self._ARGUMENTS and self._text[self._at] in "{["
        self._state = "value"
        return True

    def _read_value(self) -> bool:
        if self._value is not None:
            end = self._value.feed(self._text, self._at)
            self._at = len(self._text) if end is None else end
            if end is None:
                return False
        else:
            while self._at < len(self._text) and self._text[self._at] not in ",}":
                self._at += 1
            if self._at == len(self._text):
                return False
        self._keep(self._text[self._mark : self._at])
        self._state = "key"
        return True

    def _keep(self, value: str) -> None:
        """A value is whole; ``value`` is what of it has not been handed out."""
        if self._key in self._NAME and value.startswith('"'):
            self.name = _string(value)
        elif self._key in self._ARGUMENTS:
            self._has_arguments = True
            self._new.append(value if self._streams else _unquoted(value))
        self._streams = False

    def _skip(self, chars: str) -> bool:
        while self._at < len(self._text) and self._text[self._at] in chars:
            self._at += 1
        return self._at < len(self._text)


_STEPS: Mapping[str, Callable[[CallObject], bool]] = {
    "open": CallObject._open,
    "key": CallObject._read_key,
    "colon": CallObject._colon,
    "gap": CallObject._gap,
    "value": CallObject._read_value,
}


def _string(value: str) -> str:
    try:
        return str(load(value))
    except ValueError:
        return value.strip('"')


def _unquoted(value: str) -> str:
    """Arguments that a model wrote as a string of JSON are that JSON."""
    if value.startswith('"'):
        inner = _string(value)
        try:
            if isinstance(load(inner), dict):
                return inner
        except ValueError:
            return value
    return "{}" if value.strip() == "null" else value


class InputText:
    """Turns ``{"input": "free\\ntext"}`` back into the free text of a custom tool, as it comes.

    Arguments of another form are given as they are, at the end.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at: int | None = None
        self._ended = False

    def feed(self, text: str) -> str:
        """The free text that ``text`` adds."""
        self._text += text
        if self._at is None:
            head = _INPUT_HEAD.match(self._text)
            if head is None:
                return ""
            self._at = head.end()
        out: list[str] = []
        while not self._ended and self._at < len(self._text):
            plain = _PLAIN.match(self._text, self._at)
            if plain is not None:
                out.append(plain.group())
                self._at = plain.end()
            elif self._text[self._at] == '"':
                self._ended = True
            elif (escaped := self._escape(self._at)) is not None:
                char, self._at = escaped
                out.append(char)
            else:
                break
        self._text, self._at = self._text[self._at :], 0
        return "".join(out)

    def finish(self) -> str:
        """What is left to say at the end of the arguments."""
        if self._at is not None:
            return ""
        try:
            value = load(self._text)
        except ValueError:
            return self._text
        if isinstance(value, dict) and len(value) == 1:
            value = next(iter(value.values()))
        return value if isinstance(value, str) else self._text

    def _escape(self, at: int) -> tuple[str, int] | None:
        """The character an escape stands for, and the position behind it; None if it is cut."""
        if at + 1 >= len(self._text):
            return None
        code = self._text[at + 1]
        if code != "u":
            return _ESCAPES.get(code, code), at + 2
        if at + 6 > len(self._text):
            return None
        unit = _hex(self._text[at + 2 : at + 6])
        if 0xD800 <= unit < 0xDC00:
            if at + 12 > len(self._text) and self._text[at + 6 :] in "\\u"[: len(self._text) - at]:
                return None
            low = _hex(self._text[at + 8 : at + 12])
            if self._text[at + 6 : at + 8] == "\\u" and 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)), at + 12
        return ("\ufffd" if 0xD800 <= unit < 0xE000 else chr(unit)), at + 6


def _hex(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0xFFFD

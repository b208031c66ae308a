"""Reader of arguments that are key-value pairs: Python keyword arguments, or keys and values in
braces."""

from __future__ import annotations

import re

from antiphon.dialects.json_stream import PLAIN_QUOTES, StringDecoder, match_end

from .argument_values import string_decoder
from .lexer import QUOTE
from .marked_string import AFTER_STRING, MarkedString
from .tool_call import CallBuilder

_KEY = re.compile(r"[\w.\-$]*")
_BLANK = re.compile(r"\s*")
_GAP = re.compile(r"[\s,]*")
_TURN = re.compile(rf"""["'()\[\]{{}},\\{QUOTE}]""")
#: How much text after a quote is held back until it is known whether the quote ends the value.
_MAX_FOLLOWING = 128
#: What may follow a string that is the value of a Python keyword, besides the end of the call: the
#: next keyword. ``_FOLLOWING_PART`` matches the beginnings of such a text.
_NEXT_KEYWORD = re.compile(r"\s*,\s*([\w.\-$]+)\s*=")
_FOLLOWING_PART = re.compile(r"\s*(?:,\s*(?:[\w.\-$]+\s*)?)?")
#: Characters that follow the closing bracket of a call only if it is part of the string.
_AFTER_BRACKET = "\"')}.+-*/%:<>=&|["
#: Opening bracket → the bracket that closes it.
_CLOSING = {"(": ")", "[": "]", "{": "}"}
#: How many brackets a bracket may close. The inner ones of them lack their own closing brackets.
_NESTING = 64
#: Prefixes of a Python string literal.
_PREFIXES = frozenset({"b", "f", "r", "u", "br", "rb", "fr", "rf"})
_MAX_PREFIX = 2


class KeywordArgumentReader:
    """Reads arguments of the form ``key=value, …)`` or ``key:value, …}`` incrementally, up to the
    closing bracket ``close``. ``sign``: the text between key and value. ``quote``: the text of the
    format's quote, or ``""``.

    A quote ends a string only if a comma or a bracket follows it, because models do not escape the
    quotes inside. After the value of a Python keyword, another keyword or the end of the call must
    follow, so that code such as ``print('a', b('c'))`` can stand in a string. Where the format has
    a quote of its own, a value may also stand without it: then a comma ends it only if a key
    follows. A quote of the format that opens nothing is dropped.
    """

    def __init__(self, target: CallBuilder, sign: str, close: str, quote: str = "") -> None:
        self._target = target
        self._key_ends = ":=" if sign == ":" else sign
        self._quote_text = quote
        self._blank: list[str] = []  # white space after a quote that may end a string
        self._is_keyword = False  # whether the current value belongs to a Python keyword
        self._following = ""  # text after a quote that may end the value of a keyword
        self._last = ""  # the last character of a literal that is not white space
        self._close = close
        self._step = self._read_key
        self._part: list[str] = []
        self._string: StringDecoder | None = None
        self._delimiter = ""  # the quote of the current string: one character, or three
        self._closing_quotes = 0  # how many of its closing quote characters have been read
        self._is_empty = self._is_raw = False
        self._quote = ""
        self._brackets: list[str] = []  # the closing brackets that the current literal lacks
        self._bare: list[str] | None = None  # a value without marks, until a key follows its comma
        self._gap: list[str] = []  # the text after ``_bare``
        self._marked: MarkedString | None = None  # the current string between marks of the format
        self._is_escaped = False
        self.complete = False
        self.failed = False

    @property
    def in_string(self) -> bool:
        """Whether the text read so far ends inside a string. In a string, text that looks like a
        tag is part of the string."""
        if self._marked is not None:
            return self._marked.in_text
        return self._step == self._read_string or bool(self._quote)

    def read(self, text: str) -> int:
        """Read the next piece of text. Returns the number of characters that belong to the
        arguments."""
        at = 0
        while at < len(text) and not self.complete:
            at = self._step(text, at)
        return at

    def finish(self) -> None:
        """End the arguments, even if the closing bracket is missing."""
        if self._marked is not None:
            self._add_text(self._marked.finish())
            self._end_marked()
        if self._string is not None:
            if self._step == self._read_string:
                self._target.add_string(
                    self._delimiter[: self._closing_quotes] + self._string.finish()
                )
                self._target.is_broken |= self._delimiter in PLAIN_QUOTES
            following = self._following.strip("}]), \t\r\n")
            self._end_string()
            if following:
                self._target.stray_text.append(following)
        self._resume_bare()
        if "".join(self._part).strip():
            if self._step == self._read_key:
                self._target.start_parameter("")
            self._end_literal()

    # The reader is a state machine. Each method that follows is a step: it reads some of the text,
    # returns the position after it, and sets the next step.

    def _read_key(self, text: str, at: int) -> int:
        at = match_end(_BLANK if self._part else _GAP, text, at)
        end = match_end(_KEY, text, at)
        if end > at:
            self._part.append(text[at:end])
            return end
        if at == len(text):
            return at
        char = text[at]
        if char in self._key_ends:
            return self._start_keyword("".join(self._part), at)
        if char == self._close and not self._part:
            self._end_bare()
            self.complete = True
            return at + 1
        if char == QUOTE or (char in PLAIN_QUOTES and ":" in self._key_ends):
            return at + 1  # some models quote their keys
        if char == "*" and not self._part:
            return at + 1  # an object with all arguments, as in Python
        if self._resume_bare():
            return at
        self._target.start_parameter("", is_object=char == "{" and not self._part)
        self._is_keyword = False
        self._step = self._read_literal if self._part else self._read_value_start
        return at

    def _read_key_after_bare(self, text: str, at: int) -> int:
        """Read the key after a value without marks. If no key follows, the value goes on."""
        end = self._read_key(text, at)
        if self._bare is not None:
            self._gap.append(text[at:end])
        elif self._step == self._read_literal:
            self._add_literal(text[at:end])
        return end

    def _resume_bare(self) -> bool:
        """Go on with the value before a comma, because no key follows the comma. Returns False if
        there is no such value."""
        if self._bare is None:
            return False
        self._bare.extend(part.replace(QUOTE, "") for part in self._gap)
        self._part, self._bare, self._gap = self._bare, None, []
        self._step = self._read_literal
        return True

    def _end_bare(self) -> None:
        """End the value before a comma, because a key or the end of the call follows."""
        if self._bare is not None:
            self._part, self._bare, self._gap = self._bare, None, []
            self._end_literal()

    def _start_keyword(self, name: str, at: int) -> int:
        """Start the parameter ``name``, whose value begins after the position ``at``."""
        self._end_bare()
        self._target.start_parameter(name)
        self._is_keyword = self._key_ends == "="
        self._part, self._step = [], self._read_value_start
        return at + 1

    def _read_value_start(self, text: str, at: int) -> int:
        at = match_end(_BLANK, text, at)
        if at == len(text):
            return at
        if text[at] == QUOTE and self._target.takes_other_type:
            self._step = self._read_first
        elif text[at] == QUOTE:
            self._start_marked()
        elif text[at] in PLAIN_QUOTES:
            self._start_string(text[at])
        else:
            self._step = self._read_literal
            return at
        return at + 1

    def _read_first(self, text: str, at: int) -> int:
        """Read the first character after a mark where the schema allows no string. If it is a
        bracket, the mark has no meaning."""
        at = match_end(_BLANK, text, at)
        if at < len(text) and text[at] in "[{":
            self._step = self._read_literal
        elif at < len(text):
            self._start_marked()
        return at

    def _start_marked(self) -> None:
        keys = self._target.missing_parameters
        self._marked = MarkedString(self._quote_text, "".join(self._brackets[-1:]), keys)
        self._add_text(QUOTE if self._brackets else "")
        self._step = self._read_marked

    def _read_marked(self, text: str, at: int) -> int:
        marked = self._marked
        assert marked is not None
        piece, at = marked.read(text, at)
        self._add_text(piece)
        if marked.complete:
            self._end_marked()
            end = self.read(marked.rest)
            if end < len(marked.rest):
                self._target.stray_text.append(marked.rest[end:].replace(QUOTE, ""))
        return at

    def _add_text(self, text: str) -> None:
        """Add text to a string between marks, which may be a part of a literal."""
        if self._brackets:
            self._part.append(text)
        else:
            self._target.add_string(text)

    def _end_marked(self) -> None:
        self._marked, self._last = None, QUOTE
        if self._brackets:
            self._part.append(QUOTE)
            self._step = self._read_literal
        else:
            self._end_string()

    def _start_string(self, mark: str, *, raw: bool = False) -> None:
        self._delimiter, self._is_raw = mark, raw
        self._string, self._step = string_decoder(mark[0], raw=raw), self._read_string
        self._is_empty, self._closing_quotes = True, 0
        self._target.add_string("")

    def _read_string(self, text: str, at: int) -> int:
        assert self._string is not None
        if self._closing_quotes and text[at] != self._delimiter[0]:
            # One or two quote characters do not end a string with three.
            self._target.add_string(self._delimiter[: self._closing_quotes])
            self._closing_quotes = 0
        mark = text.find(QUOTE, at)
        decoded, at = self._string.read(text[: mark if mark >= 0 else len(text)], at)
        self._is_empty &= not decoded
        self._target.add_string(decoded)
        if at == mark and not self._string.complete:  # a string that the format's quote ends
            self._target.add_string(self._string.finish())
            self._step = self._read_string_end
            return at + 1
        if self._string.complete:
            self._target.add_string(self._string.finish())
            self._closing_quotes += 1
            if self._closing_quotes == len(self._delimiter):
                self._step = self._read_string_end
            else:
                self._string = string_decoder(self._delimiter[0], raw=self._is_raw)
        return at

    def _read_string_end(self, text: str, at: int) -> int:
        """Read the character at position ``at``, which follows a closing quote. Returns the
        position of the next character to read.

        - After an empty string, a third quote of the same kind starts a triple-quoted string.
        - Any other quote starts a second string, which is joined to the first one as in Python.
        - White space is skipped. A quote before a long white space was part of the string.
        - A comma or a bracket ends the value. After the value of a keyword, the text that follows
          decides.
        - After any other character, the quote was part of the string, as in ``'sed -n '1,5p' x'``.
        """
        char = text[at]
        if char in PLAIN_QUOTES and self._is_empty and char == self._delimiter:
            self._start_string(char * 3, raw=self._is_raw)
        elif char in PLAIN_QUOTES:
            self._start_string(char)
        elif char.isspace() and len(self._blank) < _MAX_FOLLOWING:
            self._is_empty = False
            self._blank.append(char)
            return at + 1
        elif self._is_keyword and self._delimiter in PLAIN_QUOTES and char in f",{self._close}":
            self._following, self._step = "".join(self._blank), self._read_following
            return at
        elif char in AFTER_STRING or char == QUOTE or self._delimiter not in PLAIN_QUOTES:
            self._end_string()
            return at
        else:
            return self._resume_string("".join(self._blank), at)
        self._blank = []
        return at + 1

    def _read_following(self, text: str, at: int) -> int:
        """Read a character of the text after the value of a keyword, until it is known whether the
        quote has ended this value."""
        char = text[at]
        following = self._following + char
        is_long = len(following) > _MAX_FOLLOWING
        if self._close in self._following:
            if is_long or not char.isspace():
                if char in _AFTER_BRACKET:
                    return self._resume_string(self._following, at)
                self._end_string()
                self.complete = True
                return at
        elif (keyword := _NEXT_KEYWORD.fullmatch(following)) is not None:
            self._end_string()
            return self._start_keyword(keyword.group(1), at)
        elif is_long or not (
            _FOLLOWING_PART.fullmatch(following)
            or (char == self._close and self._following.strip() in ("", ","))
        ):
            return self._resume_string(self._following, at)
        self._following = following
        return at + 1

    def _resume_string(self, following: str, at: int) -> int:
        """Go on with a string, because the quote before the text ``following`` is part of it."""
        assert self._string is not None
        self._target.add_string(self._delimiter + following)
        self._closing_quotes, self._is_empty = 0, False
        self._string = string_decoder(self._delimiter, raw=self._is_raw)
        self._step, self._blank, self._following = self._read_string, [], ""
        return at

    def _end_string(self) -> None:
        self._blank, self._following = [], ""
        self._target.end_string()
        self._string, self._step = None, self._read_separator

    def _read_literal(self, text: str, at: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            self._part.append(text[at])
            return at + 1
        found = _TURN.search(text, at)
        if found is None:
            self._add_literal(text[at:])
            return len(text)
        self._add_literal(text[at : found.start()])
        char = found.group()
        if char == QUOTE:
            self._read_mark()
            return found.end()
        prefix = "".join(self._part[:_MAX_PREFIX]).lower()
        if char in PLAIN_QUOTES and len(self._part) <= _MAX_PREFIX and prefix in _PREFIXES:
            self._part = []
            self._start_string(char, raw="r" in prefix)
            return found.end()
        if char == "," and self._quote_text and not self._quote and not self._brackets:
            self._bare, self._part, self._step = self._part, [], self._read_key_after_bare
            return found.start()
        if not self._track_nesting(char):
            self._end_literal()
            return found.start()
        self._add_literal(char)
        return found.end()

    def _read_mark(self) -> None:
        """Read a mark in a literal. It opens a string only after a bracket, a comma or a colon, and
        around a key it has no meaning."""
        if self._quote:
            self._add_literal(self._quote)  # the mark ends the string that this quote began
            self._quote = ""
        elif (
            self._brackets
            and self._last in "[(:=,"
            and not (self._last == "," and self._brackets[-1] == "}")
        ):
            self._start_marked()

    def _add_literal(self, text: str) -> None:
        if text:
            self._part.append(text)
        self._last = text.rstrip()[-1:] or self._last

    def _track_nesting(self, char: str) -> bool:
        """Record whether ``char``, a character of a literal, opens or closes a bracket or a string.
        Returns False if it ends the literal."""
        if self._quote:
            self._is_escaped = char == "\\"
            self._quote = "" if char == self._quote else self._quote
        elif char in PLAIN_QUOTES:
            if not self._quote_text or self._last in "[{(:=,":
                self._quote = char
        elif char in _CLOSING:
            self._brackets.append(_CLOSING[char])
        elif char in (inner := self._brackets[-_NESTING:][::-1]):
            self._close_brackets(inner.index(char))
            self._brackets.pop()
        else:
            return char != self._close and (char != "," or bool(self._brackets))
        return True

    def _close_brackets(self, count: int) -> None:
        """Close the innermost ``count`` brackets of a literal."""
        for _ in range(count):
            self._part.append(self._brackets.pop())

    def _end_literal(self) -> None:
        self._close_brackets(len(self._brackets))
        self._target.add_value("".join(self._part).strip())
        self._part, self._quote, self._step = [], "", self._read_separator
        self._last = ""

    def _read_separator(self, text: str, at: int) -> int:
        char = text[at]
        self.complete = char == self._close
        if char == ",":
            self._step = self._read_key
        elif not self.complete and char != QUOTE:
            self._target.stray_text.append(char)
        return at + 1

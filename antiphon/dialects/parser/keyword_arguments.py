"""Reader of arguments that are key-value pairs: Python keyword arguments, or keys and values in
braces."""

from __future__ import annotations

import re

from antiphon.dialects.formats.types import ParameterSyntax
from antiphon.dialects.json_stream import StringDecoder, match_end

from .argument_values import string_decoder
from .lexer import QUOTE
from .tool_call import CallBuilder

_KEY = re.compile(r"[\w.\-$]*")
_BLANK = re.compile(r"\s*")
_GAP = re.compile(r"[\s,]*")
_TURN = re.compile(rf"""["'()\[\]{{}},\\{QUOTE}]""")
#: Brackets and white space that may follow a string, and how much of its end is held back.
_BRACKETS, _MAX_HELD = "}]) \t\r\n", 64
#: The end of a string that is held back: brackets, or a key, before which a quote may be missing.
_STRING_TAIL = re.compile(r",\s{0,9}(?:[\w.\-$]{1,40}\s?:?\s{0,9})?\Z|[}\])\s]{1,64}\Z")
_NEXT_KEY = re.compile(r",\s*([\w.\-$]+)\s?:\s*")
#: How much text after a quote is held back until it is known whether the quote ends the value.
_MAX_FOLLOWING = 128
#: The characters that follow a string.
_AFTER_STRING = ",:)]}"
#: What may follow a string that is the value of a Python keyword, besides the end of the call: the
#: next keyword. ``_FOLLOWING_PART`` matches the beginnings of such a text.
_NEXT_KEYWORD = re.compile(r"\s*,\s*([\w.\-$]+)\s*=")
_FOLLOWING_PART = re.compile(r"\s*(?:,\s*(?:[\w.\-$]+\s*)?)?")
#: Characters that follow the closing bracket of a call only if it is part of the string.
_AFTER_BRACKET = "\"')}.+-*/%:<>=&|["
_QUOTES = ('"', "'", QUOTE)
_PLAIN_QUOTES = ('"', "'")
#: Prefixes of a Python string literal.
_PREFIXES = frozenset({"b", "f", "r", "u", "br", "rb", "fr", "rf"})


class KeywordArgumentReader:
    """Reads arguments of the form ``key=value, …)`` or ``key:value, …}`` incrementally, up to the
    closing bracket ``close``. ``form``: how the tool format writes one argument. ``quote``: the
    text of the format's quote, or ``""``.

    A quote ends a string only if a comma or a bracket follows it, because models do not escape the
    quotes inside. After the value of a Python keyword, another keyword or the end of the call must
    follow, so that code such as ``print('a', b('c'))`` can stand in a string. Models drift between
    the format's quote and other quotes, so a quote that opens nothing is dropped. If a string has
    no end, the brackets at its end belong to the call.
    """

    def __init__(
        self, target: CallBuilder, form: ParameterSyntax, close: str, quote: str = ""
    ) -> None:
        self._target = target
        self._key_ends = ":=" if form.json == ":" else form.json
        self._quote_text = quote
        self._held = ""  # brackets and white space at the end of the string so far
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
        self._depth = 0
        self._is_escaped = False
        self.complete = False
        self.failed = False

    @property
    def in_string(self) -> bool:
        """Whether the text read so far ends inside a string. In a string, text that looks like a
        tag is part of the string."""
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
        if self._string is not None:
            if self._step == self._read_string and self._delimiter != QUOTE:
                self._target.add_string(
                    self._delimiter[: self._closing_quotes] + self._string.finish()
                )
            elif self._held.strip(_BRACKETS + ","):  # what looked like a key is text
                self._target.add_string(self._held)
            following = self._following.strip(_BRACKETS + ",")
            self._end_string()
            if following:
                self._target.stray_text.append(following)
        elif "".join(self._part).strip():
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
            self.complete = True
            return at + 1
        if char == QUOTE or (char in "\"'" and ":" in self._key_ends):
            return at + 1  # some models quote their keys
        self._target.start_parameter("")
        self._is_keyword = False
        self._step = self._read_literal if self._part else self._read_value_start
        return at

    def _start_keyword(self, name: str, at: int) -> int:
        """Start the parameter ``name``, whose value begins after the position ``at``."""
        self._target.start_parameter(name)
        self._is_keyword = self._key_ends == "="
        self._part, self._step = [], self._read_value_start
        return at + 1

    def _read_value_start(self, text: str, at: int) -> int:
        at = match_end(_BLANK, text, at)
        if at == len(text):
            return at
        if text[at] in _QUOTES:
            self._start_string(text[at])
            return at + 1
        self._step = self._read_literal
        return at

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
        if self._delimiter == QUOTE:
            return self._read_quoted(self._string, text, at)
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

    def _read_quoted(self, string: StringDecoder, text: str, at: int) -> int:
        """Read a string between quotes of the format. Brackets at its end are held back, and so is
        the next key: if a quote follows it, the closing quote of this string is missing."""
        decoded, at = string.read(text, at)
        whole = self._held + decoded
        tail = _STRING_TAIL.search(whole, max(0, len(whole) - _MAX_HELD))
        end = len(whole) if tail is None else tail.start()
        key = _NEXT_KEY.fullmatch(whole, end)
        if string.complete and key and key[1] in (self._target.missing_parameters or ()):
            self._held = ""
            self._target.add_string(whole[:end])
            self._end_string()
            self._start_keyword(key[1], at)
            self._start_string(QUOTE)
            return at
        if string.complete:
            end = len(whole)
            self._step = self._read_quote_end
        self._held = whole[end:]
        self._target.add_string(whole[:end])
        return at

    def _read_quote_end(self, text: str, at: int) -> int:
        """Read the character after a quote of the format. It decides whether the quote ends the
        string or is part of it."""
        char = text[at]
        if char.isspace():
            self._blank.append(char)
            return at + 1
        blank, self._blank = "".join(self._blank), []
        if char in _AFTER_STRING:
            self._is_empty, self._step = False, self._read_string_end
            return at
        self._target.add_string(self._quote_text + blank)
        self._string, self._step = string_decoder(QUOTE), self._read_string
        return at

    def _read_string_end(self, text: str, at: int) -> int:
        """Read the character at position ``at``, which follows a closing quote. Returns the
        position of the next character to read.

        - After an empty string, a third quote of the same kind starts a triple-quoted string.
        - Any other quote starts a second string, which is joined to the first one as in Python.
        - White space is skipped.
        - A comma or a bracket ends the value. After the value of a keyword, the text that follows
          decides.
        - After any other character, the quote was part of the string, as in ``'sed -n '1,5p' x'``.
        """
        char = text[at]
        if char in "\"'" and self._is_empty and char == self._delimiter:
            self._start_string(char * 3, raw=self._is_raw)
        elif char in "\"'":
            self._start_string(char)
        elif char.isspace():
            self._is_empty = False
            self._blank.append(char)
            return at + 1
        elif self._is_keyword and self._delimiter in _PLAIN_QUOTES and char in f",{self._close}":
            self._following, self._step = "".join(self._blank), self._read_following
            return at
        elif char in _AFTER_STRING or char == QUOTE or self._delimiter not in _PLAIN_QUOTES:
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
        if self._close in self._following:
            if not char.isspace():
                if char in _AFTER_BRACKET:
                    return self._resume_string(self._following, at)
                self._end_string()
                self.complete = True
                return at
        elif (keyword := _NEXT_KEYWORD.fullmatch(following)) is not None:
            self._end_string()
            return self._start_keyword(keyword.group(1), at)
        elif len(following) > _MAX_FOLLOWING or not (
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
        if char == QUOTE and not self._quote and self._last not in "[{(,:":
            return found.end()  # it closes a string that no quote has opened
        if char in "\"'" and (prefix := "".join(self._part).lower()) in _PREFIXES:
            self._part = []
            self._start_string(char, raw="r" in prefix)
            return found.end()
        if not self._quote and not self._depth and char in (",", self._close):
            self._end_literal()
            return found.start()
        self._track_nesting(char)
        self._add_literal(char)
        return found.end()

    def _add_literal(self, text: str) -> None:
        self._part.append(text)
        self._last = text.rstrip()[-1:] or self._last

    def _track_nesting(self, char: str) -> None:
        """Record whether ``char``, a character of a literal, opens or closes a bracket or a
        string."""
        if self._quote:
            self._is_escaped = char == "\\" and self._quote != QUOTE
            self._quote = "" if char == self._quote else self._quote
        elif char in _QUOTES:
            self._quote = char
        elif char in "([{":
            self._depth += 1
        elif char in ")]}":
            self._depth = max(0, self._depth - 1)  # models also close what they did not open

    def _end_literal(self) -> None:
        self._target.add_value("".join(self._part).strip())
        self._part, self._quote, self._depth, self._step = [], "", 0, self._read_separator
        self._last = ""

    def _read_separator(self, text: str, at: int) -> int:
        char = text[at]
        self.complete = char == self._close
        if char == ",":
            self._step = self._read_key
        elif not self.complete and char != QUOTE:
            self._target.stray_text.append(char)
        return at + 1

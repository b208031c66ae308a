"""Reader of a string between marks, the special tokens that a tool format writes around strings.

Models forget marks, double them, or write other quotes in their place. So the text around a mark
decides what the mark is.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from antiphon.dialects.json_stream import PLAIN_QUOTES, match_end

from .lexer import QUOTE

#: The characters that follow a string.
AFTER_STRING = ",:)]}"
#: White space, and further marks, after a mark.
_AFTER_MARK = re.compile(rf"[\s{QUOTE}]*")
_WORD = re.compile(r"\w")
#: How much of the end of a string, and how much white space after a mark, is held back.
_MAX_HELD = 64
_KEY = r"[\w.\-$]{1,40}\s?"
#: The end of a string that is held back. The closing mark may be missing before it: another quote,
#: brackets, and the text before the next string.
_TAIL = re.compile(
    rf"""["']?[}}\])\s]{{0,64}}(?:,[\s\[{{]{{0,9}}"""
    rf"(?:{_KEY}(?:[:=][\s\[{{]{{0,9}}(?:{_KEY}[:=]?\s{{0,9}})?)?)?)?\Z"
)
#: The same, if a mark follows it that opens the next string.
_NEXT = re.compile(
    rf"""(?P<end>["']?[}}\])\s]*),[\s\[{{]*(?:(?P<key>[\w.\-$]+)\s?[:=][\s\[{{]*(?:{_KEY}[:=]\s*)?)?"""
)


class MarkedString:
    """Reads the string after an opening mark. In the text that it gets, ``QUOTE`` stands for a
    mark.

    - A mark ends the string if a comma or a bracket follows it.
    - A mark after the beginning of the next string opens that string: the closing mark of this one
      is missing.
    - A mark at the start of the string is doubled, unless a blank follows it. Any other mark is
      text, and so is one before a long white space.
    - If the string has no end, the brackets at its end do not belong to it.

    ``mark``: the text of a mark. ``bracket``: the bracket that closes the array or object around
    the string, or ``""``. ``keys``: the parameters that the call has not given yet, or None if they
    are unknown.
    """

    def __init__(self, mark: str, bracket: str, keys: Collection[str] | None) -> None:
        self._mark = mark
        self._bracket = bracket
        self._keys = keys
        self._held = ""
        self._after: list[str] = []  # the marks and white space after the text so far
        self._after_length = 0
        self._quotes: set[str] = set()  # the other quotes in the text so far
        self._is_empty = True
        #: Whether the string has ended. ``rest`` is then the text that is read again after it.
        self.complete = False
        self.rest = ""

    @property
    def in_text(self) -> bool:
        """Whether the text read so far does not end with a mark."""
        return not self._after

    def read(self, text: str, at: int) -> tuple[str, int]:
        """Read ``text`` from the position ``at`` on. Returns the next piece of the string, and the
        position after it."""
        if self._after:
            end = min(match_end(_AFTER_MARK, text, at), at + _MAX_HELD - self._after_length)
            self._after.append(text[at:end])
            self._after_length += end - at
            if self._after_length == _MAX_HELD:
                return self._settle(" "), end
            return ("" if end == len(text) else self._settle(text[end])), end
        found = text.find(QUOTE, at)
        end = len(text) if found < 0 else found
        self._after, self._after_length = [] if found < 0 else [QUOTE], 1
        whole = self._held + text[at:end]
        tail = _TAIL.search(whole, max(0, len(whole) - _MAX_HELD))
        assert tail is not None
        self._held = tail.group()
        piece = whole[: tail.start()]
        self._add(piece)
        return piece, end + len(self._after)

    def finish(self) -> str:
        """End the string without another mark. Returns its last piece."""
        if self._after or _WORD.search(self._held):
            return self._held
        return self._held[:1] if self._held[:1] in self._quotes else ""

    def _settle(self, char: str) -> str:
        """Decide what the last mark is, from the character after it, ``char``."""
        after, self._after = "".join(self._after), []
        held, self._held = self._held, ""
        following = _NEXT.fullmatch(held)
        is_start = self._is_empty and not held
        if is_start and char not in AFTER_STRING and not after.strip(QUOTE):
            return ""
        if following is not None and self._opens_next(following, char):
            end = following["end"]
            if end[:1] in PLAIN_QUOTES and end[0] not in self._quotes:
                end = end[1:]  # it is written in place of the mark
            self.complete, self.rest = True, held[following.end("end") :] + after
            if self._bracket:
                self.rest, end = end + self.rest, ""
            return end
        if char in AFTER_STRING:
            self.complete = True
            return held
        return self._add(held + after.replace(QUOTE, self._mark))

    def _opens_next(self, following: re.Match[str], char: str) -> bool:
        """Return whether a mark opens the next string. ``following``: the text before the mark.
        ``char``: the character after it."""
        if not self._bracket:
            return following["key"] in (self._keys or ())
        is_place = bool(following["key"] or following["end"].strip() or self._bracket == "]")
        return is_place and char not in AFTER_STRING

    def _add(self, text: str) -> str:
        self._is_empty &= not text
        self._quotes.update(quote for quote in PLAIN_QUOTES if quote in text)
        return text

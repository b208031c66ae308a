"""Parse the regexes in the grammars of constraints into syntax trees."""

from __future__ import annotations

import re

from antiphon.dialects.grammar.charsets import (
    ALL_CHARACTERS,
    Ranges,
    category_ranges,
    complement,
    intersection,
    union,
)
from antiphon.dialects.grammar.syntax_tree import (
    REPEAT_SIGNS,
    Alternatives,
    CharSet,
    Concatenation,
    LiteralText,
    Node,
    Repeat,
    UnsupportedGrammar,
)

_REPEAT = re.compile(r"[?*+]|\{(\d*)(?:(,)(\d*))?\}")
_CONTROL_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_CODE_ESCAPE = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
_NOT_NEWLINE: Ranges = ((0, 0x09), (0x0B, 0xD7FF), (0xE000, 0x10FFFF))
_CATEGORIES = frozenset("dDwWsS")


def parse_regex(pattern: str) -> Node:
    """Parse a regex. ``pattern``: the regex without its slashes. Raises ``UnsupportedGrammar`` if
    the regex has syntax that is not supported."""
    reader = _RegexParser(pattern)
    node = reader.choice(dotall=False)
    if reader.position < len(pattern):
        raise UnsupportedGrammar(f"{pattern!r} has an unexpected ')'")
    return node


class _RegexParser:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.position = 0

    @property
    def _next_char(self) -> str:
        return self._pattern[self.position : self.position + 1]

    def _take(self) -> str:
        char = self._next_char
        if not char:
            raise UnsupportedGrammar(f"{self._pattern!r} ends unexpectedly")
        self.position += 1
        return char

    def choice(self, dotall: bool) -> Node:
        arms = [self._concatenation(dotall)]
        while self._next_char == "|":
            self.position += 1
            arms.append(self._concatenation(dotall))
        return arms[0] if len(arms) == 1 else Alternatives(tuple(arms))

    def _concatenation(self, dotall: bool) -> Node:
        parts: list[Node] = []
        while self._next_char not in ("", "|", ")"):
            node = self._atom(dotall)
            if times := _REPEAT.match(self._pattern, self.position):
                self.position = times.end()
                node = Repeat(node, *_repeat_range(times))
            elif (
                isinstance(node, LiteralText)
                and parts
                and isinstance(last := parts[-1], LiteralText)
            ):
                node = LiteralText(last.text + node.text)
                parts.pop()
            parts.append(node)
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _atom(self, dotall: bool) -> Node:
        char = self._take()
        if char == "(":
            return self._group(dotall)
        if char == "[":
            return CharSet(self._char_class())
        if char == ".":
            return CharSet(ALL_CHARACTERS if dotall else _NOT_NEWLINE)
        if char == "\\":
            escaped = self._escape()
            return LiteralText(chr(escaped)) if isinstance(escaped, int) else CharSet(escaped)
        if char in "^$*+?{":
            raise UnsupportedGrammar(f"{char!r} in {self._pattern!r} is not supported")
        return LiteralText(char)

    def _group(self, dotall: bool) -> Node:
        for head, is_dotall in (("?:", dotall), ("?s:", True)):
            if self._pattern.startswith(head, self.position):
                self.position += len(head)
                dotall = is_dotall
        if self._next_char == "?":
            raise UnsupportedGrammar(f"a group in {self._pattern!r} is not supported")
        node = self.choice(dotall)
        if self._take() != ")":
            raise UnsupportedGrammar(f"{self._pattern!r} has an unclosed group")
        return node

    def _escape(self, negated: bool = False) -> int | Ranges:
        r"""Parse an escape, after its backslash. Return the code point of a character, or the
        ranges of a category such as ``\d``.

        ``negated``: whether the escape is in a negated character class such as ``[^\d]``. There,
        the returned ranges contain every character that might belong to the category. So the
        negated class excludes all of these characters.
        """
        if code := _CODE_ESCAPE.match(self._pattern, self.position):
            self.position = code.end()
            return int(code[1] or code[2] or code[3], 16)
        char = self._take()
        if char in _CATEGORIES:
            return (
                complement(category_ranges(char.swapcase())) if negated else category_ranges(char)
            )
        if char.isalnum() and char not in _CONTROL_ESCAPES:
            raise UnsupportedGrammar(f"'\\{char}' in {self._pattern!r} is not supported")
        return ord(_CONTROL_ESCAPES.get(char, char))

    def _char_class(self) -> Ranges:
        """Parse a character class, after its opening bracket. Return its characters."""
        start = self.position
        negated = self._next_char == "^"
        self.position += negated
        members: Ranges = ()
        allowed = ALL_CHARACTERS
        while (char := self._take()) != "]":
            if char == "&" and self._pattern.startswith("&[", self.position) and not negated:
                self.position += 2
                allowed = intersection(allowed, self._char_class())
            else:
                members = union(members, self._members(char, negated))
        source = self._pattern[start : self.position]
        if any(f"\\{each}" in source and f"\\{each.upper()}" in source for each in "dws"):
            members = ALL_CHARACTERS
        members = intersection(members, allowed)
        return complement(members) if negated else members

    def _members(self, char: str, negated: bool) -> Ranges:
        first = self._member(char, negated)
        if not isinstance(first, int):
            return first
        last: int | Ranges = first
        if self._next_char == "-" and not self._pattern.startswith("-]", self.position):
            self.position += 1
            last = self._member(self._take(), negated)
        if not isinstance(last, int) or last < first:
            raise UnsupportedGrammar(f"a range in {self._pattern!r} is invalid")
        return ((first, last),)

    def _member(self, char: str, negated: bool) -> int | Ranges:
        if char == "[":
            raise UnsupportedGrammar(f"a class in {self._pattern!r} is not supported")
        return self._escape(negated) if char == "\\" else ord(char)


def _repeat_range(match: re.Match[str]) -> tuple[int, int | None]:
    if match[0] in REPEAT_SIGNS:
        return REPEAT_SIGNS[match[0]]
    least = int(match[1] or 0)
    if not match[2]:
        return least, least
    return least, int(match[3]) if match[3] else None

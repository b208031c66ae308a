"""Regexes as trees: those that stand in the grammars of constraints. It knows no grammar."""

from __future__ import annotations

import re

from .ast import Chars, Choice, Node, Row, Text, Times, Unreadable
from .charsets import ALL, Ranges, both, category, either, others

__all__ = ["regex"]

_TIMES = re.compile(r"[?*+]|\{(\d*)(,?)(\d*)\}")
_SHORT = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_CODE = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
_LINE: Ranges = ((0, 0x09), (0x0B, 0xD7FF), (0xE000, 0x10FFFF))
_CATEGORIES = frozenset("dDwWsS")


def regex(pattern: str) -> Node:
    """The tree of what stands between a regex's slashes. Raises ``Unreadable``."""
    reader = _Reader(pattern)
    node = reader.choice(dotall=False)
    if reader.at < len(pattern):
        raise Unreadable(f"{pattern!r} has no end")
    return node


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0

    @property
    def _here(self) -> str:
        return self._pattern[self.at : self.at + 1]

    def _take(self) -> str:
        char = self._here
        if not char:
            raise Unreadable(f"{self._pattern!r} breaks off")
        self.at += 1
        return char

    def choice(self, dotall: bool) -> Node:
        arms = [self._row(dotall)]
        while self._here == "|":
            self.at += 1
            arms.append(self._row(dotall))
        return arms[0] if len(arms) == 1 else Choice(tuple(arms))

    def _row(self, dotall: bool) -> Node:
        parts: list[Node] = []
        while self._here not in ("", "|", ")"):
            node = self._atom(dotall)
            if times := _TIMES.match(self._pattern, self.at):
                self.at = times.end()
                node = Times(node, *_counted(times))
            elif isinstance(node, Text) and parts and isinstance(last := parts[-1], Text):
                node = Text(last.text + node.text)
                parts.pop()
            parts.append(node)
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _atom(self, dotall: bool) -> Node:
        char = self._take()
        if char == "(":
            return self._group(dotall)
        if char == "[":
            return Chars(self._class())
        if char == ".":
            return Chars(ALL if dotall else _LINE)
        if char == "\\":
            found = self._escaped()
            return Text(chr(found)) if isinstance(found, int) else Chars(found)
        if char in "^$*+?{":
            raise Unreadable(f"{char!r} in {self._pattern!r} is not known here")
        return Text(char)

    def _group(self, dotall: bool) -> Node:
        for head, is_dotall in (("?:", dotall), ("?s:", True)):
            if self._pattern.startswith(head, self.at):
                self.at += len(head)
                dotall = is_dotall
        if self._here == "?":
            raise Unreadable(f"a group of {self._pattern!r} is not known here")
        node = self.choice(dotall)
        if self._take() != ")":
            raise Unreadable(f"{self._pattern!r} has a group without an end")
        return node

    def _escaped(self, negated: bool = False) -> int | Ranges:
        """A character, or the characters of a category: all that may be meant by it where they are
        to be kept out."""
        if code := _CODE.match(self._pattern, self.at):
            self.at = code.end()
            return int(code[1] or code[2] or code[3], 16)
        char = self._take()
        if char in _CATEGORIES:
            return others(category(char.swapcase())) if negated else category(char)
        if char.isalnum() and char not in _ESCAPED:
            raise Unreadable(f"'\\{char}' in {self._pattern!r} is not known here")
        return ord(_ESCAPED.get(char, char))

    def _class(self) -> Ranges:
        """What stands between brackets, the first of which was read."""
        begun = self.at
        negated = self._here == "^"
        self.at += negated
        found: Ranges = ()
        narrowed = ALL
        while (char := self._take()) != "]":
            if char == "&" and self._pattern.startswith("&[", self.at) and not negated:
                self.at += 2
                narrowed = both(narrowed, self._class())
            else:
                found = either(found, self._members(char, negated))
        said = self._pattern[begun : self.at]
        if any(f"\\{each}" in said and f"\\{each.upper()}" in said for each in "dws"):
            found = ALL
        found = both(found, narrowed)
        return others(found) if negated else found

    def _members(self, char: str, negated: bool) -> Ranges:
        first = self._member(char, negated)
        if not isinstance(first, int):
            return first
        last: int | Ranges = first
        if self._here == "-" and not self._pattern.startswith("-]", self.at):
            self.at += 1
            last = self._member(self._take(), negated)
        if not isinstance(last, int) or last < first:
            raise Unreadable(f"a range in {self._pattern!r} has no end")
        return ((first, last),)

    def _member(self, char: str, negated: bool) -> int | Ranges:
        if char == "[":
            raise Unreadable(f"a class in {self._pattern!r} is not known here")
        return self._escaped(negated) if char == "\\" else ord(char)


def _counted(times: re.Match[str]) -> tuple[int, int | None]:
    if times[0] in _SHORT:
        return _SHORT[times[0]]
    least = int(times[1] or 0)
    if not times[2]:
        return least, least
    return least, int(times[3]) if times[3] else None

"""The grammars of constraints as trees: llguidance's Lark, as far as constraints are written in it.

For engines whose grammars are written otherwise. What it does not know it refuses; it knows no
other notation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from .ast import Anything, Chars, Choice, Node, Row, Rule, Text, Times, Token, Unreadable, within
from .charsets import ALL
from .regexes import regex
from .schemas import SchemaTree

__all__ = ["read"]

_HEAD = re.compile(r'(?m:^)(\w+)(?:\[suffix=("(?:[^"\\]|\\.)*")\])?:')
_PIECE = re.compile(
    r"""(?:(?P<end>\Z)|(?P<text>"(?:[^"\\]|\\.)*")|/(?P<regex>(?:[^/\\]|\\.)+)/
    |<\[(?P<token>\d+)\]>|(?P<json>%json\s*)|(?P<name>\w+)
    |(?P<times>[?*+]|~\s*\d+(?:\s*\.\.\s*\d+)?|\{\s*\d*\s*,?\s*\d*\s*\})|(?P<mark>[|()\[\]&~]))""",
    re.VERBOSE,
)
_BLANK = re.compile(r"\s*")
_NUMBER = re.compile(r"\d+")
_JSON = json.JSONDecoder()

_ANY = Times(Chars(ALL), 0, None)


def read(lark: str) -> dict[str, Node]:
    """The rules of a grammar by their names; it begins with ``start``. Raises ``Unreadable``."""
    rules: dict[str, Node] = {}
    at = 0
    while at < len(lark):
        head = _HEAD.match(lark, at)
        if head is None:
            raise Unreadable("a rule is expected")
        reader = _Reader(lark, head.end(), rules)
        said = reader.choice()
        if head[2] is not None:
            end = json.loads(head[2])
            said = Row((Anything(ends=(end,)), Text(end)))
        rules[head[1]] = said
        at = reader.at
    return rules | {name: _open(rules[name]) for name in _going_on(rules)}


def _going_on(rules: Mapping[str, Node]) -> Iterator[str]:
    """Rules of texts that go on behind what ends them, unless a control token follows it."""
    for rule in rules.values():
        for row in within(rule):
            for one, other in pairwise(row.parts if isinstance(row, Row) else ()):
                if isinstance(other, Token) and isinstance(one, Times) and one.most is None:
                    if isinstance(one.node, Rule):
                        yield one.node.name


def _open(node: Node) -> Node:
    match node:
        case Row((Anything(), Text(end))):
            return Row((Anything(), Text(end)))
    return node


class _Reader:
    """Reads one rule's body from ``at`` on, up to the head of the next. Rules that come of schemas
    go into ``rules``."""

    def __init__(self, lark: str, at: int, rules: dict[str, Node]) -> None:
        self._lark = lark
        self._rules = rules
        self.at = at
        self._next()

    def _next(self) -> None:
        """Go on to the next piece; ``kind`` is empty at the end of the body."""
        self.at = _BLANK.match(self._lark, self.at).end()  # type: ignore[union-attr]
        if _HEAD.match(self._lark, self.at):
            self.kind = self.said = self.mark = ""
            return
        found = _PIECE.match(self._lark, self.at)
        if found is None:
            raise Unreadable(f"{self._lark[self.at : self.at + 20]!r} is not known here")
        kind = str(found.lastgroup)
        self.kind, self.said = ("" if kind == "end" else kind), found[kind]
        self.mark = self.said if kind == "mark" else ""
        self.at = found.end()
        if kind == "json":
            self.json, self.at = _JSON.raw_decode(self._lark, self.at)

    def choice(self, closing: str = "") -> Node:
        arms = [self._row()]
        while self.mark == "|":
            self._next()
            arms.append(self._row())
        if self.mark != closing or (self.kind and not closing):
            raise Unreadable(f"{self.said!r} is not expected")
        return arms[0] if len(arms) == 1 else Choice(tuple(arms))

    def _row(self) -> Node:
        parts: list[Node] = []
        while self.kind and self.mark not in ("|", ")", "]"):
            parts.append(self._part())
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _part(self) -> Node:
        node = self._atom()
        if self.kind == "times":
            node = _times(node, self.said)
            self._next()
        return node

    def _atom(self) -> Node:
        kind, said = self.kind, self.said
        if kind == "json":
            return self._schema()
        self._next()
        match kind, said:
            case "text", _:
                return Text(json.loads(said))
            case "regex", _:
                return self._without(regex(said))
            case "token", _:
                return Token(int(said))
            case "name", _:
                return Rule(said)
            case _, "(":
                return self._grouped(")")
            case _, "[":
                return Times(self._grouped("]"), 0, 1)
        raise Unreadable(f"{said!r} is not expected")

    def _schema(self) -> Node:
        schema, rules = self.json, self._rules
        self._next()

        def body(text: str) -> Node:
            return _Reader(text, 0, rules).choice()

        return SchemaTree(schema, f"json_{len(rules)}", rules, body).start()

    def _grouped(self, closing: str) -> Node:
        node = self.choice(closing)
        self._next()
        return node

    def _without(self, node: Node) -> Node:
        """Any text may be said to be none that another regex matches."""
        if self.mark != "&":
            return Anything() if node == _ANY else node
        self._next()
        is_not = self.mark == "~"
        self._next()
        if node != _ANY or not is_not or self.kind != "regex":
            raise Unreadable("of regexes, only any text can be narrowed")
        kept_out = regex(self.said)
        self._next()
        return _narrowed(kept_out)


def _times(node: Node, said: str) -> Node:
    short = {"?": (0, 1), "*": (0, None), "+": (1, None)}
    if said in short:
        return Times(node, *short[said])
    numbers = [int(number) for number in _NUMBER.findall(said)]
    if "," not in said:
        return Times(node, numbers[0], numbers[-1])
    before, _, behind = said.partition(",")
    least = numbers[0] if _NUMBER.search(before) else 0
    return Times(node, least, numbers[-1] if _NUMBER.search(behind) else None)


def _narrowed(kept_out: Node) -> Anything:
    """Any text but what holds one of some texts."""
    parts = kept_out.parts if isinstance(kept_out, Row) else ()
    if len(parts) > 2 and parts[0] == parts[-1] == _ANY:
        return Anything(tuple(_texts(Row(parts[1:-1]))))
    raise Unreadable("any text cannot be narrowed by that")


def _texts(node: Node) -> list[str]:
    """All texts that the node may be."""
    match node:
        case Text(text):
            return [text]
        case Choice(arms):
            return [text for arm in arms for text in _texts(arm)]
        case Row(parts):
            said = [""]
            for part in parts:
                said = [before + text for before in said for text in _texts(part)]
            return said
    raise Unreadable("that is more than some texts")

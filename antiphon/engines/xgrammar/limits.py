"""Grammars that xgrammar would not survive, or that would keep its server busy: refused before it
is asked. And those that go on behind their end."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .ast import Anything, Choice, Node, Row, Rule, Text, Times, Token, Unreadable, within

__all__ = ["MOST", "check"]

#: How often something may come, at most: its counts overflow.
MOST = 1_000_000


def check(rules: Mapping[str, Node], ends: Collection[int]) -> None:
    """``ends``: tokens that end a text. Raises ``Unreadable``."""
    for rule in rules.values():
        for node in within(rule):
            if isinstance(node, Times) and max(node.least, node.most or 0) > MOST:
                raise Unreadable("more often than can be counted")
    _Loops(rules, ends).check()
    _Ending(rules, ends).check(Rule("start"), is_last=True)


class _Loops:
    """Sees that nothing that may be empty comes again and again: in how many ways would be counted
    anew with every token."""

    def __init__(self, rules: Mapping[str, Node], ends: Collection[int]) -> None:
        self._rules = rules
        self._ends = ends
        self._empty: set[str] = set()

    def check(self) -> None:
        """Raises ``Unreadable``."""
        before = -1
        while len(self._empty) != before:
            before = len(self._empty)
            self._empty |= {name for name, node in self._rules.items() if self._may_be_empty(node)}
        for rule in self._rules.values():
            for node in within(rule):
                if isinstance(node, Times) and node.most != 1 and self._may_be_empty(node.node):
                    raise Unreadable("nothing, again and again")

    def _may_be_empty(self, node: Node) -> bool:
        match node:
            case Text(text):
                return not text
            case Token(id):
                return id in self._ends
            case Rule(name):
                return name in self._empty
            case Row(parts):
                return all(map(self._may_be_empty, parts))
            case Choice(arms):
                return any(map(self._may_be_empty, arms))
            case Times(inner, least):
                return not least or self._may_be_empty(inner)
        return isinstance(node, Anything)


class _Ending:
    """Sees that what ends a text stands nowhere else: nothing would come behind it."""

    def __init__(self, rules: Mapping[str, Node], ends: Collection[int]) -> None:
        self._rules = rules
        self._ends = ends
        self._checked: set[tuple[str, bool]] = set()

    def check(self, node: Node, *, is_last: bool) -> None:
        """Raises ``Unreadable``."""
        match node:
            case Token(id) if id in self._ends and not is_last:
                raise Unreadable("a text goes on behind what ends it")
            case Row(parts):
                for place, part in enumerate(parts, start=1):
                    self.check(part, is_last=is_last and place == len(parts))
            case Choice(arms):
                for arm in arms:
                    self.check(arm, is_last=is_last)
            case Times(inner, _, most):
                self.check(inner, is_last=is_last and most == 1)
            case Rule(name) if (name, is_last) not in self._checked:
                self._checked.add((name, is_last))
                self.check(self._rules[name], is_last=is_last)

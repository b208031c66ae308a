"""Reject three kinds of grammars: grammars that would crash xgrammar, grammars that would block the
inference server that runs xgrammar, and grammars in which something may follow an end token."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from antiphon.dialects.grammar.syntax_tree import (
    Alternatives,
    AnyText,
    Concatenation,
    LiteralText,
    Node,
    Repeat,
    RuleRef,
    TokenNode,
    UnsupportedGrammar,
    walk,
)

#: The largest repeat count. With larger counts, xgrammar's counters overflow.
MAX_COUNT = 1_000_000


def check_limits(rules: Mapping[str, Node], end_ids: Collection[int]) -> None:
    """Check the rules of a grammar. ``end_ids``: ids of the tokens that end the output.

    Raises ``UnsupportedGrammar`` if a repeat count is too large, if a repeated node may match the
    empty text, or if something may follow an end token.
    """
    for rule in rules.values():
        for node in walk(rule):
            if isinstance(node, Repeat) and max(node.minimum, node.maximum or 0) > MAX_COUNT:
                raise UnsupportedGrammar("a repeat count is too large")
    _EmptyLoopCheck(rules, end_ids).check()
    _EndTokenCheck(rules, end_ids).check(RuleRef("start"), is_last=True)


class _EmptyLoopCheck:
    """Rejects grammars with a repeated node that can match the empty text.

    For such a grammar, xgrammar would examine all derivations again at every token. This would
    block the inference server.
    """

    def __init__(self, rules: Mapping[str, Node], end_ids: Collection[int]) -> None:
        self._rules = rules
        self._end_ids = end_ids
        self._nullable: set[str] = set()

    def check(self) -> None:
        """Check all rules. Raises ``UnsupportedGrammar`` if a repeated node can match the empty
        text."""
        before = -1
        while len(self._nullable) != before:
            before = len(self._nullable)
            self._nullable |= {
                name for name, node in self._rules.items() if self._may_be_empty(node)
            }
        for rule in self._rules.values():
            for node in walk(rule):
                if isinstance(node, Repeat) and node.maximum != 1 and self._may_be_empty(node.node):
                    raise UnsupportedGrammar("a loop over a possibly empty text")

    def _may_be_empty(self, node: Node) -> bool:
        match node:
            case LiteralText(text):
                return not text
            case TokenNode(id):
                return id in self._end_ids
            case RuleRef(name):
                return name in self._nullable
            case Concatenation(parts):
                return all(map(self._may_be_empty, parts))
            case Alternatives(arms):
                return any(map(self._may_be_empty, arms))
            case Repeat(inner, least):
                return not least or self._may_be_empty(inner)
        return isinstance(node, AnyText)


class _EndTokenCheck:
    """Rejects grammars that allow more output after an end token. The generation stops at the end
    token, so the model could not write this output."""

    def __init__(self, rules: Mapping[str, Node], end_ids: Collection[int]) -> None:
        self._rules = rules
        self._end_ids = end_ids
        self._checked: set[tuple[str, bool]] = set()

    def check(self, node: Node, *, is_last: bool) -> None:
        """Check one node. Raises ``UnsupportedGrammar`` if the grammar allows more output after an
        end token.

        ``is_last``: True if nothing can follow the text of this node in the output.
        """
        match node:
            case TokenNode(id) if id in self._end_ids and not is_last:
                raise UnsupportedGrammar("an end token is not at the end")
            case Concatenation(parts):
                for number, part in enumerate(parts, start=1):
                    self.check(part, is_last=is_last and number == len(parts))
            case Alternatives(arms):
                for arm in arms:
                    self.check(arm, is_last=is_last)
            case Repeat(inner, _, most):
                self.check(inner, is_last=is_last and most == 1)
            case RuleRef(name) if (name, is_last) not in self._checked:
                self._checked.add((name, is_last))
                self.check(self._rules[name], is_last=is_last)

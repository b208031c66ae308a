"""What a constraint is to xgrammar: its EBNF. For servers whose grammars it enforces, as SGLang's
and vLLM's do by default.

To xgrammar control tokens are the text that they are called, and any text may go on over what ends
it: so both are kept out of all that may be any text. Where a user's grammar or pattern spells out
characters, control tokens may stand for them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from .ast import (
    AnyText,
    CharSet,
    Choice,
    Concatenation,
    Node,
    Repeat,
    RuleRef,
    Text,
    Token,
    UnsupportedGrammar,
    walk,
)
from .charsets import ALL, Ranges
from .lark import parse_lark
from .limits import check_limits

__all__ = ["to_ebnf"]

_NUMBERED = re.compile(r"(\W+\w*[A-Za-z]_?)\d+\W*\Z")
_MAX_NUMBERED = 4
#: Characters of a grammar, at most.
_MAX_CHARACTERS = 1_000_000
_REPEAT_MARKS = {(0, 1): "?", (0, None): "*", (1, None): "+"}


def to_ebnf(lark: str, literals: Mapping[int, str], end_ids: Collection[int]) -> str | None:
    """A grammar in llguidance's Lark as one of xgrammar's; None where it cannot be said.
    ``literals``: control token → what it is called; ``ends``: those that end a text."""
    try:
        rules = parse_lark(lark)
        check_limits(rules, end_ids)
        written = _Writer(rules, end_ids, _excluded_texts(rules, literals.values())).write(
            RuleRef("start")
        )
    except (UnsupportedGrammar, RecursionError):
        return None
    return written if len(written) <= _MAX_CHARACTERS else None


def _excluded_texts(rules: Mapping[str, Node], literals: Iterable[str]) -> list[str]:
    """What no text may have in it: control tokens, and what ends a text anywhere. Of control tokens
    that are numbered, there may be thousands, what stands before the number."""
    nodes = [node for rule in rules.values() for node in walk(rule)]
    texts = [text for node in nodes if isinstance(node, AnyText) for text in node.terminators]
    stems = Counter(map(_stem, literals))
    short = (stem if stems[stem := _stem(each)] > _MAX_NUMBERED else each for each in literals)
    return [*dict.fromkeys([*short, *texts])]


def _stem(literal: str) -> str:
    found = _NUMBERED.match(literal)
    return literal if found is None else found[1]


class _Writer:
    def __init__(
        self, rules: Mapping[str, Node], end_ids: Collection[int], excluded: Sequence[str]
    ) -> None:
        self._rules = rules
        self._end_ids = end_ids
        self._excluded = excluded
        self._text_rules: dict[tuple[str, ...], str] = {}
        self._bodies: dict[str, str] = {}

    def write(self, start: Node) -> str:
        root = self._choice(start)
        return "\n".join([f"root ::= {root}", *(f"{n} ::= {b}" for n, b in self._bodies.items())])

    def _choice(self, node: Node) -> str:
        match node:
            case Choice(arms):
                return " | ".join(self._concatenation(arm) for arm in arms)
        return self._concatenation(node)

    def _concatenation(self, node: Node) -> str:
        match node:
            case Concatenation(parts):
                return " ".join(self._term(part) for part in parts) or '""'
        return self._term(node)

    def _term(self, node: Node) -> str:
        match node:
            case Text(text):
                return _quote(text)
            case CharSet(ranges):
                return _char_class(ranges)
            case Token(id):
                # what may end does so by one of these anyway; as a token, none would come
                return '""' if id in self._end_ids else f"Token({id})"
            case AnyText(without):
                return self._any_text(without)
            case RuleRef(name):
                return self._rule(name)
            case Repeat(inner, least, most):
                many = f"{{{least},{'' if most is None else most}}}"
                return f"({self._choice(inner)}){_REPEAT_MARKS.get((least, most), many)}"
        return f"({self._choice(node)})"

    def _rule(self, name: str) -> str:
        rule_name = f"r_{name}"
        if rule_name not in self._bodies:
            self._bodies[rule_name] = ""  # it may stand in itself
            self._bodies[rule_name] = self._choice(self._rules[name])
        return rule_name

    def _any_text(self, excluded: tuple[str, ...]) -> str:
        if excluded not in self._text_rules:
            name = self._text_rules[excluded] = f"text_{len(self._text_rules)}"
            texts = ", ".join(map(_quote, dict.fromkeys((*self._excluded, *excluded))))
            excludes = f", excludes=({texts},)" if texts else ""
            self._bodies[name] = f"TagDispatch(loop_after_dispatch=false{excludes})"
        return self._text_rules[excluded]


def _quote(text: str) -> str:
    said = (char if " " <= char <= "~" and char not in '"\\' else _char(ord(char)) for char in text)
    return f'"{"".join(said)}"'


def _char_class(ranges: Ranges) -> str:
    if ranges == ALL:
        return "[^]"
    said = (_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in ranges)
    return f"[{''.join(said)}]"


def _char(code: int) -> str:
    """As it may stand in a text or a class."""
    if code < 128 and chr(code).isalnum():
        return chr(code)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"

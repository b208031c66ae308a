"""Convert constraints to xgrammar's EBNF, for servers that use xgrammar: SGLang and vLLM by
default.

xgrammar treats control tokens as their literal text, and any text may continue past its terminator.
So both are excluded from every "any text" node. Where a user's grammar or pattern spells out the
characters, control tokens may still match them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from .ast import (
    Alternatives,
    AnyText,
    CharSet,
    Concatenation,
    LiteralText,
    Node,
    Repeat,
    RuleRef,
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
#: The longest grammar, in characters.
_MAX_CHARACTERS = 1_000_000
_REPEAT_MARKS = {(0, 1): "?", (0, None): "*", (1, None): "+"}


def to_ebnf(lark: str, literals: Mapping[int, str], end_ids: Collection[int]) -> str | None:
    """Convert a grammar in llguidance's Lark; None if it cannot be expressed.

    ``literals``: control token → its text. ``end_ids``: tokens that end a text.
    """
    try:
        rules = parse_lark(lark)
        check_limits(rules, end_ids)
        excluded = _excluded_texts(rules, literals.values())
        ebnf = _Writer(rules, end_ids, excluded).write(RuleRef("start"))
    except (UnsupportedGrammar, RecursionError):
        return None
    return ebnf if len(ebnf) <= _MAX_CHARACTERS else None


def _excluded_texts(rules: Mapping[str, Node], literals: Iterable[str]) -> list[str]:
    """Return the texts excluded from any text: control tokens, and all terminators.

    Numbered control tokens can be thousands; for these only the text before the number is returned.
    """
    nodes = [node for rule in rules.values() for node in walk(rule)]
    texts = [text for node in nodes if isinstance(node, AnyText) for text in node.terminators]
    stems = Counter(map(_stem, literals))
    short = (stem if stems[stem := _stem(each)] > _MAX_NUMBERED else each for each in literals)
    return [*dict.fromkeys([*short, *texts])]


def _stem(literal: str) -> str:
    match = _NUMBERED.match(literal)
    return literal if match is None else match[1]


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
            case Alternatives(arms):
                return " | ".join(self._concatenation(arm) for arm in arms)
        return self._concatenation(node)

    def _concatenation(self, node: Node) -> str:
        match node:
            case Concatenation(parts):
                return " ".join(self._term(part) for part in parts) or '""'
        return self._term(node)

    def _term(self, node: Node) -> str:
        match node:
            case LiteralText(text):
                return _quote(text)
            case CharSet(ranges):
                return _char_class(ranges)
            case Token(id):
                # A complete grammar allows the end tokens anyway; a Token(...) of one never
                # matches.
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
            self._bodies[rule_name] = ""  # the rule may be recursive
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
    chars = (
        char if " " <= char <= "~" and char not in '"\\' else _char(ord(char)) for char in text
    )
    return f'"{"".join(chars)}"'


def _char_class(ranges: Ranges) -> str:
    if ranges == ALL:
        return "[^]"
    members = (_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in ranges)
    return f"[{''.join(members)}]"


def _char(code: int) -> str:
    """Escape a character for a string or a character class."""
    if code < 128 and chr(code).isalnum():
        return chr(code)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"

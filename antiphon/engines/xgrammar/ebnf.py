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

from .ast import Anything, Chars, Choice, Node, Row, Rule, Text, Times, Token, Unreadable, within
from .charsets import ALL, Ranges
from .lark import read
from .limits import check

__all__ = ["ebnf"]

_NUMBERED = re.compile(r"(\W+\w*[A-Za-z]_?)\d+\W*\Z")
_FEW = 4
#: Characters of a grammar, at most.
_LONGEST = 1_000_000
_MARKS = {(0, 1): "?", (0, None): "*", (1, None): "+"}


def ebnf(lark: str, literals: Mapping[int, str], ends: Collection[int]) -> str | None:
    """A grammar in llguidance's Lark as one of xgrammar's; None where it cannot be said.
    ``literals``: control token → what it is called; ``ends``: those that end a text."""
    try:
        rules = read(lark)
        check(rules, ends)
        written = _Writer(rules, ends, _kept_out(rules, literals.values())).written(Rule("start"))
    except (Unreadable, RecursionError):
        return None
    return written if len(written) <= _LONGEST else None


def _kept_out(rules: Mapping[str, Node], literals: Iterable[str]) -> list[str]:
    """What no text may have in it: control tokens, and what ends a text anywhere. Of control tokens
    that are numbered, there may be thousands, what stands before the number."""
    nodes = [node for rule in rules.values() for node in within(rule)]
    texts = [text for node in nodes if isinstance(node, Anything) for text in node.ends]
    stems = Counter(map(_stem, literals))
    short = (stem if stems[stem := _stem(each)] > _FEW else each for each in literals)
    return [*dict.fromkeys([*short, *texts])]


def _stem(literal: str) -> str:
    found = _NUMBERED.match(literal)
    return literal if found is None else found[1]


class _Writer:
    def __init__(
        self, rules: Mapping[str, Node], ends: Collection[int], kept_out: Sequence[str]
    ) -> None:
        self._rules = rules
        self._ends = ends
        self._kept_out = kept_out
        self._texts: dict[tuple[str, ...], str] = {}
        self._written: dict[str, str] = {}

    def written(self, start: Node) -> str:
        root = self._choice(start)
        return "\n".join([f"root ::= {root}", *(f"{n} ::= {b}" for n, b in self._written.items())])

    def _choice(self, node: Node) -> str:
        match node:
            case Choice(arms):
                return " | ".join(self._row(arm) for arm in arms)
        return self._row(node)

    def _row(self, node: Node) -> str:
        match node:
            case Row(parts):
                return " ".join(self._one(part) for part in parts) or '""'
        return self._one(node)

    def _one(self, node: Node) -> str:
        match node:
            case Text(text):
                return _quoted(text)
            case Chars(ranges):
                return _class(ranges)
            case Token(id):
                # what may end does so by one of these anyway; as a token, none would come
                return '""' if id in self._ends else f"Token({id})"
            case Anything(without):
                return self._any_text(without)
            case Rule(name):
                return self._named(name)
            case Times(inner, least, most):
                many = f"{{{least},{'' if most is None else most}}}"
                return f"({self._choice(inner)}){_MARKS.get((least, most), many)}"
        return f"({self._choice(node)})"

    def _named(self, name: str) -> str:
        called = f"r_{name}"
        if called not in self._written:
            self._written[called] = ""  # it may stand in itself
            self._written[called] = self._choice(self._rules[name])
        return called

    def _any_text(self, without: tuple[str, ...]) -> str:
        if without not in self._texts:
            name = self._texts[without] = f"text_{len(self._texts)}"
            texts = ", ".join(map(_quoted, dict.fromkeys((*self._kept_out, *without))))
            excludes = f", excludes=({texts},)" if texts else ""
            self._written[name] = f"TagDispatch(loop_after_dispatch=false{excludes})"
        return self._texts[without]


def _quoted(text: str) -> str:
    said = (char if " " <= char <= "~" and char not in '"\\' else _char(ord(char)) for char in text)
    return f'"{"".join(said)}"'


def _class(ranges: Ranges) -> str:
    if ranges == ALL:
        return "[^]"
    said = (_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in ranges)
    return f"[{''.join(said)}]"


def _char(code: int) -> str:
    """As it may stand in a text or a class."""
    if code < 128 and chr(code).isalnum():
        return chr(code)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"

"""Convert constraints to xgrammar's EBNF, for engines that use xgrammar: SGLang and vLLM by
default, and OpenVINO.

xgrammar treats control tokens as their literal text, and any text may continue past its terminator.
So every "any text" node excludes control tokens and terminators. Where a user's grammar or pattern
spells out the characters of a control token, the token may still match them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial

from antiphon.tokens import Tokenizer

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

__all__ = ["EbnfConverter", "to_ebnf"]

_NUMBERED = re.compile(r"(\W+\w*[A-Za-z]_?)\d+\W*\Z")
_MAX_NUMBERED = 4
#: The longest grammar, in characters.
_MAX_CHARACTERS = 1_000_000
_REPEAT_MARKS = {(0, 1): "?", (0, None): "*", (1, None): "+"}


class EbnfConverter:
    """Converts the constraints of one model, and caches the latest grammars.

    ``has_token_rules`` is passed to ``to_ebnf``.
    """

    def __init__(self, tokenizer: Tokenizer, *, has_token_rules: bool = True) -> None:
        self._end_ids = tokenizer.end_ids
        literals = {id: literal for literal, id in tokenizer.special.items()}
        self._convert = lru_cache(maxsize=256)(
            partial(to_ebnf, literals=literals, has_token_rules=has_token_rules)
        )

    def accepts(self, lark: str) -> bool:
        """Return whether the grammar can be expressed."""
        return self._convert(lark, end_ids=self._end_ids) is not None

    def convert(self, lark: str, stop_ids: Collection[int] = ()) -> str | None:
        """Return the grammar of a request in xgrammar's EBNF, or None if xgrammar cannot express
        it. ``stop_ids``: tokens that end the request's text, in addition to the model's end tokens.
        """
        return self._convert(lark, end_ids=self._end_ids | frozenset(stop_ids))


def to_ebnf(
    lark: str,
    literals: Mapping[int, str],
    end_ids: Collection[int],
    *,
    has_token_rules: bool = True,
) -> str | None:
    """Convert a grammar in llguidance's Lark to EBNF. Returns None if xgrammar cannot express the
    grammar.

    ``literals``: control token → its text. ``end_ids``: tokens that end a text.
    ``has_token_rules``: whether this xgrammar release has ``Token(id)`` and accepts a comma after
    the last text of a list. Older releases, such as the release in OpenVINO GenAI 2026.4, match a
    control token by its text.
    """
    try:
        rules = parse_lark(lark)
        check_limits(rules, end_ids)
        excluded = _excluded_texts(rules, literals.values())
        written = literals if not has_token_rules else None
        ebnf = _Writer(rules, end_ids, excluded, written).write(RuleRef("start"))
    except (UnsupportedGrammar, RecursionError):
        return None
    return ebnf if len(ebnf) <= _MAX_CHARACTERS else None


def _excluded_texts(rules: Mapping[str, Node], literals: Iterable[str]) -> list[str]:
    """Return the texts that no "any text" node may contain: the texts of control tokens, and all
    terminators.

    A model can have thousands of numbered control tokens. For these tokens, only the text before
    the number is returned.
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
    """Writes the rules as EBNF. ``literals``: control token → its text; None if xgrammar has rules
    for tokens."""

    def __init__(
        self,
        rules: Mapping[str, Node],
        end_ids: Collection[int],
        excluded: Sequence[str],
        literals: Mapping[int, str] | None,
    ) -> None:
        self._rules = rules
        self._literals = literals
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
                return '""' if id in self._end_ids else self._token(id)
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

    def _token(self, id: int) -> str:
        if self._literals is None:
            return f"Token({id})"
        if id not in self._literals:
            raise UnsupportedGrammar("a token has no text")
        return _quote(self._literals[id])

    def _any_text(self, excluded: tuple[str, ...]) -> str:
        if excluded not in self._text_rules:
            name = self._text_rules[excluded] = f"text_{len(self._text_rules)}"
            texts = ", ".join(map(_quote, self._excludable((*self._excluded, *excluded))))
            last = "," if self._literals is None else ""
            excludes = f", excludes=({texts}{last})" if texts else ""
            self._bodies[name] = f"TagDispatch(loop_after_dispatch=false{excludes})"
        return self._text_rules[excluded]

    def _excludable(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield each text once.

        Older releases of xgrammar end a text at its first NUL and refuse an empty text. For these
        releases, NUL alone is skipped: text may contain NUL, but no model writes it. Raises
        ``UnsupportedGrammar`` for a longer text with NUL.
        """
        for text in dict.fromkeys(texts):
            if self._literals is None or "\0" not in text:
                yield text
            elif text != "\0":
                raise UnsupportedGrammar("a text to exclude contains NUL")


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

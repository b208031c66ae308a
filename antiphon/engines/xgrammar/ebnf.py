"""Convert constraints to xgrammar's EBNF. OpenVINO uses xgrammar, and SGLang and vLLM use it by
default.

xgrammar matches a control token by its text, and "any text" could continue past the text that
should end it (the terminator). So every "any text" node excludes the texts of control tokens and
the terminators. If a user's grammar or pattern contains the characters of a control token, the
control token may still match there.
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
    TokenNode,
    UnsupportedGrammar,
    walk,
)
from .charsets import ALL_CHARACTERS, Ranges
from .lark import parse_lark
from .limits import check_limits

__all__ = ["EbnfConverter", "to_ebnf"]

_NUMBERED = re.compile(r"(\W+\w*[A-Za-z]_?)\d+\W*\Z")
_MAX_NUMBERED = 4
#: The maximum length of a converted grammar, in characters.
_MAX_CHARACTERS = 1_000_000
_REPEAT_MARKS = {(0, 1): "?", (0, None): "*", (1, None): "+"}


class EbnfConverter:
    """Converts the constraints of one model to EBNF, and caches the latest results.

    ``has_token_rules``: see ``to_ebnf``.
    """

    def __init__(self, tokenizer: Tokenizer, *, has_token_rules: bool = True) -> None:
        self._end_ids = tokenizer.end_ids
        literals = {id: literal for literal, id in tokenizer.special.items()}
        self._convert = lru_cache(maxsize=256)(
            partial(to_ebnf, literals=literals, has_token_rules=has_token_rules)
        )

    def accepts(self, lark: str) -> bool:
        """Return whether the Lark grammar can be converted to xgrammar's EBNF."""
        return self._convert(lark, end_ids=self._end_ids) is not None

    def convert(self, lark: str, stop_ids: Collection[int] = ()) -> str | None:
        """Return the grammar of a request in xgrammar's EBNF, or None if the grammar cannot be
        converted. ``stop_ids``: ids that end the output of this request, in addition to the model's
        end ids."""
        return self._convert(lark, end_ids=self._end_ids | frozenset(stop_ids))


def to_ebnf(
    lark: str,
    literals: Mapping[int, str],
    end_ids: Collection[int],
    *,
    has_token_rules: bool = True,
) -> str | None:
    """Convert a grammar in llguidance's Lark to xgrammar's EBNF. Return None if the grammar cannot
    be converted.

    ``literals``: id of a control token → its text. ``end_ids``: ids of the tokens that end the
    output. ``has_token_rules``: whether the engine's xgrammar release has the rule ``Token(id)``
    and accepts a comma after the last text of a list. Older releases, such as the release in
    OpenVINO GenAI 2026.4, match a control token by its text.
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

    A model can have thousands of numbered control tokens, such as ``<unused_17>``. For these
    tokens, only the text before the number is returned, once.
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
    """Writes the rules of one grammar as EBNF.

    ``excluded``: the texts that no "any text" node may contain. ``literals``: id of a control token
    → its text; None if the xgrammar release has the rule ``Token(id)``.
    """

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
            case TokenNode(id):
                # xgrammar allows the end tokens anyway where the grammar is complete, and
                # Token(...) never matches an end token.
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
        """Yield, once each, the texts that xgrammar can exclude.

        Older releases of xgrammar end a text at its first NUL character and refuse an empty text.
        For these releases, the text that is only NUL is skipped. So the output may contain NUL, but
        no model writes NUL. Raises ``UnsupportedGrammar`` for a longer text that contains NUL.
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
    if ranges == ALL_CHARACTERS:
        return "[^]"
    members = (_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in ranges)
    return f"[{''.join(members)}]"


def _char(code: int) -> str:
    """Return a character as it is written in a string or a character class of EBNF."""
    if code < 128 and chr(code).isalnum():
        return chr(code)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"

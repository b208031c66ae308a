"""Convert constraints to xgrammar's EBNF. OpenVINO uses xgrammar, and SGLang and vLLM use it by
default.

xgrammar treats a control token as its text, such as ``<|end|>``. So an ``AnyText`` node, which
matches any text, would also match control tokens. It would also match its own terminator, which is
the text that should end it. Therefore, every ``AnyText`` node excludes the texts of all control
tokens and all terminators.

One gap remains. Where a user's grammar or regex matches the text of a control token, the model may
write the control token itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial

from antiphon.dialects.grammar.charsets import ALL_CHARACTERS, Ranges
from antiphon.dialects.grammar.syntax_tree import (
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
    repeat_sign,
    walk,
)
from antiphon.inference.tokens import Tokenizer

from .lark import parse_lark
from .limits import check_limits

_NUMBERED = re.compile(r"(\W+\w*[A-Za-z]_?)\d+\W*\Z")
_MAX_NUMBERED = 4
#: The maximum length of a converted grammar, in characters.
_MAX_CHARACTERS = 1_000_000


class EbnfConverter:
    """Converts the constraints of one model to EBNF, and caches the latest results.

    ``has_token_rules``: whether the engine's xgrammar release has the rule ``Token(id)``; see
    ``to_ebnf``.
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
        """Convert a request's grammar to xgrammar's EBNF. Return None if the grammar cannot be
        converted.

        ``lark``: the grammar, in llguidance's Lark. ``stop_ids``: ids that end the output of this
        request, in addition to the model's end ids.
        """
        return self._convert(lark, end_ids=self._end_ids | frozenset(stop_ids))


def to_ebnf(
    lark: str,
    literals: Mapping[int, str],
    end_ids: Collection[int],
    *,
    has_token_rules: bool = True,
) -> str | None:
    """Convert a grammar to xgrammar's EBNF. Return None if the grammar cannot be converted.

    ``lark``: the grammar, in llguidance's Lark. ``literals``: the control tokens, as a mapping from
    token id to text. ``end_ids``: ids of the tokens that end the output.

    ``has_token_rules``: whether the engine's xgrammar release has the rule ``Token(id)``, which
    matches a control token by its id. Old releases, such as the release in OpenVINO GenAI 2026.4,
    do not have this rule. For them, a control token is written as its text.
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
    """Return the texts that no ``AnyText`` node may match: the texts of control tokens, and the
    terminators of all ``AnyText`` nodes.

    ``rules``: the rules of the grammar. ``literals``: the texts of the control tokens. A model can
    have thousands of numbered control tokens, such as ``<unused_17>``. These tokens share one entry
    of the result: the text before the number.
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

    ``excluded``: the texts that no ``AnyText`` node may match. ``literals``: the control tokens, as
    a mapping from token id to text; None if the xgrammar release has the rule ``Token(id)``.
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
                return f"({self._choice(inner)}){repeat_sign(least, most)}"
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
        """Yield those of ``texts`` that the grammar can exclude from free text, each text once.

        Old releases of xgrammar cut a text at its first NUL character and refuse an empty text. For
        these releases, there are two special cases:

        - The text of one NUL character is skipped. The output may then contain NUL, but no model
          writes NUL.
        - Any other text with NUL raises ``UnsupportedGrammar``.
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

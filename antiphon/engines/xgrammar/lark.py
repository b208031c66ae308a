"""Parse grammars in llguidance's dialect of Lark into syntax trees. The trees are then converted to
grammars for xgrammar, which has another grammar language.

Only the part of the dialect that Antiphon's constraints use is supported. Other syntax raises
``UnsupportedGrammar``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from antiphon.dialects.grammar.charsets import ALL_CHARACTERS
from antiphon.dialects.grammar.syntax_tree import (
    REPEAT_SIGNS,
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

from .regexes import parse_regex
from .schemas import SchemaTree

_RULE_HEAD = re.compile(r'(?m:^)(\w+)(?:\[suffix=("(?:[^"\\]|\\.)*")\])?:')
_LEXEME = re.compile(
    r"""(?:(?P<end>\Z)|(?P<text>"(?:[^"\\]|\\.)*")|/(?P<regex>(?:[^/\\]|\\.)+)/
    |<\[(?P<token>\d+)\]>|(?P<json>%json\s*)|(?P<name>\w+)
    |(?P<times>[?*+]|~\s*\d+(?:\s*\.\.\s*\d+)?|\{\s*(?:\d+\s*)?(?:,\s*(?:\d+\s*)?)?\})
    |(?P<mark>[|()\[\]&~]))""",
    re.VERBOSE,
)
_BLANK = re.compile(r"\s*")
_NUMBER = re.compile(r"\d+")
_JSON = json.JSONDecoder()

_ANY = Repeat(CharSet(ALL_CHARACTERS), 0, None)


def parse_lark(lark: str) -> dict[str, Node]:
    """Return the rules of a grammar by name. The rule ``start`` is the root. Raises
    ``UnsupportedGrammar`` if the grammar has syntax that is not supported."""
    rules: dict[str, Node] = {}
    at = 0
    while at < len(lark):
        head = _RULE_HEAD.match(lark, at)
        if head is None:
            raise UnsupportedGrammar("a rule is expected")
        reader = _RuleParser(lark, head.end(), rules)
        body = reader.choice()
        if head[2] is not None:
            end = json.loads(head[2])
            body = Concatenation((AnyText(terminators=(end,)), LiteralText(end)))
        rules[head[1]] = body
        at = reader.position
    return rules | {name: _without_terminators(rules[name]) for name in _rules_before_token(rules)}


def _rules_before_token(rules: Mapping[str, Node]) -> Iterator[str]:
    """Yield the names of the rules that are repeated without limit directly before a control token,
    such as the rule ``line`` in ``line* <token>``.

    A rule with a suffix matches a text that does not contain the suffix, and then the suffix. This
    text is an ``AnyText`` node with the suffix as its terminator. No ``AnyText`` node of the whole
    grammar can match a text that contains a terminator of any node (see ``ebnf``).

    The rules that this function yields need no terminator: ``line*`` matches the same outputs if
    the text of one ``line`` may contain the suffix. So ``parse_lark`` removes the suffix from
    ``terminators`` of these rules. Other ``AnyText`` nodes can then match texts with the suffix.
    """
    for rule in rules.values():
        for row in walk(rule):
            for one, other in pairwise(row.parts if isinstance(row, Concatenation) else ()):
                if isinstance(other, TokenNode) and isinstance(one, Repeat) and one.maximum is None:
                    if isinstance(one.node, RuleRef):
                        yield one.node.name


def _without_terminators(node: Node) -> Node:
    match node:
        case Concatenation((AnyText(), LiteralText(end))):
            return Concatenation((AnyText(), LiteralText(end)))
    return node


class _RuleParser:
    """Parses the body of one rule.

    ``lark``: the whole grammar. ``at``: the index where the body starts. The body ends before the
    name of the next rule. ``rules``: the rules of the whole grammar, by name. The parser adds the
    rules that it builds from JSON schemas.
    """

    def __init__(self, lark: str, at: int, rules: dict[str, Node]) -> None:
        self._lark = lark
        self._rules = rules
        self.position = at
        self._advance()

    def _advance(self) -> None:
        """Read the next lexical token of the body into ``kind``, ``value`` and ``mark``.

        ``mark`` is the token itself if the token is one of the characters ``|()[]&~``. For other
        tokens, ``mark`` is empty. At the end of the body, all three attributes are empty.
        """
        self.position = _BLANK.match(self._lark, self.position).end()  # type: ignore[union-attr]
        if _RULE_HEAD.match(self._lark, self.position):
            self.kind = self.value = self.mark = ""
            return
        match = _LEXEME.match(self._lark, self.position)
        if match is None:
            raise UnsupportedGrammar(
                f"{self._lark[self.position : self.position + 20]!r} is not supported"
            )
        kind = str(match.lastgroup)
        self.kind, self.value = ("" if kind == "end" else kind), match[kind]
        self.mark = self.value if kind == "mark" else ""
        self.position = match.end()
        if kind == "json":
            self.json, self.position = _JSON.raw_decode(self._lark, self.position)

    def choice(self, closing: str = "") -> Node:
        arms = [self._concatenation()]
        while self.mark == "|":
            self._advance()
            arms.append(self._concatenation())
        if self.mark != closing or (self.kind and not closing):
            raise UnsupportedGrammar(f"{self.value!r} is not expected")
        return arms[0] if len(arms) == 1 else Alternatives(tuple(arms))

    def _concatenation(self) -> Node:
        parts: list[Node] = []
        while self.kind and self.mark not in ("|", ")", "]"):
            parts.append(self._repeated())
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _repeated(self) -> Node:
        node = self._atom()
        if self.kind == "times":
            node = _repeat(node, self.value)
            self._advance()
        return node

    def _atom(self) -> Node:
        kind, value = self.kind, self.value
        if kind == "json":
            return self._schema()
        self._advance()
        match kind, value:
            case "text", _:
                return LiteralText(json.loads(value))
            case "regex", _:
                return self._exclusion(parse_regex(value))
            case "token", _:
                return TokenNode(int(value))
            case "name", _:
                return RuleRef(value)
            case _, "(":
                return self._group(")")
            case _, "[":
                return Repeat(self._group("]"), 0, 1)
        raise UnsupportedGrammar(f"{value!r} is not expected")

    def _schema(self) -> Node:
        schema, rules = self.json, self._rules
        self._advance()

        def body(text: str) -> Node:
            return _RuleParser(text, 0, rules).choice()

        return SchemaTree(schema, f"json_{len(rules)}", rules, body).start()

    def _group(self, closing: str) -> Node:
        node = self.choice(closing)
        self._advance()
        return node

    def _exclusion(self, node: Node) -> Node:
        """Parse the exclusion ``& ~/regex/`` if it follows a regex. ``node``: the parsed regex
        before it.

        - Without an exclusion, returns ``node``. If ``node`` is the regex for any text, returns
          ``AnyText`` instead.
        - With an exclusion, returns a node for any text that the excluded regex does not match.
          Raises ``UnsupportedGrammar`` if ``node`` is not the regex for any text.
        """
        if self.mark != "&":
            return AnyText() if node == _ANY else node
        self._advance()
        is_not = self.mark == "~"
        self._advance()
        if node != _ANY or not is_not or self.kind != "regex":
            raise UnsupportedGrammar("exclusions are supported only after a regex for any text")
        excluded = parse_regex(self.value)
        self._advance()
        return _text_excluding(excluded)


def _repeat(node: Node, operator: str) -> Node:
    if operator in REPEAT_SIGNS:
        return Repeat(node, *REPEAT_SIGNS[operator])
    numbers = [int(number) for number in _NUMBER.findall(operator)]
    if "," not in operator:
        return Repeat(node, numbers[0], numbers[-1])
    before, _, after = operator.partition(",")
    least = numbers[0] if _NUMBER.search(before) else 0
    return Repeat(node, least, numbers[-1] if _NUMBER.search(after) else None)


def _text_excluding(excluded: Node) -> AnyText:
    """Return a node for any text that does not match ``excluded``.

    ``excluded``: a parsed regex of three parts: any text, one of several fixed texts, and any text
    again. Raises ``UnsupportedGrammar`` for every other regex.
    """
    parts = excluded.parts if isinstance(excluded, Concatenation) else ()
    if len(parts) > 2 and parts[0] == parts[-1] == _ANY:
        return AnyText(tuple(_texts(Concatenation(parts[1:-1]))))
    raise UnsupportedGrammar("the excluded regex must allow any text before and after its texts")


def _texts(node: Node) -> list[str]:
    """Return all texts that the node matches. Raises ``UnsupportedGrammar`` if the node contains
    nodes other than texts, concatenations and alternatives."""
    match node:
        case LiteralText(text):
            return [text]
        case Alternatives(arms):
            return [text for arm in arms for text in _texts(arm)]
        case Concatenation(parts):
            texts = [""]
            for part in parts:
                texts = [before + text for before in texts for text in _texts(part)]
            return texts
    raise UnsupportedGrammar("the excluded regex is not a list of texts")

"""Convert a user's EBNF grammar to llguidance's Lark. The grammar is in the syntax of xgrammar or
of llama.cpp (GBNF).

EBNF describes single characters, but llguidance first splits a text into lexemes, each as long as
possible. So each expression that is not recursive becomes one lexeme. Otherwise, the lexeme for one
part of the expression could take characters that belong to another part. Fewer lexemes also make
the computation of masks faster.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from .charsets import ALL_CHARACTERS, Ranges, complement, union
from .syntax_tree import (
    REPEAT_SIGNS,
    Alternatives,
    CharSet,
    Concatenation,
    LiteralText,
    Node,
    Repeat,
    RuleRef,
    repeat_sign,
    walk,
)
from .user_regex import LONGEST, UnwritableGrammar, class_member

#: Maximum length of a grammar in characters, maximum nesting of parentheses, and maximum number of
#: repetition signs (such as ``*``) after one part.
_MAX_LENGTH, _MAX_DEPTH, _MAX_MARKS = 200_000, 32, 3
#: Maximum length of the regex of a lexeme. A longer expression becomes a rule.
_MAX_REGEX = 4_000
#: Maximum length of several parts that are joined to one lexeme. Parentheses are added to it.
_MAX_GROUP = _MAX_REGEX - 10
_TOKEN = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)
    |(?P<text>"(?:\\.|[^"\\\n])*(?P<text_end>")?)
    |(?P<chars>\[(?:\\.|[^\]\\\n])*(?P<chars_end>\])?)
    |(?P<macro>(?:Tag|Token|TokenTag|Exclude)\w*\()
    |(?P<head>[A-Za-z_](?:[\w-]|\.(?=\w))*)\s*::=
    |(?P<name>[A-Za-z_](?:[\w-]|\.(?=\w))*)
    |(?P<times>\{\s*+(?P<low>\d{1,9})\s*+(?P<comma>,)?\s*+(?P<high>\d{1,9})?\s*+\})
    |(?P<lookahead>\(=)
    |(?P<mark>[|()*+?.])
    |(?P<unknown>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_ESCAPE = re.compile(
    r"\\(?:x(?P<two>[0-9A-Fa-f]{2})|u(?P<four>[0-9A-Fa-f]{4})|U(?P<eight>[0-9A-Fa-f]{8})|(?P<one>.))"
    r"|(?P<plain>[^\\])",
    re.DOTALL,
)
_NAMED: Mapping[str, str] = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}


class _NotRegular(Exception):
    """The expression cannot be written as a single regex, because it is recursive or too long."""


def ebnf_rules(definition: str, prefix: str) -> tuple[str, str]:
    """Convert a user's EBNF grammar. Returns its rules in Lark, and the name of its start rule.

    The names of all rules start with ``prefix``. Raises ``UnwritableGrammar`` if the grammar is
    invalid or cannot be converted.
    """
    if len(definition) > _MAX_LENGTH:
        raise UnwritableGrammar(f"it is too long: at most {_MAX_LENGTH} characters are allowed")
    return _Writer(_Parser(definition).rules(), prefix).write()


# --- parsing -------------------------------------------------------------------------------------


class _Parser:
    """Parses an EBNF grammar to a tree for each rule."""

    def __init__(self, definition: str) -> None:
        self._tokens = list(_tokens(definition))
        self._at = 0

    def rules(self) -> dict[str, Node]:
        """Return a mapping: rule name → the tree of its body. Raises ``UnwritableGrammar`` if the
        grammar is invalid."""
        rules: dict[str, Node] = {}
        while (token := self._token()) is not None:
            name = token["head"]
            if name is None:
                raise UnwritableGrammar(
                    f"'{token.group()[:40]}' is not expected; rules are 'name ::= …'"
                )
            if name in rules:
                raise UnwritableGrammar(f"rule '{name}' is defined twice")
            self._at += 1
            rules[name] = self._choice(0)
        return rules

    def _token(self) -> re.Match[str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _mark(self) -> str | None:
        token = self._token()
        return None if token is None else token["mark"]

    def _choice(self, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise UnwritableGrammar(
                f"it is nested too deeply: at most {_MAX_DEPTH} levels are allowed"
            )
        arms = [self._sequence(depth)]
        while self._mark() == "|":
            self._at += 1
            arms.append(self._sequence(depth))
        return arms[0] if len(arms) == 1 else Alternatives(tuple(arms))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while (node := self._primary(depth)) is not None:
            parts.append(self._repeated(node))
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _primary(self, depth: int) -> Node | None:
        """Return the next part of a sequence, or None at the end of the sequence. ``depth``: the
        number of parentheses around the sequence."""
        token = self._token()
        if token is None or token["head"] is not None or token["mark"] in ("|", ")"):
            return None
        self._at += 1
        if token["mark"] == "(":
            inner = self._choice(depth + 1)
            if self._mark() != ")":
                raise UnwritableGrammar("a parenthesis is not closed")
            self._at += 1
            return inner
        if token["mark"] == ".":
            return CharSet(ALL_CHARACTERS)
        if token["text"] is not None:
            return LiteralText("".join(map(chr, _codes(token.group()[1:-1]))))
        if token["chars"] is not None:
            return CharSet(_character_class(token.group()[1:-1]))
        if token["name"] is not None:
            return RuleRef(token["name"])
        raise UnwritableGrammar(f"'{token.group()[:40]}' is not expected")

    def _repeated(self, node: Node) -> Node:
        """Read the repetition signs that follow ``node`` in the grammar, such as ``*``. Returns
        ``node`` with one ``Repeat`` around it for each sign."""
        for _ in range(_MAX_MARKS):
            token = self._token()
            if token is None:
                break
            if token["mark"] in REPEAT_SIGNS:
                low, high = REPEAT_SIGNS[token["mark"]]
            elif token["times"] is not None:
                low, high = _read_times(token)
            else:
                break
            self._at += 1
            node = Repeat(node, low, high)
        return node


def _tokens(definition: str) -> Iterator[re.Match[str]]:
    """Yield the tokens of a grammar, without white space and comments. Raises ``UnwritableGrammar``
    for text that is not a token, and for a token that cannot be converted."""
    for token in _TOKEN.finditer(definition):
        is_open = (token["text"] and not token["text_end"]) or (
            token["chars"] and not token["chars_end"]
        )
        if is_open or token["unknown"] or token["lookahead"] or token["macro"]:
            where = definition[token.start() : token.start() + 40].splitlines()[0]
            raise UnwritableGrammar(f"'{where}' cannot be enforced")
        if token["space"] is None:
            yield token


def _read_times(token: re.Match[str]) -> tuple[int, int | None]:
    """Return the minimum and the maximum of a repetition such as ``{2,5}``. The maximum is None if
    there is no limit. Raises ``UnwritableGrammar`` for an invalid repetition."""
    low = int(token["low"])
    high = None if token["comma"] else low
    if token["high"] is not None:
        high = int(token["high"])
    if max(low, high or 0) > LONGEST:
        raise UnwritableGrammar(f"it repeats too much: at most {LONGEST} times are allowed")
    if high is not None and high < low:
        raise UnwritableGrammar(f"'{token.group()}' is not a range")
    return low, high


def _codes(text: str) -> Iterator[int]:
    """Yield the code points of a text, with its escapes decoded. Raises ``UnwritableGrammar`` for
    an invalid escape or character."""
    for piece in _ESCAPE.finditer(text):
        digits = piece["two"] or piece["four"] or piece["eight"]
        if digits is not None:
            code = int(digits, 16)
        elif piece["one"] in ("x", "u", "U"):
            raise UnwritableGrammar(
                f"'{text[piece.start() : piece.start() + 10]}' is not an escape"
            )
        else:
            char = piece["plain"] or _NAMED.get(piece["one"], piece["one"])
            code = ord(char)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise UnwritableGrammar(f"'{piece.group()}' is not a character")
        yield code


def _character_class(inside: str) -> Ranges:
    """Return the characters of a character class. ``inside``: the text between its brackets. Raises
    ``UnwritableGrammar`` if the class is invalid."""
    negated = inside.startswith("^")
    members = [
        (code, piece.group() == "-")
        for piece in _ESCAPE.finditer(inside[negated:])
        for code in _codes(piece.group())
    ]
    if not members and not negated:
        raise UnwritableGrammar("a character class is empty")
    ranges: list[tuple[int, int]] = []
    at = 0
    while at < len(members):
        first = last = members[at][0]
        at += 1
        if at + 1 < len(members) and members[at][1]:
            last = members[at + 1][0]
            at += 2
        if last < first:
            raise UnwritableGrammar(f"'{inside[:40]}' contains a range that is in the wrong order")
        ranges.append((first, last))
    return complement(union(ranges)) if negated else union(ranges)


# --- writing -------------------------------------------------------------------------------------


class _Writer:
    """Writes the rules of one EBNF grammar in Lark. ``_regexes``: rule name → regex, for the rules
    that can be one regex."""

    def __init__(self, rules: Mapping[str, Node], prefix: str) -> None:
        if "root" not in rules:
            raise UnwritableGrammar("the grammar has no rule 'root'")
        self._rules = rules
        self._regexes: dict[str, str] = {}
        self._names: dict[str, str] = {}
        taken: set[str] = set()
        for name in rules:
            plain = base = f"{prefix}_r_{re.sub(r'[^a-z0-9_]', '_', name.lower())}"
            while plain in taken:
                plain = f"{base}_{len(taken)}"
            taken.add(plain)
            self._names[name] = plain

    def write(self) -> tuple[str, str]:
        """Return the rules in Lark, and the name of the start rule."""
        self._find_regexes()
        written: dict[str, str] = {}
        waiting = ["root"]
        while waiting:  # write only the rules that the start rule needs
            name = waiting.pop()
            if name not in written:
                node = self._rules[name]
                written[name] = f"{self._names[name]}: {self._body(node)}"
                if name not in self._regexes:
                    waiting += [each for each in _references(node) if each not in self._regexes]
        return "\n".join(written.values()), self._names["root"]

    def _find_regexes(self) -> None:
        """Find the rules that can be one regex. A rule is tried only after all rules to which it
        refers have become regexes. So a recursive rule is never tried."""
        users: dict[str, list[str]] = defaultdict(list)
        missing: dict[str, int] = {}
        for name, node in self._rules.items():
            references = set(_references(node))
            for reference in references:
                if reference not in self._rules:
                    raise UnwritableGrammar(f"rule '{reference}' is not defined")
                users[reference].append(name)
            missing[name] = len(references)
        ready = [name for name, count in missing.items() if count == 0]
        while ready:
            name = ready.pop()
            try:
                self._regexes[name] = self._regex(self._rules[name])
            except _NotRegular:
                continue
            for user in users[name]:
                missing[user] -= 1
                if missing[user] == 0:
                    ready.append(user)

    def _regex(self, node: Node) -> str:
        """Return an expression as one regex. Raises ``_NotRegular`` if this is not possible."""
        match node:
            case RuleRef(name):
                if name not in self._regexes:
                    raise _NotRegular
                out = f"(?:{self._regexes[name]})"
            case Concatenation(parts):
                out = self._joined("", parts)
            case Alternatives(arms):
                out = f"(?:{self._joined('|', arms)})"
            case Repeat(inner, low, high):
                out = f"(?:{self._regex(inner)}){repeat_sign(low, high)}"
            case _:
                out = _leaf_regex(node)
        if len(out) > _MAX_REGEX:
            raise _NotRegular
        return out

    def _joined(self, separator: str, nodes: Sequence[Node]) -> str:
        """Return several expressions as one regex, with ``separator`` between them. Raises
        ``_NotRegular`` if this is not possible."""
        pieces: list[str] = []
        length = 0
        for node in nodes:
            pieces.append(self._regex(node))
            length += len(pieces[-1])
            if length > _MAX_REGEX:
                raise _NotRegular
        return separator.join(pieces)

    def _body(self, node: Node) -> str:
        """Return an expression as the body of a rule. Adjacent parts that can be one regex become
        one lexeme, a unit of llguidance's lexer."""
        try:
            return _lexeme(self._regex(node))
        except _NotRegular:
            pass
        match node:
            case RuleRef(name):
                return self._names[name]
            case Concatenation(parts):
                return " ".join(self._grouped(parts, Concatenation))
            case Alternatives(arms):
                return f"({' | '.join(self._grouped(arms, Alternatives))})"
            case Repeat(inner, low, high):
                return f"({self._body(inner)}){repeat_sign(low, high)}"
        return _lexeme(_leaf_regex(node))  # a text or a class that is longer than other regexes

    def _grouped(
        self, nodes: Sequence[Node], kind: type[Concatenation] | type[Alternatives]
    ) -> Iterator[str]:
        """Yield the parts of a sequence or a choice as bodies of rules. Adjacent parts that can be
        one regex are joined, as long as the regex is not too long.

        ``nodes``: the parts. ``kind``: the class of the whole expression.
        """
        group: list[Node] = []
        length = 0
        for node in nodes:
            try:
                size = len(self._regex(node))
            except _NotRegular:
                size = _MAX_GROUP
            if group and length + size + 1 >= _MAX_GROUP:
                yield self._body(kind(tuple(group)) if len(group) > 1 else group[0])
                group, length = [], 0
            if size >= _MAX_GROUP:
                yield self._body(node)
                continue
            group.append(node)
            length += size + 1
        if group:
            yield self._body(kind(tuple(group)) if len(group) > 1 else group[0])


def _references(node: Node) -> Iterator[str]:
    """Yield the names of the rules to which an expression refers."""
    yield from (each.name for each in walk(node) if isinstance(each, RuleRef))


def _leaf_regex(node: Node) -> str:
    """Return a text or a character class as a regex in Rust's syntax."""
    if isinstance(node, LiteralText):
        return "".join(class_member(ord(char)) for char in node.text)
    assert isinstance(node, CharSet)
    members = (
        class_member(first) if first == last else f"{class_member(first)}-{class_member(last)}"
        for first, last in node.ranges
    )
    return r"[\s\S]" if node.ranges == ALL_CHARACTERS else f"[{''.join(members)}]"


def _lexeme(regex: str) -> str:
    return f"/{regex}/" if regex else '""'

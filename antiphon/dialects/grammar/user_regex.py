"""A user's grammar for text, rewritten to stand among the rules of a reply.

Custom tools take text that may have to match a regex or a Lark grammar, while most models write
every argument inside a JSON string: what is one character in the text may be two there. So
terminals are taken apart into characters, each in the form it has in the reply; terminals become
rules, names are made unique, what is ignored is woven in, and what is imported is spelled out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

__all__ = ["JSON", "LONGEST", "PLAIN", "Unwritable", "lark_rules", "regex_rule", "weight"]

#: Characters that have another form in the reply, and that form.
Escapes = Mapping[str, str]

PLAIN: Escapes = {}
#: Characters of a text that must come, and of what a regex spells out.
LONGEST = 10_000
JSON: Escapes = {
    '"': '\\"',
    "\\": "\\\\",
    **{chr(code): f"\\u{code:04x}" for code in range(0x20)},
    "\n": "\\n",
    "\t": "\\t",
    "\r": "\\r",
    "\b": "\\b",
    "\f": "\\f",
}

#: Lark's ``common`` terminals, as regexes.
_COMMON: Mapping[str, str] = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+",
    "SIGNED_FLOAT": r"[+-]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
    r"|[0-9]+[eE][+-]?[0-9]+)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[_a-zA-Z][_a-zA-Z0-9]*",
    "WS_INLINE": "[ \t]+",
    "WS": "[ \t\f\r\n]+",
    "CR": "\r",
    "LF": "\n",
    "NEWLINE": "(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
}


class Unwritable(Exception):
    """The grammar uses what cannot be rewritten; the text says what."""


# --- regexes -------------------------------------------------------------------------------------

_FLAGS = {"i": re.I, "m": re.M, "s": re.S, "u": re.U, "x": re.X}


def regex_rule(pattern: str, escapes: Escapes, flags: str = "") -> str:
    """The body of a rule for what ``pattern`` matches from end to end. Raises ``Unwritable``."""
    value = 0
    for flag in flags:
        value |= _FLAGS.get(flag, 0)
    try:
        tree = _parser.parse(pattern, value)
    except (re.error, RecursionError, OverflowError) as error:
        raise Unwritable(f"the regex cannot be read: {error}") from None
    if weight(tree) > LONGEST:
        raise Unwritable(f"it repeats too much: {LONGEST} characters are the most")
    state = tree.state.flags
    return _Regex(escapes).sequence(tree, bool(state & re.S), bool(state & re.I))


def weight(tree: Any) -> int:
    """How many characters a regex spells out, its repetitions among them: what llama.cpp is made
    to write in one go, it parts into words, and does not survive words without end."""
    return sum(_weight(op, argument) for op, argument in tree)


def _weight(op: Any, argument: Any) -> int:
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        least, most, inner = argument
        times: int = least if most is sre.MAXREPEAT else most
        return max(1, times) * weight(inner)
    if op is sre.BRANCH:
        return max(weight(branch) for branch in argument[1])
    if op in (sre.SUBPATTERN, sre.ASSERT, sre.ASSERT_NOT):
        return weight(argument[-1])
    return weight(argument) if op is sre.ATOMIC_GROUP else 1


class _Regex:
    """Turns the tree of a regex into rule bodies. A lexeme is never more than one character or a
    literal, since a longer one would swallow the beginning of the escape that follows it."""

    def __init__(self, escapes: Escapes) -> None:
        self._escapes = escapes

    def sequence(self, tree: Any, dotall: bool, any_case: bool) -> str:
        said: list[str] = []
        literal: list[str] = []
        for op, argument in tree:
            if op is sre.LITERAL and not (any_case and _cased(chr(argument))):
                literal.append(chr(argument))
                continue
            said += self._spelled(literal)
            said.append(self._node(op, argument, dotall, any_case))
            literal = []
        said += self._spelled(literal)
        return " ".join(each for each in said if each) or '""'

    def _spelled(self, literal: list[str]) -> list[str]:
        return [self.literal("".join(literal))] if literal else []

    def literal(self, text: str) -> str:
        if len(text) > LONGEST:
            raise Unwritable(f"a text in it is too long: {LONGEST} characters are the most")
        form = "".join(self._escapes.get(char, char) for char in text)
        return json.dumps(form, ensure_ascii=False)

    def _node(self, op: Any, argument: Any, dotall: bool, any_case: bool) -> str:
        read = getattr(self, f"_{str(op).lower()}", None)
        if read is None:
            raise Unwritable(f"'{str(op).lower()}' in a regex cannot be enforced")
        return str(read(argument, dotall, any_case))

    def _literal(self, code: int, dotall: bool, any_case: bool) -> str:
        return self.chars(_in_class(code), False, any_case)

    def _not_literal(self, code: int, dotall: bool, any_case: bool) -> str:
        return self.chars(_in_class(code), True, any_case)

    def _any(self, _: Any, dotall: bool, any_case: bool) -> str:
        return self.chars(r"\s\S" if dotall else r"\n", not dotall, False)

    def _in(self, items: Any, dotall: bool, any_case: bool) -> str:
        negated = bool(items) and items[0][0] is sre.NEGATE
        members = items[1:] if negated else items
        return self.chars("".join(_member(*member) for member in members), negated, any_case)

    def _max_repeat(self, argument: Any, dotall: bool, any_case: bool) -> str:
        low, high, tree = argument
        most = "" if high is sre.MAXREPEAT else str(high)
        short = {("0", ""): "*", ("1", ""): "+", ("0", "1"): "?"}
        times = short.get((str(low), most), f"{{{low},{most}}}")
        return f"({self.sequence(tree, dotall, any_case)}){times}"

    _min_repeat = _max_repeat

    def _branch(self, argument: Any, dotall: bool, any_case: bool) -> str:
        return f"({' | '.join(self.sequence(arm, dotall, any_case) for arm in argument[1])})"

    def _subpattern(self, argument: Any, dotall: bool, any_case: bool) -> str:
        _, on, off, tree = argument
        dotall = (dotall or bool(on & re.S)) and not off & re.S
        any_case = (any_case or bool(on & re.I)) and not off & re.I
        return f"({self.sequence(tree, dotall, any_case)})"

    def _at(self, argument: Any, dotall: bool, any_case: bool) -> str:
        """The whole text has to match, so anchors at its ends say nothing new."""
        if str(argument) in ("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING"):
            return ""
        raise Unwritable("word boundaries in a regex cannot be enforced")

    def chars(self, inside: str, negated: bool, any_case: bool) -> str:
        """One character of a class, given as what stands between the brackets."""
        flags = re.A | (re.I if any_case else 0)  # else \s would be more than it is in grammars
        matcher = re.compile(f"[{'^' if negated else ''}{inside}]", flags)
        if any_case:
            inside += "".join(re.escape(c) for c in _LETTERS if bool(matcher.match(c)) != negated)
        forms = [re.escape(form) for char, form in self._escapes.items() if matcher.match(char)]
        # What has another form may not stand for itself.
        taken = '"\\\\\\x00-\\x1f' if self._escapes else ""
        if negated:
            plain = f"[^{inside}{taken}]"
        else:
            plain = f"[{inside}&&[^{taken}]]" if taken else f"[{inside}]"
        return f"/{'|'.join((plain, *forms)).replace('/', chr(92) + '/')}/"


_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CATEGORIES: Mapping[str, str] = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def _cased(char: str) -> bool:
    return char.lower() != char.upper()


def _member(op: Any, argument: Any) -> str:
    if op is sre.LITERAL:
        return _in_class(argument)
    if op is sre.RANGE:
        return f"{_in_class(argument[0])}-{_in_class(argument[1])}"
    if op is sre.CATEGORY and str(argument) in _CATEGORIES:
        return _CATEGORIES[str(argument)]
    raise Unwritable(f"'{str(op).lower()}' in a character class cannot be enforced")


def _in_class(code: int) -> str:
    char = chr(code)
    return f"\\x{code:02x}" if code < 128 and not char.isalnum() else char


# --- Lark ----------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)
    |(?P<string>"(?:\\.|[^"\\\n])*")(?P<any_case>i?)
    |(?P<regex>/(?:\\.|[^/\\\n])+/)(?P<flags>[imslux]*)
    |(?P<directive>%[a-z]+[^\n]*)
    |(?P<alias>->\s*\w+)
    |(?P<times>~\s*\d+(?:\s*\.\.\s*\d+)?)
    |(?P<range>\.\.)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<other>[^\S\n]+|\n|[:|()\[\]*+?!.,\d]+)
    |(?P<unknown>.)""",
    re.VERBOSE,
)
_HEAD = re.compile(r"^[ \t]*[?!]*(?P<name>[A-Za-z_]\w*)(?:\.-?\d+)?[ \t]*:", re.MULTILINE)
_IMPORT = re.compile(r"%import\s+common\.(\w+)(?:\s*->\s*(\w+))?\s*$")
_IMPORTS = re.compile(r"%import\s+common\s*\(([^)]*)\)\s*$")


def lark_rules(definition: str, prefix: str, escapes: Escapes) -> tuple[str, str]:
    """The rules of a Lark grammar, with names that begin with ``prefix``, and the name of its
    start. Raises ``Unwritable``."""
    return _Lark(prefix, escapes).rules(definition)


class _Lark:
    def __init__(self, prefix: str, escapes: Escapes) -> None:
        self._prefix = prefix
        self._escapes = escapes
        self._regex = _Regex(escapes)
        self._ignored: list[str] = []
        self._imported: dict[str, str] = {}

    def rules(self, definition: str) -> tuple[str, str]:
        text = self._directives(definition)
        heads = list(_HEAD.finditer(text))
        if text[: heads[0].start() if heads else None].strip():
            raise Unwritable("a grammar is made of rules: 'name: …'")
        out = []
        for head, after in zip(heads, [*heads[1:], None], strict=True):
            body = text[head.end() : after.start() if after else None]
            name = head["name"]
            out.append(f"{self._name(name)}: {self._body(body, _is_terminal(name))}")
        out += [
            f"{self._name(n)}: {regex_rule(p, self._escapes)}" for n, p in self._imported.items()
        ]
        if not any(head["name"] == "start" for head in heads):
            raise Unwritable("the grammar has no rule 'start'")
        start = self._name("start")
        if not self._ignored:
            return "\n".join(out), start
        skipped = " | ".join(self._body(each, True) for each in self._ignored)
        out += [f"{self._prefix}_skip: ({skipped})*", f"{self._prefix}_all: {self._skip} {start}"]
        return "\n".join(out), f"{self._prefix}_all"

    @property
    def _skip(self) -> str:
        return f"{self._prefix}_skip"

    def _directives(self, definition: str) -> str:
        """The grammar without comments and directives, which are noted."""
        kept: list[str] = []
        for token in _TOKEN.finditer(definition):
            if token["directive"] is not None:
                self._directive(token["directive"].partition("//")[0].strip())
            elif token["comment"] is None and token["alias"] is None:
                kept.append(token.group())
        return "".join(kept)

    def _directive(self, said: str) -> None:
        if said.startswith("%ignore"):
            self._ignored.append(said.removeprefix("%ignore").strip())
            return
        one, several = _IMPORT.match(said), _IMPORTS.match(said)
        if one is not None:
            self._import(one[1], one[2] or one[1])
        elif several is not None:
            for name in several[1].split(","):
                self._import(name.strip(), name.strip())
        else:
            raise Unwritable(f"'{said}' cannot be enforced")

    def _import(self, name: str, alias: str) -> None:
        if name not in _COMMON:
            raise Unwritable(f"there is no terminal 'common.{name}'")
        self._imported[alias] = _COMMON[name]

    def _body(self, body: str, terminal: bool) -> str:
        """What stands behind the colon. In rules, what is ignored may follow every terminal."""
        weave = "" if terminal or not self._ignored else f" {self._skip}"
        out: list[str] = []
        tokens = list(_TOKEN.finditer(body.strip()))
        at = 0
        while at < len(tokens):
            token = tokens[at]
            following = [t for t in tokens[at + 1 : at + 5] if t.group().strip()]
            if token["string"] is not None and following and following[0]["range"] is not None:
                last = following[1]
                out.append(f"({self._range(token['string'], last['string'])}{weave})")
                at = tokens.index(last) + 1
                continue
            out.append(self._said(token, weave))
            at += 1
        return "".join(out)

    def _said(self, token: re.Match[str], weave: str) -> str:
        if token["string"] is not None:
            return f"({self._string(token['string'], bool(token['any_case']))}{weave})"
        if token["regex"] is not None:
            pattern = token["regex"][1:-1].replace("\\/", "/")
            return f"({regex_rule(pattern, self._escapes, token['flags'])}{weave})"
        if token["name"] is not None:
            name = self._name(token["name"])
            return f"({name}{weave})" if weave and _is_terminal(token["name"]) else name
        if token["unknown"] is not None or token["range"] is not None:
            raise Unwritable(f"'{token.group()}' cannot be enforced")
        return token.group().replace("!", "")

    def _string(self, quoted: str, any_case: bool) -> str:
        text = _unquoted(quoted)
        if not any_case:
            return self._regex.literal(text)
        return regex_rule(re.escape(text), self._escapes, "i")

    def _range(self, low: str, high: str | None) -> str:
        if high is None:
            raise Unwritable("a range stands between two strings")
        first, last = _unquoted(low), _unquoted(high)
        if len(first) != 1 or len(last) != 1:
            raise Unwritable("a range stands between two characters")
        return self._regex.chars(f"{_in_class(ord(first))}-{_in_class(ord(last))}", False, False)

    def _name(self, name: str) -> str:
        kind = "t" if _is_terminal(name) else "r"
        return f"{self._prefix}_{kind}_{name.lower()}"


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _unquoted(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        raise Unwritable(f"the string {quoted} cannot be read") from None

"""Rewrite a user's regex as grammar rules, so that it can be part of the grammar of a reply.

A custom tool's input may have to match a regex or a Lark grammar. Most models write each argument
inside a JSON string, where a character of the input may be escaped. So a regex is split into rules
for single characters, and each rule matches the escaped form of its character. ``user_lark`` uses
this module for the terminals of a Lark grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from .regex_syntax import RegexSyntaxError, opcodes, parse_regex
from .syntax_tree import repeat_sign

#: Character → how it is written in the reply, for the characters that are written differently.
Escapes = Mapping[str, str]

PLAIN: Escapes = {}
#: Maximum number of characters of a text that a grammar dictates, whether as a literal or as the
#: repetitions of a regex.
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


class UnwritableGrammar(Exception):
    """The user's grammar contains something that cannot be rewritten. The exception's text says
    what."""


_FLAGS = {"i": re.I, "m": re.M, "s": re.S, "u": re.U, "x": re.X}


def regex_rule(pattern: str, escapes: Escapes, flags: str = "") -> str:
    """Return the body of a grammar rule for the texts that ``pattern`` matches completely.

    ``escapes``: character → how it is escaped in the reply. ``flags``: the letters of the regex's
    flags, such as ``i``. Raises ``UnwritableGrammar`` if the pattern is invalid or cannot be
    rewritten.
    """
    value = 0
    for flag in flags:
        value |= _FLAGS.get(flag, 0)
    try:
        tree = parse_regex(pattern, value)
    except RegexSyntaxError as error:
        raise UnwritableGrammar(f"the regex cannot be read: {error}") from None
    if expanded_length(tree) > LONGEST:
        raise UnwritableGrammar(f"it repeats too much: at most {LONGEST} characters are allowed")
    state = tree.state.flags
    return RegexRewriter(escapes).sequence(tree, bool(state & re.S), bool(state & re.I))


def expanded_length(tree: Any) -> int:
    """Return the number of characters that a regex contains if its repetitions are written out.
    ``tree``: its syntax tree.

    The number must be limited because llama.cpp crashes on very long words in a text that a grammar
    dictates.
    """
    return sum(_expanded_length(op, argument) for op, argument in tree)


def _expanded_length(op: Any, argument: Any) -> int:
    if op in (opcodes.MAX_REPEAT, opcodes.MIN_REPEAT, opcodes.POSSESSIVE_REPEAT):
        least, most, inner = argument
        times: int = least if most is opcodes.MAXREPEAT else most
        return max(1, times) * expanded_length(inner)
    if op is opcodes.BRANCH:
        return max(expanded_length(branch) for branch in argument[1])
    if op in (opcodes.SUBPATTERN, opcodes.ASSERT, opcodes.ASSERT_NOT):
        return expanded_length(argument[-1])
    return expanded_length(argument) if op is opcodes.ATOMIC_GROUP else 1


class RegexRewriter:
    """Turns the syntax tree of a regex into the bodies of grammar rules. ``escapes``: character →
    how it is escaped in the reply.

    llguidance first splits a text into lexemes. In these rules, a lexeme is either one character
    (escaped or not) or a fixed text. A lexeme for several arbitrary characters might end in the
    middle of an escape sequence.
    """

    def __init__(self, escapes: Escapes) -> None:
        self._escapes = escapes

    def sequence(self, tree: Any, dotall: bool, any_case: bool) -> str:
        """Return the rule for the syntax tree of a regex. ``dotall``: whether a dot matches line
        ends. ``any_case``: whether case is ignored."""
        parts: list[str] = []
        literal: list[str] = []
        for op, argument in tree:
            if op is opcodes.LITERAL and not (any_case and _cased(chr(argument))):
                literal.append(chr(argument))
                continue
            parts += self._spelled(literal)
            parts.append(self._node(op, argument, dotall, any_case))
            literal = []
        parts += self._spelled(literal)
        return " ".join(each for each in parts if each) or '""'

    def _spelled(self, literal: list[str]) -> list[str]:
        return [self.literal("".join(literal))] if literal else []

    def literal(self, text: str) -> str:
        """Return the rule for a fixed text."""
        if len(text) > LONGEST:
            raise UnwritableGrammar(
                f"a text in it is too long: at most {LONGEST} characters are allowed"
            )
        form = "".join(self._escapes.get(char, char) for char in text)
        return json.dumps(form, ensure_ascii=False)

    def _node(self, op: object, argument: object, dotall: bool, any_case: bool) -> str:
        read = getattr(self, f"_{str(op).lower()}", None)
        if read is None:
            raise UnwritableGrammar(f"'{str(op).lower()}' in a regex cannot be enforced")
        return str(read(argument, dotall, any_case))

    def _literal(self, code: int, dotall: bool, any_case: bool) -> str:
        return self.chars(class_member(code), False, any_case)

    def _not_literal(self, code: int, dotall: bool, any_case: bool) -> str:
        return self.chars(class_member(code), True, any_case)

    def _any(self, _: object, dotall: bool, any_case: bool) -> str:
        return self.chars(r"\s\S" if dotall else r"\n", not dotall, False)

    def _in(self, items: Any, dotall: bool, any_case: bool) -> str:
        negated = bool(items) and items[0][0] is opcodes.NEGATE
        members = items[1:] if negated else items
        return self.chars("".join(_member(*member) for member in members), negated, any_case)

    def _max_repeat(self, argument: Any, dotall: bool, any_case: bool) -> str:
        low, high, tree = argument
        sign = repeat_sign(low, None if high is opcodes.MAXREPEAT else high)
        return f"({self.sequence(tree, dotall, any_case)}){sign}"

    _min_repeat = _max_repeat

    def _branch(self, argument: Any, dotall: bool, any_case: bool) -> str:
        return f"({' | '.join(self.sequence(arm, dotall, any_case) for arm in argument[1])})"

    def _subpattern(self, argument: Any, dotall: bool, any_case: bool) -> str:
        _, on, off, tree = argument
        dotall = (dotall or bool(on & re.S)) and not off & re.S
        any_case = (any_case or bool(on & re.I)) and not off & re.I
        return f"({self.sequence(tree, dotall, any_case)})"

    def _at(self, argument: object, dotall: bool, any_case: bool) -> str:
        """Return ``""`` for an anchor at the start or the end of the text, because the whole text
        must match anyway. Raises ``UnwritableGrammar`` for a word boundary. ``argument``: the kind
        of anchor or boundary, as ``re`` names it."""
        if str(argument) in ("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING"):
            return ""
        raise UnwritableGrammar("word boundaries in a regex cannot be enforced")

    def chars(self, inside: str, negated: bool, any_case: bool) -> str:
        """Return the rule for one character of a character class. ``inside``: the text between the
        brackets of the class. ``negated``: whether the class matches all other characters instead.
        ``any_case``: whether case is ignored."""
        flags = re.A | (re.I if any_case else 0)  # without re.A, \s matches more than in grammars
        matcher = re.compile(f"[{'^' if negated else ''}{inside}]", flags)
        if any_case:
            inside += "".join(re.escape(c) for c in _LETTERS if bool(matcher.match(c)) != negated)
        forms = [re.escape(form) for char, form in self._escapes.items() if matcher.match(char)]
        # A character that is written differently in the reply must not appear there unchanged.
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
    if op is opcodes.LITERAL:
        return class_member(argument)
    if op is opcodes.RANGE:
        return f"{class_member(argument[0])}-{class_member(argument[1])}"
    if op is opcodes.CATEGORY and str(argument) in _CATEGORIES:
        return _CATEGORIES[str(argument)]
    raise UnwritableGrammar(f"'{str(op).lower()}' in a character class cannot be enforced")


def class_member(code: int) -> str:
    """Return the character with this code point as it is written in a character class."""
    char = chr(code)
    return f"\\x{code:02x}" if code < 128 and not char.isalnum() else char

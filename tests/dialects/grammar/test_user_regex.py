"""Users' grammars inside JSON strings: they hold the same texts there as outside."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.grammar.user_lark import lark_rules
from antiphon.dialects.grammar.user_regex import JSON, PLAIN, Unwritable, regex_rule
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.tokens import Constraint
from tests.dialects.grammars import Held

TOKENIZER = ByteTokenizer()
REGEXES = (
    r"[a-c]+",
    r"[^\n]*",
    r".+",
    r"(?s:.*)",
    r"a|bc|\"",
    r"\w+\s\d{2,3}",
    r"[\"\\/]{2}",
    r"(?i)ab\n?[c-d]",
    r"x*?y",
    r"[^a\"]\\",
    r"^a$",
    r"\t|/|é",
    r"(ab?){1,2}",
    r"\S\D\W",
)


def in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def of_regex(pattern: str, *, plain: bool = False) -> Held:
    rule = regex_rule(pattern, PLAIN if plain else JSON)
    return Held(TOKENIZER, Constraint(lark=f'start: "<" own ">"\nown: {rule}'))


def of_lark(definition: str) -> Held:
    rules, start = lark_rules(definition, "u", JSON)
    return Held(TOKENIZER, Constraint(lark=f'start: "<" {start} ">"\n{rules}'))


def holds(held: Held, text: str, *, plain: bool = False) -> bool:
    return held.may_write(f"<{text if plain else in_json(text)}>")


HELD = {pattern: of_regex(pattern) for pattern in REGEXES}


@given(
    st.sampled_from(REGEXES),
    st.lists(st.sampled_from(("a", "b", "c", "B", "D", '"', "\\", "\n", "\t", "/", "é", " ", "12",
                              "x", "y", "\x0b", "-")), max_size=5).map("".join),
)  # fmt: skip
def test_a_regex_holds_what_it_matches(pattern: str, text: str) -> None:
    # Where a text may be long or end here, the lexer takes the longer: not asked with ">".
    assert holds(HELD[pattern], text) == (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize("text", ["ab", 'a"\\b', "a\nb", ""])
def test_plain_text_is_held_as_it_is(text: str) -> None:
    held = of_regex(r"[^\n>]+", plain=True)
    assert holds(held, text, plain=True) == (re.fullmatch(r"[^\n>]+", text) is not None)


@pytest.mark.parametrize(
    ("definition", "right", "wrong"),
    [
        ('start: "a" | "b"+', ["a", "b", "bbb"], ["", "ab"]),
        ('start: x ~ 2\nx: "a"', ["aa"], ["a", "aaa"]),
        ('start: x ~ 1..2\nx: "a"', ["a", "aa"], ["aaa"]),
        ('start: "a".."c"', ["a", "b"], ["d", ".."]),
        ('start: "select"i " " NAME\nNAME: /[a-z]+/', ["SELECT a", "seLect b"], ["select A"]),
        ('?start: sum\nsum: INT ("+" INT)* -> add\n%import common.INT', ["1", "1+22"], ["1 + 2"]),
        ("start: LINE+\nLINE: /[^\\n]+/ LF\n%import common.LF", ["a\n", "a\nb\n"], ["a", "\n"]),
        ('start: Q\nQ: "\\"" /[^"]*/ "\\""', ['"a\nb"'], ["a", '"']),
        ('start: B\nB.2: "\\\\" LETTER // one\n# two\n%import common (LETTER, WS)', ["\\a"], ["a"]),
        ("start: a b\na: \"x\"\n | \"y\"\nb: \"z\"", ["xz", "yz"], ["x", "xyz"]),
        ('start: NUM -> n\n%import common.INT -> NUM', ["12"], ["x"]),
        ('start: "a" ["b"] !c\n!c: "c"', ["abc", "ac"], ["ab"]),
    ],
)  # fmt: skip
def test_lark(definition: str, right: list[str], wrong: list[str]) -> None:
    held = of_lark(definition)
    assert [text for text in right if not holds(held, text)] == []
    assert [text for text in wrong if holds(held, text)] == []


def test_what_is_ignored_is_ignored_between_terminals_only() -> None:
    held = of_lark('start: WORD "=" WORD\nWORD: "a" "b"\n%import common.WS\n%ignore WS')
    for text in ("ab=ab", " ab =\n\tab ", "ab= ab"):
        assert holds(held, text), text
    for text in ("a b=ab", "ab ab"):
        assert not holds(held, text), text


def test_two_names_that_differ_in_case_only_are_two() -> None:
    held = of_lark('start: word WORD\nword: "a"\nWORD: "b"')
    assert holds(held, "ab") and not holds(held, "aa")


@pytest.mark.parametrize(
    "definition",
    [
        'begin: "a"',
        '"a"',
        'start: "a" & "b"',
        "start: x{1}\n%declare x",
        "start: A\n%import common.NOTHING",
        "start: A\n%import python.NAME",
        'start: "ab".."c"',
        "start: /(?=a)b/",
        r"start: /\bb/",
        "start: /(/",
        r'start: "\q"',
    ],
)
def test_what_cannot_be_rewritten_is_said(definition: str) -> None:
    with pytest.raises(Unwritable):
        lark_rules(definition, "u", JSON)

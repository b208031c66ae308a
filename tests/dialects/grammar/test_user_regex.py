"""Users' grammars inside JSON strings: they hold the same texts there as outside."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.grammar.user_lark import lark_rules
from antiphon.dialects.grammar.user_regex import JSON, PLAIN, UnwritableGrammar, regex_rule
from antiphon.inference.tokens import Constraint
from antiphon.testing.tokenizer import ByteTokenizer
from tests.dialects.grammars import ConstrainedWriter

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


def json_string_content(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def of_regex(pattern: str, *, plain: bool = False) -> ConstrainedWriter:
    rule = regex_rule(pattern, PLAIN if plain else JSON)
    return ConstrainedWriter(TOKENIZER, Constraint(lark=f'start: "<" own ">"\nown: {rule}'))


def of_lark(definition: str) -> ConstrainedWriter:
    rules, start = lark_rules(definition, "u", JSON)
    return ConstrainedWriter(TOKENIZER, Constraint(lark=f'start: "<" {start} ">"\n{rules}'))


def holds(writer: ConstrainedWriter, text: str, *, plain: bool = False) -> bool:
    return writer.may_write(f"<{text if plain else json_string_content(text)}>")


WRITERS = {pattern: of_regex(pattern) for pattern in REGEXES}


@given(
    st.sampled_from(REGEXES),
    st.lists(st.sampled_from(("a", "b", "c", "B", "D", '"', "\\", "\n", "\t", "/", "é", " ", "12",
                              "x", "y", "\x0b", "-")), max_size=5).map("".join),
)  # fmt: skip
def test_rewritten_regex_accepts_the_same_texts(pattern: str, text: str) -> None:
    # Where a text may be long or end here, the lexer takes the longer: not asked with ">".
    assert holds(WRITERS[pattern], text) == (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize("text", ["ab", 'a"\\b', "a\nb", ""])
def test_literal_text_is_enforced(text: str) -> None:
    writer = of_regex(r"[^\n>]+", plain=True)
    assert holds(writer, text, plain=True) == (re.fullmatch(r"[^\n>]+", text) is not None)


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
def test_lark_grammar_accepts_its_language(
    definition: str, right: list[str], wrong: list[str]
) -> None:
    writer = of_lark(definition)
    assert [text for text in right if not holds(writer, text)] == []
    assert [text for text in wrong if holds(writer, text)] == []


def test_ignored_text_is_valid_only_between_terminals() -> None:
    writer = of_lark('start: WORD "=" WORD\nWORD: "a" "b"\n%import common.WS\n%ignore WS')
    for text in ("ab=ab", " ab =\n\tab ", "ab= ab"):
        assert holds(writer, text), text
    for text in ("a b=ab", "ab ab"):
        assert not holds(writer, text), text


def test_names_that_differ_only_in_case_are_distinct() -> None:
    writer = of_lark('start: word WORD\nword: "a"\nWORD: "b"')
    assert holds(writer, "ab") and not holds(writer, "aa")


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
def test_unsupported_syntax_is_named(definition: str) -> None:
    with pytest.raises(UnwritableGrammar):
        lark_rules(definition, "u", JSON)

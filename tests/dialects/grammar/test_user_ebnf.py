"""EBNF grammars: which texts they match, and how grammars that cannot be enforced are refused."""

from __future__ import annotations

import pytest

from antiphon.dialects.grammar.user_ebnf import ebnf_rules
from antiphon.dialects.grammar.user_regex import UnwritableGrammar
from tests.dialects.grammars import matches

_JSON = r"""
root   ::= object  # what llama.cpp ships as an example
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


def _matches(grammar: str, text: str) -> bool:
    rules, start = ebnf_rules(grammar, "g")
    return matches(f"start: {start}\n{rules}", text)


@pytest.mark.requirement("VN-43")
@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('root ::= "a" | "b"', ["a", "b"], ["", "ab", "c"]),
        ('root ::= "a" "bc" | "ab" "d"', ["abc", "abd"], ["ab", "abcd"]),
        ('root ::= [a-z]+ "b"', ["ab", "bb", "abcb"], ["b", "abc"]),
        ('root ::= word ("," word)*\nword ::= [a-zA-Z]+', ["a", "ab,C"], ["", "a,", "1"]),
        ('root ::= item{2,3}\nitem ::= "x" | "yy"', ["xx", "yyxyy"], ["x", "xxxx"]),
        ('root ::= "a"{2} "b"{1,}', ["aab", "aabbb"], ["ab", "aa"]),
        ("root ::= [^a-c\\n]+", ["xyz", "é"], ["a", "x\n"]),
        ("root ::= [\\]\\-a-]+ [^]", ["]-a-x"], ["x"]),
        ("root ::= .", ["x", "\n", "é"], ["", "xx"]),
        (r'root ::= "\"\\\n\t\x41\u00e9\U0001F600/"', ['"\\\n\tAé😀/'], ["A"]),
        ('root ::= ""', [""], ["a"]),
        ('root ::= "a" empty "b"\nempty ::= ', ["ab"], ["a"]),
        ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["(x", "()"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["ab"]),
        ('my-rule ::= "y"\nroot ::= my-rule my_rule\nmy_rule ::= "z"', ["yz"], ["zy"]),
        ('root ::=\n  "a" |\n  "b"\n  "c" other ::= "d"', ["a", "bc"], ["b", "d"]),
        ('root ::= Foo foo\nFoo ::= "1"\nfoo ::= "2"', ["12"], ["21", "11"]),
        (_JSON, ['{"a": [1, -2.5e3, {"b":null}]}', "{}", '{"\\u00e9":"\\n"}'], ["[", '{"a"}']),
    ],
)
def test_grammar_matches_characters(grammar: str, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not _matches(grammar, text)] == []
    assert [text for text in wrong if _matches(grammar, text)] == []


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('start ::= "a"', "no rule 'root'"),
        ("root ::= other", "'other' is not defined"),
        ('root ::= "a"\nroot ::= "b"', "'root' is defined twice"),
        ('root ::= ("a"', "parenthesis is not closed"),
        ('root ::= "a" )', "')' is not expected"),
        ('root ::= "a', "cannot be enforced"),
        ("root ::= [a", "cannot be enforced"),
        ("root ::= []", "a character class is empty"),
        ("root ::= [z-a]", "wrong order"),
        (r'root ::= "\xZZ"', "is not an escape"),
        (r'root ::= "\ud800"', "is not a character"),
        (r'root ::= "\UFFFFFFFF"', "is not a character"),
        ('root ::= "a"{3,2}', "is not a range"),
        ('root ::= "a"{999999}', "repeats too much"),
        ('root ::= "a" (= "b")', "cannot be enforced"),
        ('root ::= TagDispatch(("a", x))', "cannot be enforced"),
        ("root ::= <[1000]>", "cannot be enforced"),
        ("root ::= 'a'", "cannot be enforced"),
        ('root ::= "a"????', "is not expected"),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, "nested too deeply"),
        ("root ::= " + "[" * 150_000, "cannot be enforced"),
        ("root ::= " + '"a" ' * 60_000, "too long"),
    ],
)
def test_grammar_that_cannot_be_enforced_is_refused(grammar: str, reason: str) -> None:
    with pytest.raises(UnwritableGrammar, match=reason.replace("(", r"\(").replace(")", r"\)")):
        ebnf_rules(grammar, "g")


def test_long_chain_of_rules_is_written_as_rules() -> None:
    """Each rule doubles the last: as one regex, it would be longer than memory."""
    rules = "\n".join(f"r{n} ::= r{n + 1} r{n + 1}" for n in range(40))
    text, start = ebnf_rules(f'root ::= r0\n{rules}\nr40 ::= "a"', "g")
    assert len(text) < 100_000
    assert start == "g_r_root"
    chain = "\n".join(f"r{n} ::= r{n + 1}" for n in range(5_000))
    assert ebnf_rules(f'root ::= r0\n{chain}\nr5000 ::= "a"', "g")


@pytest.mark.parametrize("length", range(3_980, 4_005))
def test_parts_about_as_long_as_a_lexeme_are_grouped(length: int) -> None:
    rules, _ = ebnf_rules(f'root ::= "{"x" * length}" | "y" | root "z"', "g")
    assert rules.count("x") >= length

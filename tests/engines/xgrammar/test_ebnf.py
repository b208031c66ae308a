"""Constraints in xgrammar's words. What it makes of them is asked of itself elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.engines.xgrammar.ebnf import to_ebnf

LITERALS = {5: "<call>", 6: "</call>", 7: "<|end|>"}


def converted(lark: str) -> str:
    found = to_ebnf(lark, LITERALS, {7})
    assert found is not None
    return found


def of_schema(schema: Any) -> str | None:
    return to_ebnf("start: %json " + json.dumps(schema), {}, ())


@pytest.mark.parametrize(
    ("body", "written"),
    [
        (r'"a\"\\\n" "é🦄"', r'"a\u0022\u005c\u000a" "\u00e9\U0001f984"'),
        ('"a" | "b" "c"', '"a" | "b" "c"'),
        ('("a" | "b")? "c"{2,4} "d"{,3} "e"{2,}', '("a" | "b")? ("c"){2,4} ("d"){0,3} ("e"){2,}'),
        ('"a"~2 "b" ~ 1..3 ["c"]', '("a"){2,2} ("b"){1,3} ("c")?'),
        ('""', '""'),
        (r'/|a/ /[)]/ "|"', '("" | "a") [\\u0029] "|"'),
        (r"/[a-c_&&[^b]]+x|\n/", r'([a\u005fc])+ "x" | "\u000a"'.replace("a\\u005fc", "\\u005fac")),
        (r"/[^\d\x00-\x1f]\w/", None),
        ("<[5]>", "Token(5)"),
        ('<[5]> "a" <[7]>', 'Token(5) "a" ""'),
    ],
)
def test_lark_expression_is_converted_to_ebnf(body: str, written: str | None) -> None:
    found = converted(f"start: {body}").partition("r_start ::= ")[2]
    assert found == written if written else found.startswith("[\\u0020-\\u002f")


def test_terminators_are_excluded_from_any_text() -> None:
    """Nor are control tokens, which a text could spell."""
    written = converted('start: head* /(?s:.*)/\nhead[suffix="]]"]: /(?s:.*)/')
    assert written == (
        "root ::= r_start\n"
        "r_start ::= (r_head)* text_0\n"
        'r_head ::= text_0 "]]"\n'
        "text_0 ::= TagDispatch(loop_after_dispatch=false,"
        ' excludes=("<call>", "</call>", "<|end|>", "]]",))'
    )


def test_older_releases_match_control_tokens_by_their_text() -> None:
    lark = 'start: part <[6]>\npart[suffix="\\u0000"]: /(?s:.*)/'
    written = to_ebnf(lark, LITERALS, {7}, has_token_rules=False)
    assert written is not None and written.splitlines()[1:] == [
        'r_start ::= r_part "</call>"',
        'r_part ::= text_0 "\\u0000"',
        "text_0 ::= TagDispatch(loop_after_dispatch=false,"
        ' excludes=("<call>", "</call>", "<|end|>"))',
    ]
    assert to_ebnf("start: <[99]>", LITERALS, {7}, has_token_rules=False) is None


def test_of_control_tokens_that_are_numbered_their_stem_is_kept_out() -> None:
    literals = {n: f"<|reserved_token_{n}|>" for n in range(250)} | {300: "[A1]", 301: "[A2]"}
    written = to_ebnf("start: /(?s:.*)/", literals, ())
    assert written is not None and 'excludes=("<|reserved_token_", "[A1]", "[A2]",)' in written


def test_a_text_goes_on_behind_what_ends_it_unless_a_control_token_follows() -> None:
    written = converted('start: part+ <[5]> "x"\npart[suffix="<"]: /(?s:.*)/')
    assert '"<",' not in written and 'r_part ::= text_0 "<"' in written


def test_texts_without_others() -> None:
    written = converted(r"start: TEXT" + "\n" + r"TEXT: /(?s:.*)/ & ~/(?s:.*)<\|(a|b)\|>(?s:.*)/")
    assert '"</call>", "<|end|>", "<|a|>", "<|b|>",)' in written


def test_rules_may_stand_in_themselves() -> None:
    written = converted('start: pair\npair: "(" pair ")" | "x"')
    assert written.endswith('r_pair ::= "(" r_pair ")" | "x"')


def test_schema_layout_matches_llguidance() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, "b"]}, "c": {"type": "boolean"}},
        "required": ["c"],
        "x-guidance": {"item_separator": ",", "key_separator": ":"},
    }
    assert of_schema(schema) == (
        "root ::= r_start\n"
        "r_start ::= r_json_0_root\n"
        'r_json_0_root ::= "{" (("\\u0022a\\u0022:" ("1" | "\\u0022b\\u0022")) r_json_0_1_1'
        ' | ("\\u0022c\\u0022:" ("true" | "false")) r_json_0_1_2) "}"\n'
        'r_json_0_1_1 ::= ("," ("\\u0022c\\u0022:" ("true" | "false"))) r_json_0_1_2\n'
        'r_json_0_1_2 ::= ""'
    )


@pytest.mark.parametrize(
    "lark",
    [
        "start: /a(?=b)/",
        "start: /a$/",
        "start: /[[:alpha:]]/",
        "start: /(?i:a)/",
        "start: /a+?/",
        "start: /[b-a]/",
        "start: /(a/",
        r"start: /\p{L}/",
        "start: /[a/",
        "start: TEXT\nTEXT: /(?s:.*)/ & ~/(?s:(a|b).*)/",
        "start: /a/ & /b/",
        'start: "a" ?? "b"',
        "start: (",
        "no rule at all",
        "start: %json false",
        'start: <[7]> "a"',
        'start: part "a"\npart: "b" <[7]>',
        "start: part*\npart: <[7]>",
        'start: "a"{2000000}',
        'start: ("a"*)*',
        'start: part{0,9}\npart: ("a" | "")',
        "start: /(?s:.*)/+",
    ],
)
def test_what_is_not_known_is_not_said(lark: str) -> None:
    assert to_ebnf(lark, LITERALS, {7}) is None


A_AND_B = {"a": {"type": "string"}, "b": {"type": "integer"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 2**60},
        {"type": "array", "items": {}, "maxItems": 2**40},
        {"type": "string", "pattern": "a", "maxLength": 3},
        {"type": "string", "format": "uri-template"},
        {"type": "string", "pattern": r"a\b"},
        {"type": "integer", "multipleOf": 3},
        {"type": "integer", "minimum": 0.5},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "minItems": 3, "maxItems": 2},
        {"type": "object", "properties": A_AND_B, "required": ["c"]},
        {"type": "object", "minProperties": 2},
        {"allOf": [{"type": "string"}, {"minLength": 2}]},
        {"properties": A_AND_B, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"$ref": "#/properties/a", "properties": A_AND_B},
        {"$ref": "other.json"},
        {"const": 1, "type": "string"},
        {"minimum": 1, "minLength": 2},
        {"type": "any"},
        {"not": {}},
    ],
)
def test_unenforceable_schema_is_refused(schema: Any) -> None:
    assert of_schema(schema) is None
    # what may be lenient passes over it
    assert of_schema({**schema, "x-guidance": {"lenient": True}}) is not None

"""Structural tags: which texts they match, and how those that cannot be enforced are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.dialects.grammar.structural_tags import structural_tag_rules
from antiphon.errors import InvalidRequest
from tests.dialects.grammars import matches

Json = dict[str, Any]

_SCHEMA: Json = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
_JSON: Json = {"type": "json_schema", "json_schema": _SCHEMA}
_TAG: Json = {"type": "tag", "begin": "<f=one>", "content": _JSON, "end": "</f>"}
_OTHER: Json = {
    "type": "tag",
    "begin": "<f=two>",
    "content": {"type": "regex", "pattern": "[0-9]+"},
    "end": ["</f>", "</g>"],
}
_TAGS: Json = {"type": "triggered_tags", "triggers": ["<f="], "tags": [_TAG, _OTHER]}
_TEXT: Json = {"type": "any_text"}
#: An option of llguidance, with which it ignores keywords that it cannot enforce.
_LENIENT: Json = {"x-guidance": {"lenient": True}}
_ONE = '<f=one>{"a": 1}</f>'


def _const(text: str) -> Json:
    return {"type": "const_string", "value": text}


def _rules(tag: Json) -> str:
    rules, start = structural_tag_rules(json.dumps(tag), "g", "tag")
    return f"start: {start}\n{rules}"


@pytest.mark.requirement("VN-43")
@pytest.mark.parametrize(
    ("format", "right", "wrong"),
    [
        (_const("Hi"), ["Hi"], ["", "Hii"]),
        (_JSON, ['{"a": 1}'], ['{"a": "1"}', "{}"]),
        (
            {"type": "json_schema", "json_schema": {"type": "string", "pattern": '^[^"]*$'}},
            ['"a"'],
            ['"a\\"b"'],
        ),
        ({"type": "regex", "pattern": "a+b"}, ["aab"], ["b"]),
        ({"type": "grammar", "grammar": 'root ::= "(" root? ")"'}, ["(())"], ["("]),
        (_TEXT, ["", "any <f> text\n"], []),
        ({"type": "any_text", "excludes": ["no", "never"]}, ["yes"], ["it is no"]),
        (
            {"type": "sequence", "elements": [_const("a"), _JSON, _TEXT]},
            ['a{"a": 1}', 'a{"a": 1} and more'],
            ["a", "{}"],
        ),
        ({"type": "or", "elements": [_const("a"), _TAG]}, ["a", _ONE], ["b", f"a{_ONE}"]),
        (_TAG, [_ONE], ['<f=one>{"a": 1}', '<f=one>{"a": 1}</f> ']),
        (_OTHER, ["<f=two>12</f>", "<f=two>12</g>"], ["<f=two></f>"]),
        (
            {"type": "tag", "begin": "<t>", "content": _TEXT, "end": "</t>"},
            ["<t></t>", "<t>a < b</t>"],
            ["<t>a", "<t>a</t>b"],
        ),
        (
            _TAGS,
            ["", "no tag", _ONE, f"a {_ONE} b <f=two>1</g>", "a < f"],
            ["<f=", "<f=three>1</f>", f"{_ONE}<f=", '<f=one>{"a": "x"}</f>'],
        ),
        ({**_TAGS, "at_least_one": True}, [_ONE, f"{_ONE} and {_ONE}"], ["", "text"]),
        ({**_TAGS, "stop_after_first": True}, ["text", f"text {_ONE}"], [f"{_ONE} text"]),
        (
            {**_TAGS, "stop_after_first": True, "at_least_one": True},
            [_ONE],
            ["", f"{_ONE}{_ONE}", f"text {_ONE}"],
        ),
        (
            {**_TAGS, "triggers": ["<f=o", "<f=t"]},
            [f"{_ONE}<f=two>1</f> <f=x>"],
            ["<f=ok>"],
        ),
        ({**_TAGS, "excludes": ["no"]}, [f"yes {_ONE} yes"], ["no", f"no {_ONE}", f"{_ONE} no"]),
        (
            {"type": "tag", "begin": "<all>", "content": _TAGS, "end": "</all>"},
            ["<all></all>", f"<all>text {_ONE} text</all>"],
            ["<all>", "<all><f=</all>", "<all></all></all>"],
        ),
        (
            {"type": "tags_with_separator", "tags": [_TAG, _OTHER], "separator": ", "},
            ["", _ONE, f"{_ONE}, <f=two>1</f>, {_ONE}"],
            [f"{_ONE}{_ONE}", f"{_ONE}, "],
        ),
        (
            {
                "type": "tags_with_separator",
                "tags": [_TAG],
                "separator": "",
                "at_least_one": True,
                "stop_after_first": True,
            },
            [_ONE],
            ["", f"{_ONE}{_ONE}"],
        ),
        ({"type": "optional", "content": _const("a")}, ["", "a"], ["aa"]),
        ({"type": "plus", "content": _const("a")}, ["a", "aaa"], [""]),
        ({"type": "star", "content": _const("a")}, ["", "aaa"], ["b"]),
        ({"type": "repeat", "min": 1, "max": 2, "content": _const("a")}, ["a", "aa"], ["", "aaa"]),
        ({"type": "repeat", "min": 2, "max": -1, "content": _const("a")}, ["aa", "aaaa"], ["a"]),
        ({"type": "json_schema", "json_schema": True}, ["[1]", '"x"'], ["x"]),
    ],
)
def test_format_accepts_and_rejects_texts(format: Json, right: list[str], wrong: list[str]) -> None:
    lark = _rules({"type": "structural_tag", "format": format})
    assert [text for text in right if not matches(lark, text)] == []
    assert [text for text in wrong if matches(lark, text)] == []


@pytest.mark.requirement("VN-43")
def test_older_form_matches() -> None:
    lark = _rules(
        {
            "type": "structural_tag",
            "structures": [{"begin": "<f=one>", "schema": _SCHEMA, "end": "</f>"}],
            "triggers": ["<f="],
        }
    )
    assert matches(lark, f"text {_ONE} text") and not matches(lark, "<f=x>")


@pytest.mark.parametrize(
    ("tag", "path"),
    [
        ({}, "tag.format"),
        ({"format": 4}, "tag.format"),
        ({"format": {"type": "token", "token": 4}}, "tag.format.type"),
        ({"format": {"type": ["or"]}}, "tag.format.type"),
        ({"format": {"type": "const_string"}}, "tag.format.value"),
        ({"format": {**_JSON, "style": "qwen_xml"}}, "tag.format.style"),
        ({"format": {**_JSON, "any_order": True}}, "tag.format.any_order"),
        ({"format": {"type": "json_schema", "json_schema": False}}, "tag.format.json_schema"),
        (
            {"format": {"type": "json_schema", "json_schema": {"not": {}}}},
            "tag.format.json_schema",
        ),
        (
            {"format": {"type": "json_schema", "json_schema": {"not": {}, **_LENIENT}}},
            "tag.format.json_schema",
        ),
        ({"format": {"type": "regex", "pattern": "("}}, "tag.format.pattern"),
        ({"format": {"type": "grammar", "grammar": "x"}}, "tag.format.grammar"),
        (
            {"format": {"type": "sequence", "elements": [_TEXT, _const("a")]}},
            "tag.format.elements[0]",
        ),
        ({"format": {"type": "star", "content": _TEXT}}, "tag.format.content"),
        ({"format": {**_TAGS, "triggers": ["<x"]}}, "tag.format.tags[0].begin"),
        ({"format": {**_TAGS, "triggers": []}}, "tag.format.triggers"),
        ({"format": {**_TAGS, "triggers": [""]}}, "tag.format.triggers[0]"),
        ({"format": {**_TAGS, "tags": []}}, "tag.format.tags"),
        ({"format": {**_TAGS, "at_least_one": 1}}, "tag.format.at_least_one"),
        (
            {"format": {"type": "repeat", "min": 2, "max": 1, "content": _const("a")}},
            "tag.format.max",
        ),
        (
            {"format": {"type": "repeat", "min": 0, "max": 10**9, "content": _const("a")}},
            "tag.format.max",
        ),
        ({"structures": [{"begin": "<f"}], "triggers": ["<f"]}, "tag.structures[0].end"),
    ],
)
def test_format_that_cannot_be_enforced_is_refused(tag: Json, path: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        _rules(tag)
    assert refusal.value.param == path


def test_deep_and_large_tags_are_refused() -> None:
    deep: Json = _TEXT
    for _ in range(40):
        deep = {"type": "sequence", "elements": [_const("a"), deep]}
    with pytest.raises(InvalidRequest, match="too many formats"):
        _rules({"format": deep})
    with pytest.raises(InvalidRequest, match="too many formats"):
        _rules({"format": {"type": "or", "elements": [_const("a")] * 2_000}})

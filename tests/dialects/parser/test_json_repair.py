"""Broken JSON is repaired the same way however it is cut, or the call is incomplete."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.dialects.grammar.schema_types import SchemaTypes
from antiphon.dialects.parser.json_repair import JsonRepair
from tests.hypothesis_settings import examples

SCHEMA: dict[str, Any] = {
    "properties": {
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "ok": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "integer"}},
        "deep": {"$ref": "#/$defs/Deep"},
        "maybe": {"anyOf": [{"$ref": "#/$defs/Deep"}, {"type": "null"}]},
        "either": {"type": ["string", "integer"]},
        "zip": {"type": "string"},
    },
    "$defs": {"Deep": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}


def repair(text: str, size: int = 1000, schema: dict[str, Any] = SCHEMA) -> tuple[str, bool]:
    reader = JsonRepair(SchemaTypes(schema))
    parts = [reader.read(text[at : at + size]) for at in range(0, len(text), size)]
    return "".join(parts) + reader.finish(), not reader.is_broken


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"a": "x\ty\n"}', {"a": "x\ty\n"}),
        ('{"a": "C:\\dir \\\'"}', {"a": "C:\\dir '"}),
        ("{'a': 'it\\'s \"b\"', 'c': True}", {"a": 'it\'s "b"', "c": True}),
        ('{"a": None, "b": [1, 2, ], }', {"a": None, "b": [1, 2]}),
        ('{"a": NaN, "b": undefined}', {"a": None, "b": None}),
        (
            "{a: foo, b: +5, c: .5, d: 0x10, e: 007}",
            {"a": "foo", "b": 5, "c": 0.5, "d": 16, "e": 7},
        ),
        ('{"a": {"b": [1', {"a": {"b": [1]}}),
        ('{"a": [1, {"b": 2}, "c": 3}', None),
        ('{"a": 1 "b": 2}', {"a": 1, "b": 2}),
        ('{"a": , "b": 1}', {"a": None, "b": 1}),
        ('{"a":', {"a": None}),
        ('{"a"', {"a": None}),
        ('{"a": (1, 2)}', {"a": [1, 2]}),
        ('{"a": [1,, 2]}', {"a": [1, 2]}),
        ('{"a": [1, 2}', {"a": [1, 2]}),
        ("null", {}),
        ("None", {}),
        ("[] ", {}),
        ('""', {}),
        ("[ ]", {}),
        ('[{"a": 1}]', {"a": 1}),
        ('```json\n{"a": 1}\n```', {"a": 1}),
        ('```\n[{"a": 1}]```', {"a": 1}),
        ("```python\n{}", None),
        ("[1]", None),
        ("true", None),
        ('"a"', None),
        ('{"a": "\\ud83d\\ude00 \\ude00"}', {"a": "😀 \ufffd"}),
        ('{"deep": {"n": "42"}, "maybe": {"n": "42"}}', {"deep": {"n": 42}, "maybe": {"n": 42}}),
        ('{"n": "42", "x": "1.5", "ok": "true"}', {"n": 42, "x": 1.5, "ok": True}),
        ('{"n": "5.0", "ok": "False"}', {"n": 5, "ok": False}),
        ('{"tags": ["1", 2], "deep": {"n": "3"}}', {"tags": [1, 2], "deep": {"n": 3}}),
        ('{"tags": "[1, 2]", "deep": "{}"}', {"tags": [1, 2], "deep": {}}),
        ('{"tags": "", "deep": "", "n": "many"}', {"tags": [], "deep": {}, "n": "many"}),
        ('{"either": "42", "zip": 123}', {"either": "42", "zip": "123"}),
    ],
)
def test_faults_are_repaired(written: str, expected: object) -> None:
    texts = {repair(written, size) for size in (1, 2, 3, 1000)}
    ((text, is_complete),) = texts
    assert is_complete is (expected is not None)
    if expected is not None:
        assert json.loads(text) == expected


@pytest.mark.parametrize(
    "written",
    ['{"a": "x', '{"a": "b" c', "prose", "{invalid json}", '{"x"\\}', "]", '{"a": {"b": 1]}'],
)
def test_what_cannot_be_repaired_is_passed_on(written: str) -> None:
    ((text, is_complete),) = {repair(written, size) for size in (1, 2, 1000)}
    assert not is_complete
    assert text.replace('"', "").startswith(written.replace('"', "")[:2])


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@examples(50, fuzz=2000)
@given(value=st.dictionaries(st.text(), values), size=st.integers(1, 20), ascii_only=st.booleans())
def test_valid_json_keeps_its_value(value: Any, size: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    repaired, is_complete = repair(text, size, {})
    assert is_complete and json.loads(repaired) == json.loads(text)


@examples(100, fuzz=5000)
@given(text=st.text("{}[]()\\\"',:= \nabntrue0-.5"), size=st.integers(1, 5))
def test_complete_result_is_json(text: str, size: int) -> None:
    repaired, is_complete = repair(text, size)
    assert (repaired, is_complete) == repair(text)
    if is_complete and repaired.strip():
        json.loads(repaired)

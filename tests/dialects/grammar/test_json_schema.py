"""What strict means for a schema, and which schemas can be enforced."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from antiphon.dialects.grammar.json_schema import (
    check_schema,
    check_strict,
    forbid_extra_properties,
    is_enforced,
    llguidance_schema,
    require_all_properties,
    short_grammar_fault,
)
from antiphon.dialects.grammar.schema_types import SchemaTypes
from antiphon.errors import InvalidRequest

CLOSED: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}


def test_strict_schema_passes() -> None:
    check_strict({**CLOSED, "$defs": {"d": CLOSED}}, "p")
    check_strict({"type": "array", "items": CLOSED}, "p")


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "object"}, "p"),
        ({"type": "array", "items": {**CLOSED, "required": []}}, "p.items"),
        ({**CLOSED, "$defs": {"d": {"type": "object"}}}, "p.$defs.d"),
        ({"anyOf": [CLOSED, {**CLOSED, "additionalProperties": True}]}, "p.anyOf[1]"),
    ],
)
def test_open_object_is_named_in_the_error(schema: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_strict(schema, "p")
    assert (refused.value.param, refused.value.code) == (path, "invalid_json_schema")


def test_strict_form_closes_a_copy() -> None:
    loose = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {}}}}}
    strict = require_all_properties(loose)
    assert strict["required"] == ["a"] and strict["additionalProperties"] is False
    assert strict["properties"]["a"]["required"] == ["b"]
    assert "required" not in loose
    check_strict(strict, "p")


def test_closed_form_keeps_optional_properties() -> None:
    loose = {"type": "object", "properties": {"a": {"type": "object"}}, "required": []}
    assert forbid_extra_properties(loose) == {**loose, "additionalProperties": False}
    open_schema = {**loose, "additionalProperties": True}
    assert forbid_extra_properties(open_schema) == open_schema


def test_keyword_that_cannot_be_enforced_is_named() -> None:
    with pytest.raises(InvalidRequest, match="'uniqueItems'") as refused:
        check_schema('{"type": "array", "uniqueItems": true}', "p")
    assert refused.value.param == "p"
    check_schema('{"type": "array"}', "p")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
        {"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/$defs/x"}}, "$ref": "#/$defs/x"},
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_circular_reference_is_refused(schema: Any, strict: bool) -> None:
    with pytest.raises(InvalidRequest, match="leads to itself") as caught:
        is_enforced(schema, "p", strict=strict)
    assert (caught.value.param, caught.value.code) == ("p", "invalid_json_schema")


def test_chained_references_are_accepted() -> None:
    again = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    schema = {**CLOSED, "properties": {"a": again}, "$defs": {"x/y": {"$ref": "#/$defs/z"}}}
    schema["$defs"] |= {"z": {"type": "integer"}}
    assert is_enforced(schema, "p", strict=True)
    values = {"enum": [{"$ref": "#/enum/0"}]}  # which is a value, and no schema
    assert is_enforced(values, "p", strict=True)


@pytest.mark.parametrize(
    "pattern",
    [r'^[^"]+$', r"^[^\\]+$", r'^[^]"\\]+$', r'^[^\\/:*?"<>|-]+$', r'x[^"\s]y', r'[\["][^"]\[^a'],
)
def test_negated_class_excludes_its_characters_in_json(pattern: str) -> None:
    """A quote and a backslash too, which are escaped there."""
    llguidance: Any = pytest.importorskip("llguidance")
    inner = {"type": "string", "pattern": pattern}
    schema = llguidance_schema(
        {"type": "object", "properties": {"pattern": inner}, "default": inner}
    )
    assert schema["default"] == inner
    grammar = llguidance.grammar_from("lark", f"start: %json {json.dumps(schema)}")
    for value in (
        '"',
        "\\",
        'a"',
        "a\\b",
        "ab",
        "é 😀",
        'x"y',
        "xéy",
        "x y",
        "\n",
        '"x[^a',
        '""[^a',
    ):
        matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar)
        ids = list(json.dumps({"pattern": value}, ensure_ascii=False).encode())
        obeys = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        assert obeys == (re.search(pattern, value) is not None), value


def test_grammar_fault_is_one_short_line() -> None:
    fault = short_grammar_fault("start: nowhere")
    assert fault is not None and "\n" not in fault and "nowhere" in fault
    assert short_grammar_fault('start: "a"') is None


def test_strict_schema_must_be_enforced_whole() -> None:
    unique = {"type": "array", "uniqueItems": True}
    assert is_enforced(CLOSED, "p", strict=False) and not is_enforced(unique, "p", strict=False)
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        is_enforced(unique, "p", strict=True)


@pytest.mark.parametrize("value", [5, "x", {"a": 1}, [5], [{}], None], ids=str)
@pytest.mark.parametrize(
    "key", ["type", "enum", "anyOf", "allOf", "properties", "required", "$ref"]
)
def test_invalid_keyword_is_a_fault_of_the_schema(key: str, value: Any) -> None:
    """Nothing that reads a schema fails because of it: only the check tells what is wrong."""
    schema = {"type": "object", "additionalProperties": False, key: value}
    types = SchemaTypes({"properties": {"a": schema}})
    types.of_property("a")
    for read in (types.of, types.strings, types.without_strings, types.forms):
        read(schema)
    require_all_properties(schema)
    try:
        check_strict(schema, "p")
        check_schema(json.dumps(schema), "p")
    except InvalidRequest as refused:
        assert refused.code == "invalid_json_schema"


def test_unknown_keyword_is_reported_with_its_path() -> None:
    inner = {"anyOf": [{"type": "string"}, {"type": "array", "contains": {}}]}
    with pytest.raises(InvalidRequest) as refused:
        is_enforced({"type": "object", "properties": {"a": inner}}, "p", strict=True)
    assert refused.value.param == "p.properties.a.anyOf[1]"
    assert "'contains'" in refused.value.message

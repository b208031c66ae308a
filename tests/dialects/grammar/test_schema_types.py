"""Which values a schema allows: their types, and the forms of objects."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.dialects.grammar.schema_types import SchemaTypes


def forms(schema: dict[str, Any]) -> list[Any]:
    return SchemaTypes(schema).forms(schema)


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/name"}]}, {"integer", "string"}),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"enum": ["a", None, 1, True]}, {"string", "null", "integer", "boolean"}),
        ({"const": 1.5}, {"number"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "#/nowhere"}, set()),
        ({}, set()),
        (True, set()),
    ],
)
def test_property_types_are_found(schema: Any, types: set[str]) -> None:
    root = {
        "properties": {"it": schema},
        "$defs": {"name": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}},
    }
    assert SchemaTypes(root).of_property("it") == SchemaTypes(root).of(schema) == types
    assert SchemaTypes(root).of_property("other") == set()
    assert SchemaTypes({}).of_property("it") == set()


def test_types_of_a_property_follow_circular_alternatives() -> None:
    schema: dict[str, Any] = {
        "properties": {"x": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 100 + [{"type": "string"}]}},
    }
    assert SchemaTypes(schema).of_property("x") == {"string"}


def test_inner_schemas_are_found_behind_references_and_alternatives() -> None:
    inner = {"properties": {"n": {"$ref": "#/$defs/number"}}}
    rows = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/rows"}]}
    types = SchemaTypes(
        {
            "properties": {"rows": rows},
            "$defs": {
                "number": {"type": "integer"},
                "rows": {"items": {"allOf": [{"$ref": "#/$defs/row"}]}},
                "row": inner,
            },
        }
    )
    row = types.items(types.member(types.root, "rows"))
    assert types.member(row, "n") == {"type": "integer"}
    assert types.member(row, "other") == types.items(row) == types.member({}, "n") == {}


def test_alternatives_of_an_object_are_bounded() -> None:
    arms = [{"properties": {name: {}}} for name in ("a", "b")]
    assert len(forms({"allOf": [{"anyOf": arms}] * 3})) == 8
    assert len(forms({"allOf": [{"anyOf": arms}] * 40})) == 64
    circular = {"anyOf": [{"$ref": "#/$defs/a"}] * 100, "$defs": {"a": {}}}
    circular["$defs"]["a"] = {"anyOf": circular["anyOf"]}  # type: ignore[index, call-overload]
    assert len(forms(circular)) == 64


def test_merged_object_has_the_properties_of_all_parts_in_order() -> None:
    schema = {
        "properties": {"a": {}},
        "required": ["a"],
        "allOf": [{"properties": {"b": {}}, "required": ["b"]}, {"additionalProperties": False}],
    }
    (form,) = forms(schema)
    assert list(form["properties"]) == ["a", "b"]
    assert form["required"] == ["a", "b"]
    assert form["additionalProperties"] is False

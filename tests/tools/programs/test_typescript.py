"""TypeScript types from JSON schemas."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.tools.programs.typescript import function_declaration, schema_type


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, "string"),
        ({"type": "integer"}, "number"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"enum": ["a", 1]}, '"a" | 1'),
        ({"const": True}, "true"),
        ({"type": "array", "items": {"type": ["string", "null"]}}, "(string | null)[]"),
        ({"type": "array"}, "unknown[]"),
        ({"type": "object"}, "Record<string, unknown>"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "Record<string, number>"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/x"}]}, "string | unknown"),
        (
            {
                "type": "object",
                "properties": {
                    "sku": {"type": "string", "description": "Which\n one */"},
                    "a-b": {"type": "boolean"},
                },
                "required": ["sku"],
            },
            '{ sku: string /* Which one */; "a-b"?: boolean }',
        ),
        (True, "unknown"),
        ({"properties": "nonsense", "type": 7}, "Record<string, unknown>"),
    ],
)
def test_schema_becomes_a_type(schema: Any, expected: str) -> None:
    assert schema_type(schema) == expected


def test_deep_schemas_are_cut() -> None:
    schema: dict[str, Any] = {"type": "array"}
    schema["items"] = schema
    assert schema_type(schema).startswith("unknown[]")


def test_declaration_includes_the_description() -> None:
    assert function_declaration(
        ("crm", "find-one"), "Finds.\n\nSlow.", "input: string", "string"
    ) == ('// Finds.\n// Slow.\ntools.crm["find-one"](input: string): Promise<string>')

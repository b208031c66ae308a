"""Schemas as TypeScript."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.tools.programs.typescript import function_declaration, schema_type


@pytest.mark.parametrize(
    ("schema", "said"),
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
def test_a_schema_is_a_type(schema: Any, said: str) -> None:
    assert schema_type(schema) == said


def test_deep_schemas_end() -> None:
    schema: dict[str, Any] = {"type": "array"}
    schema["items"] = schema
    assert schema_type(schema).startswith("unknown[]")


def test_functions_are_declared_with_what_they_are_for() -> None:
    assert function_declaration(
        ("crm", "find-one"), "Finds.\n\nSlow.", "input: string", "string"
    ) == ('// Finds.\n// Slow.\ntools.crm["find-one"](input: string): Promise<string>')

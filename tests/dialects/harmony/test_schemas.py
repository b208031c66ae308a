"""What of a schema the model is shown: nothing becomes ``any`` that TypeScript has a word for."""

from __future__ import annotations

from typing import Any

import pytest
from openai_harmony import DeveloperContent, Message, Role, ToolDescription

from antiphon.dialects.harmony.schemas import plain_schema
from tests.dialects.gpt_oss import encoding


def typescript(schema: dict[str, Any]) -> str:
    """The arguments as the library writes them, blanks made one."""
    tool = ToolDescription.new("f", "", plain_schema(schema))
    content = DeveloperContent().with_function_tools([tool])
    text = encoding().decode(
        encoding().render(Message.from_role_and_content(Role.DEVELOPER, content))
    )
    body = text.partition("type f = ")[2].rpartition(" => any;")[0]
    return " ".join(body.split())


def rendered_property(inner: Any, **whole: Any) -> str:
    """How the one property ``a`` is written."""
    text = typescript({"type": "object", "properties": {"a": inner}, "required": ["a"], **whole})
    assert text.startswith("(_: { ") and text.endswith(" })"), text
    return text.removeprefix("(_: { ").removesuffix(" })").removesuffix(",").rstrip()


STRING, INTEGER, NULL = {"type": "string"}, {"type": "integer"}, {"type": "null"}
CASES: list[tuple[Any, str]] = [
    (STRING, "a: string"),
    ({"type": ["string", "null"]}, "a: string | null"),
    ({"anyOf": [STRING, NULL]}, "a: string | null"),
    ({"anyOf": [STRING, NULL], "description": "d", "default": None}, "// d a: string | null"),
    ({"anyOf": [STRING, INTEGER]}, "a: | string | number"),
    ({"oneOf": [STRING, INTEGER, NULL]}, "a: | string | number | null"),
    ({"type": ["string", "integer", "null"]}, "a: string | number | null"),
    ({"type": ["array", "null"], "items": STRING}, "a: string[] | null"),
    ({"type": ["object", "string"], "properties": {"b": STRING}}, "a: | { b?: string, } | string"),
    ({"type": ["string", "null"], "enum": ["x", "y", None]}, 'a: "x" | "y" | null'),
    ({"enum": ["x", "y"]}, 'a: "x" | "y"'),
    ({"const": "x"}, 'a: "x"'),
    ({"enum": [1, 2]}, "// One of: 1, 2. a: number"),
    ({"const": None}, "a: any | null"),
    ({"enum": ["x", 1]}, '// One of: "x", 1. a: | "x" | number'),
    ({"properties": {"b": INTEGER}}, "a: { b?: number, }"),
    ({"items": STRING}, "a: string[]"),
    ({"prefixItems": [STRING, INTEGER], "type": "array"}, "a: | string | number[]"),
    ({"type": "array"}, "a: Array<any>"),
    ({"type": "array", "items": True}, "a: Array<any>"),
    ({"allOf": [{"type": "string"}, {"description": "d"}]}, "// d a: string"),
    (
        {
            "allOf": [
                {"properties": {"b": STRING}, "required": ["b"]},
                {"properties": {"c": STRING}},
            ]
        },
        "a: { b: string, c?: string, }",
    ),
    ({"type": "string", "description": "two\n\n lines"}, "// two lines a: string"),
    ({"type": "string", "default": "two\nlines"}, 'a: string, // default: "two lines"'),
    (
        {"type": "object", "additionalProperties": STRING},
        "// Any keys, with values of type string. a: // Any keys, with values of type string. { }",
    ),
    ({"type": "string", "nullable": True, "title": "A", "minLength": 3}, "a: string | null"),
    ({}, "a: any"),
    (True, "a: any"),
    ("nonsense", "a: any"),
    ({"type": 3, "enum": "x", "anyOf": {}, "required": 3}, "a: any"),
    ({"type": [{}]}, "a: any"),
]


@pytest.mark.parametrize(("inner", "expected"), CASES, ids=[str(case[0])[:60] for case in CASES])
def test_schema_is_rendered_as_typescript(inner: Any, expected: str) -> None:
    assert rendered_property(inner) == expected


def test_references_are_expanded() -> None:
    definitions = {"City": {"type": "object", "properties": {"name": STRING}}, "a/b~": STRING}
    assert (
        rendered_property({"$ref": "#/$defs/City"}, **{"$defs": definitions})
        == "a: { name?: string, }"
    )
    assert rendered_property({"$ref": "#/$defs/a~1b~0"}, **{"$defs": definitions}) == "a: string"
    assert rendered_property(
        {"$ref": "#/definitions/City", "description": "d"}, definitions=definitions
    ) == ("// d a: // d { name?: string, }")


def test_circular_and_missing_references_are_named() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "value": INTEGER}}
    assert rendered_property({"$ref": "#/$defs/Node"}, **{"$defs": {"Node": node}}) == (
        "a: { // (Node) next?: any, value?: number, }"
    )
    assert rendered_property({"$ref": "#"}).count("a:") == 2  # the whole, once in itself
    for nowhere in ("#/$defs/Absent", "https://example.com/x", "#/required/0"):
        assert "a: any" in rendered_property({"$ref": nowhere})
    loop = {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}
    assert "a: any" in rendered_property({"$ref": "#/$defs/A"}, **{"$defs": loop})
    own = {"A": {"allOf": [{"$ref": "#/$defs/A"}, STRING]}}
    assert rendered_property({"$ref": "#/$defs/A"}, **{"$defs": own}).endswith("a: string")


def test_small_schema_does_not_grow_huge() -> None:
    definitions: dict[str, Any] = {
        f"D{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/D{n + 1}"}] * 10}
        for n in range(20)
    }
    definitions["D20"] = STRING
    assert len(rendered_property({"$ref": "#/$defs/D0"}, **{"$defs": definitions})) < 200_000
    deep: dict[str, Any] = STRING
    for _ in range(60):
        deep = {"type": "array", "items": deep}
    assert rendered_property(deep).startswith("a: Array<any>[]")


def test_empty_and_alternative_arguments_are_rendered() -> None:
    for nothing in ({}, {"type": "object"}, {"type": "object", "properties": {}}):
        assert plain_schema(nothing) is None
    forms = [{"properties": {"b": STRING}}, {"properties": {"c": STRING}}]
    assert typescript({"type": "object", "anyOf": forms}) == (
        "(_: | { b?: string, } | { c?: string, })"
    )
    described = {"description": "whole\nthing", "title": "T", "properties": {"b": STRING}}
    assert typescript(described) == "(_: { b?: string, })"

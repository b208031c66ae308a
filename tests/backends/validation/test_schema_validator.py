"""JSON judged by schemas: every keyword, in bounds of time, and nothing is fetched."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.backends.validation import schema_validator as judge
from antiphon.backends.validation.schema_validator import SchemaValidator
from antiphon.backends.validation.validator_worker import validate_json
from antiphon.errors import InvalidRequest

DRAFT_4 = "http://json-schema.org/draft-04/schema#"


@pytest.mark.parametrize(
    ("schema", "right", "wrong", "why"),
    [
        ({"uniqueItems": True}, "[1, 2]", "[1, 1]", "non-unique"),
        ({"properties": {"a": {"not": {"type": "string"}}}}, "{}", '{"a": "x"}', "at a: "),
        ({"oneOf": [{"type": "number"}, {"minimum": 3}]}, "2", "4", "more than one"),
        ({"if": {"type": "string"}, "then": {"maxLength": 1}}, '"a"', '"ab"', "longer"),
        ({"$schema": DRAFT_4, "dependencies": {"a": ["b"]}}, "{}", '{"a": 1}', '"b"'),
        ({"$schema": "https://nobody/knows", "uniqueItems": True}, "[]", "[1, 1]", "non-unique"),
        ({"items": {"properties": {"x": {"contains": {}}}}}, "[]", '[{"x": []}]', "at [0].x: "),
        ({"pattern": "^(?!a)"}, '"b"', '"a"', "match"),
        ({"format": "uri-reference"}, '"/a"', '"a b"', "uri-reference"),
        ({"uniqueItems": True}, "[]", "[NaN", "no JSON"),
        ({"items": {"$ref": "#"}}, "[" * 400 + "]" * 400, "[" * 700 + "]" * 700, "deep"),
    ],
)
def test_what_is_wrong_is_told(schema: Any, right: str, wrong: str, why: str) -> None:
    assert validate_json(schema, right) == {}
    assert why in validate_json(schema, wrong)["fault"]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "file:///etc/passwd"},
        {"$ref": "http://127.0.0.1:1/x"},
        {"$ref": "#/nowhere"},
        {"type": "nothing"},
        {"pattern": "("},
    ],
)
def test_schemas_that_nothing_can_be_judged_by(schema: Any) -> None:
    assert validate_json(schema, None)["schema"]


async def test_it_is_done_in_a_process_of_its_own() -> None:
    unique = SchemaValidator({"uniqueItems": True}, "p")
    await unique.check()
    assert await unique.fault("[1, 2]") is None
    assert await unique.fault("[1, 1]") == "[1,1] has non-unique elements"
    with pytest.raises(InvalidRequest) as refused:
        await SchemaValidator({"not": {"$ref": "#/x"}}, "p").check()
    assert (refused.value.param, refused.value.code) == ("p", "invalid_json_schema")


async def test_what_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "_SECONDS", 0.5)
    twice = {
        f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]}
        for n in range(60)
    }
    schema = {"$defs": {**twice, "a60": {"type": "string"}}, "not": {"$ref": "#/$defs/a0"}}
    assert await SchemaValidator(schema, "p").fault('"x"') == "it takes too long to check."

"""Grammars of clients: costly ones compile in a process with limits, whose death is a refusal."""

from __future__ import annotations

import json

import pytest

from antiphon.dialects.grammar.json_schema import check_schema, lenient_schema, llguidance_schema
from antiphon.errors import InvalidRequest
from antiphon.grammars.check import grammar_fault, is_cheap

pytest.importorskip("llguidance")


def chained(count: int) -> str:
    """A schema whose definitions form a chain of ``count`` references."""
    definitions = {
        f"d{n}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}}
        for n in range(count)
    }
    return json.dumps(
        {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": {"type": "string"}}}
    )


def aliases(count: int) -> str:
    """A schema whose definitions are ``count`` references, each to the next one."""
    definitions = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(count)}
    return json.dumps(
        {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{count}": {"type": "string"}}}
    )


def rules(count: int) -> str:
    """A Lark grammar with a chain of ``count`` rules."""
    chain = "".join(f"r{n}: r{n + 1}\n" for n in range(count))
    return f'start: r0\n{chain}r{count}: "x"'


@pytest.mark.parametrize("count", [2_000, 5_000])
def test_a_chain_of_references_does_not_kill_the_process(count: int) -> None:
    with pytest.raises(InvalidRequest, match="too long or too much memory") as caught:
        check_schema(chained(count), "text.format.schema")
    assert caught.value.param == "text.format.schema"


def test_a_chain_of_rules_does_not_kill_the_process() -> None:
    assert grammar_fault(rules(5_000)) == "it takes too long or too much memory to compile."


def test_a_complex_grammar_that_compiles_is_accepted() -> None:
    check_schema(chained(100), "x")
    properties = {f"name{n}": {"type": "string"} for n in range(500)}
    check_schema(json.dumps({"type": "object", "properties": properties}), "x")


def test_the_schemas_of_usual_tools_are_checked_without_a_process() -> None:
    properties = {f"name{n}": {"type": "string", "maxLength": 200} for n in range(30)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    assert is_cheap(f"start: %json {json.dumps(schema)}")


@pytest.mark.parametrize(
    "lark",
    [
        rules(200),
        f"start: %json {chained(200)}",
        "start: " + "(" * 60 + '"x"' + ")" * 60,
        'start: %json {"allOf": [{"type": "string"}]}',
        'start: "x"{1,5000}',
        'start: "' + "x" * 20_000 + '"',
    ],
)
def test_large_deep_and_multiplying_grammars_are_not_cheap(lark: str) -> None:
    assert not is_cheap(lark)


def test_a_long_chain_of_aliases_is_followed_in_linear_time() -> None:
    with pytest.raises(InvalidRequest):
        check_schema(aliases(20_000), "x")


def test_a_circle_of_aliases_is_refused() -> None:
    schema = {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    }
    with pytest.raises(InvalidRequest, match="leads to itself"):
        check_schema(json.dumps(schema), "x")


@pytest.mark.parametrize("keyword", ["minItems", "maxItems"])
def test_a_count_that_a_grammar_unrolls_is_refused_by_name(keyword: str) -> None:
    schema = {"type": "array", "items": {"type": "string"}, keyword: 10_000_000}
    with pytest.raises(InvalidRequest, match=f"'{keyword}' may be at most 10000"):
        check_schema(json.dumps(schema), "x")


def test_a_lenient_grammar_leaves_a_large_maximum_to_the_validator() -> None:
    schema = {"type": "array", "items": {"type": "string"}, "maxItems": 10_000_000}
    check_schema(json.dumps(lenient_schema(llguidance_schema(schema))), "x")


@pytest.mark.parametrize(
    ("pattern", "rewritten"),
    [
        ("[^a]", r"[^\x00a]"),
        ("[^]a]", r"[^]\x00a]"),
        ("a[b]c[^d]", r"a[b]c[^\x00d]"),
        ("[^[^a]", r"[^\x00[^a]"),
        (r"\[^a]", r"\[^a]"),
        (r"[a\]^b][^c]", r"[a\]^b][^\x00c]"),
        ("[]^a]", "[]^a]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_negated_classes_of_a_pattern_exclude_nul(pattern: str, rewritten: str) -> None:
    assert llguidance_schema({"pattern": pattern})["pattern"] == rewritten

"""Deeply nested requests are answered or refused with a 400: no recursion error becomes a 500."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import Serve
from tests.conformance.server import engine

Json = dict[str, Any]

#: Levels: below the limit of a body, above it, above Python's limit, far above.
DEPTHS = (50, 300, 1_000, 2_000, 20_000)

#: Half of a surrogate pair, which a second JSON parser reads.
_HALF = '"\\ud800"'


def _nested(depth: int, before: str, inner: str, after: str) -> str:
    return before * depth + inner + after * depth


def _values(depth: int) -> str:
    return _nested(depth, '{"a": ', "1", "}")


def _tool(schema: str) -> str:
    return f'{{"tools": [{{"type": "function", "name": "f", "parameters": {schema}}}]}}'


def _format(schema: str, strict: str = "false") -> str:
    return (
        '{"text": {"format": {"type": "json_schema", "name": "n", "strict": '
        f'{strict}, "schema": {schema}}}}}}}'
    )


def _objects(depth: int) -> str:
    return _nested(depth, '{"type": "object", "properties": {"a": ', "{}", "}}")


def _arrays(depth: int) -> str:
    return _nested(depth, '{"type": "array", "items": ', "{}", "}")


def _alternatives(depth: int) -> str:
    return _nested(depth, '{"anyOf": [', '{"type": "string"}', "]}")


def _regex(depth: int) -> str:
    return json.dumps({"type": "string", "pattern": _nested(depth, "(", "a", ")")})


def _call_output(output: str) -> str:
    call = '{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}'
    return (
        f'{{"input": [{call}, {{"type": "function_call_output", "call_id": "c", '
        f'"output": {output}}}]}}'
    )


def _call_arguments(arguments: str) -> str:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "c", "output": arguments}
    return json.dumps({"input": [call, output, {"role": "user", "content": "hi"}]})


#: What is nested → the members of a request's body.
BODIES: dict[str, Callable[[int], str]] = {
    "schema of a tool": lambda depth: _tool(_objects(depth)),
    "array schema of a tool": lambda depth: _tool(_arrays(depth)),
    "alternatives of a tool": lambda depth: _tool(_alternatives(depth)),
    "pattern of a tool": lambda depth: _tool(_regex(depth)),
    "schema of a format": lambda depth: _format(_objects(depth)),
    "alternatives of a format": lambda depth: _format(_alternatives(depth)),
    "strict schema": lambda depth: _format(_objects(depth), "true"),
    "pattern of a format": lambda depth: _format(_regex(depth)),
    "input": lambda depth: f'{{"input": {_nested(depth, "[", "", "]")}}}',
    "content": lambda depth: (
        f'{{"input": [{{"role": "user", "content": {_nested(depth, "[", "", "]")}}}]}}'
    ),
    "tool output": lambda depth: _call_output(_nested(depth, "[", "", "]")),
    "output as text": lambda depth: _call_arguments(_values(depth)),
    "array as text": lambda depth: _call_arguments(_nested(depth, "[", "1", "]")),
    "metadata": lambda depth: f'{{"metadata": {_values(depth)}}}',
    "template arguments": lambda depth: f'{{"chat_template_kwargs": {_values(depth)}}}',
    "half of a surrogate pair": lambda depth: f'{{"input": {_nested(depth, "[", _HALF, "]")}}}',
    "regex of a custom tool": lambda depth: json.dumps(
        {"tools": [_custom_tool("regex", _nested(depth, "(", "a", ")"))]}
    ),
    "Lark of a custom tool": lambda depth: json.dumps(
        {"tools": [_custom_tool("lark", "start: " + _nested(depth, "(", '"a"', ")"))]}
    ),
}


def _custom_tool(syntax: str, definition: str) -> Json:
    form = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "c", "format": form}


@pytest.mark.requirement("API-NESTING")
@pytest.mark.parametrize("what", BODIES)
@pytest.mark.parametrize("kind", ["template", "scripted"])
async def test_deeply_nested_requests_are_answered_or_refused(
    serve: Serve, what: str, kind: str
) -> None:
    server = serve(engine(lambda prompt: '"a"') if kind == "template" else ['"a"'] * 50)
    for depth in DEPTHS:
        body = f'{{"model": "tiny", "input": "hi", {BODIES[what](depth)[1:]}'
        for path in ("responses", "responses/input_tokens"):
            reply = await server.client.post(
                f"/v1/{path}", content=body, headers={"content-type": "application/json"}
            )
            assert reply.status_code in (200, 400), (depth, path, reply.text[:300])
            if reply.status_code == 200 and path == "responses":
                assert reply.json()["status"] in ("completed", "incomplete"), (depth, reply.text)
            elif reply.status_code == 400:
                assert reply.json()["error"]["message"]
    assert "RecursionError" not in server.log.getvalue()

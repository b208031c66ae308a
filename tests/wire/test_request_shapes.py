"""A request of a known shape is the same request, and shapes take limited memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS
from antiphon.wire.parsing.requests import parse_create_response
from antiphon.wire.request_shapes import RequestShapes

_TOOL = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    "strict": True,
}
_SHAPES: list[dict[str, Any]] = [
    {},
    {"model": "m", "instructions": "Be brief.", "tools": [_TOOL], "tool_choice": "required"},
    {"tools": [_TOOL], "tool_choice": {"type": "function", "name": "look"}},
    {"tools": [{"type": "web_search"}], "temperature": 0.5, "text": {"verbosity": "low"}},
    {"tools": [], "reasoning": {"effort": "low"}, "store": False, "unknown": {"a": [1]}},
    {"generation_config": {"temperature": 0.1}, "background": True},
    {"previous_input_messages": [{"role": "user", "content": "before"}]},
    {"tools": None, "instructions": None},
    {"prompt": {"id": "pmpt_1"}},
]
_OWN: list[dict[str, Any]] = [
    {"input": "hi"},
    {"input": [{"role": "user", "content": "hi"}], "stream": True, "metadata": {"a": "b"}},
    {"input": "hi", "previous_response_id": "resp_" + "0" * 48, "user": "ann"},
    {"input": "hi", "conversation": "conv_" + "0" * 48, "prompt_cache_key": "k"},
    {"input": "lone \ud800 surrogate", "stream": None, "client_metadata": {"x": 1}},
    {"input": "hi", "stream": True, "stream_options": {"include_obfuscation": False}},
    {},
    {"input": 1},
    {"input": "hi", "metadata": {"a": 1}},
    {"input": "hi", "stream_options": {}},
    {"input": [{"type": "function_call_output", "output": "x"}]},
    {"input": "hi", "previous_response_id": "wrong"},
]


def _parse(fields: dict[str, Any], shapes: RequestShapes | None) -> Any:
    """The request, or the error."""
    try:
        return parse_create_response(json.dumps(fields).encode(), DEFAULT_LIMITS, shapes)
    except InvalidRequest as error:
        return error.message, error.param, error.code


@given(
    requests=st.lists(
        st.tuples(st.sampled_from(_SHAPES), st.sampled_from(_OWN), st.booleans()), max_size=8
    )
)
def test_known_shape_gives_the_same_request(requests: list[tuple[Any, Any, bool]]) -> None:
    shapes = RequestShapes()
    for shape, own, is_own_first in requests:
        fields = {**own, **shape} if is_own_first else {**shape, **own}
        assert _parse(fields, shapes) == _parse(fields, None)


@pytest.mark.parametrize("body", [b"[]", b"{", b"", b'{"input": "hi"', b'"x"', b"\xff", b"null"])
def test_other_bodies_are_rejected_as_before(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as expected:
        parse_create_response(body)
    with pytest.raises(InvalidRequest) as found:
        parse_create_response(body, DEFAULT_LIMITS, RequestShapes())
    assert found.value.message == expected.value.message


def test_tools_of_one_shape_are_one_object() -> None:
    shapes = RequestShapes()
    fields = _SHAPES[1]
    _parse({**fields, "input": "a"}, shapes)
    one, other = (_parse({**fields, "input": text}, shapes) for text in "bc")
    assert one.tools is other.tools and (one.input, other.input) != (other.input, one.input)
    shape = shapes.find_by_tools(one.tools)
    assert shape is not None and shape.template.input is None
    assert shapes.find_by_tools((*one.tools, *one.tools)) is None


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "mcp", "server_label": "a", "server_url": "https://a.test", "authorization": "x"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "shell", "environment": {"type": "container_auto"}},
    ],
)
def test_shape_that_may_hold_a_secret_is_not_kept(tool: dict[str, Any]) -> None:
    shapes = RequestShapes()
    for _ in range(2):
        request = _parse({"tools": [tool], "input": "hi"}, shapes)
        assert shapes.find_by_tools(request.tools) is None


def test_shapes_are_limited_in_bytes() -> None:
    shapes, requests = RequestShapes(max_bytes=10_000), []
    for number in range(100):
        tool = {**_TOOL, "description": f"{number} " + "x" * 1_000}
        requests.append(_parse({"tools": [tool], "input": "hi"}, shapes))
        assert shapes.find_by_tools(requests[-1].tools) is not None
    kept = [shapes.find_by_tools(request.tools) is not None for request in requests]
    assert kept == [False] * (100 - sum(kept)) + [True] * sum(kept)
    assert 5 < sum(kept) < 10
    large = {**_TOOL, "description": "x" * 20_000}
    request = _parse({"tools": [large], "input": "hi"}, shapes)
    assert shapes.find_by_tools(request.tools) is None


def test_values_are_derived_once_from_the_same_objects() -> None:
    shapes, calls = RequestShapes(), list[Any]()

    def combine(tools: tuple[Any, ...], number: int) -> int:
        calls.append((tools, number))
        return len(calls)

    request = _parse({**_SHAPES[1], "input": "a"}, shapes)
    shape = shapes.find_by_tools(request.tools)
    assert shape is not None
    assert [shape.derive(combine, (request.tools,), n) for n in (1, 2, 1)] == [1, 2, 1]
    assert shape.derive(combine, ((*request.tools,),), 1) == 3, "an equal object"
    assert [shape.derive(combine, (request.tools,), {}) for _ in range(2)] == [4, 5], "no hash"
    for number in range(1000):
        shape.derive(combine, (request.tools,), number)
    assert shape.derive(combine, (request.tools,), 0) == len(calls) > 1000, "an old value is gone"

"""A request of a known shape is the same request, and shapes take limited memory."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from antiphon.errors import InvalidRequest
from antiphon.runs.request.initial_response import initial_response
from antiphon.wire.parsing.json_body import DEFAULT_LIMITS
from antiphon.wire.parsing.requests import parse_create_response
from antiphon.wire.request_shapes import RequestShapes, derive, shape_of
from antiphon.wire.response import encodable
from antiphon.wire.tools import SharedTools

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
    {
        "tools": [{**_TOOL, "description": '\\"[' * 1_000}],
        "instructions": '\u00e4"tools":' * 500,
    },
    {"instructions": '"tools": [' * 500, "tools": [{**_TOOL, "description": "x" * 2_000}]},
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
    {"input": [{"role": "user", "content": "hi", "tools": [_TOOL], "instructions": "y" * 2_000}]},
    {"input": "hi", "metadata": {"tools": json.dumps([_TOOL])}},
]


def _parse(fields: dict[str, Any], shapes: RequestShapes | None) -> Any:
    """The request, or the error."""
    return _parse_body(json.dumps(fields).encode(), shapes)


def _parse_body(body: bytes, shapes: RequestShapes | None) -> Any:
    try:
        return parse_create_response(body, DEFAULT_LIMITS, shapes)
    except InvalidRequest as error:
        return error.message, error.param, error.code


def _fields(parsed: Any) -> Any:
    """The fields of a request without its shape, or the error."""
    if isinstance(parsed, tuple):
        return parsed
    return {name: value for name, value in asdict(parsed).items() if name != "shape"}


@given(
    requests=st.lists(
        st.tuples(st.sampled_from(_SHAPES), st.sampled_from(_OWN), st.booleans()), max_size=8
    )
)
def test_known_shape_gives_the_same_request(requests: list[tuple[Any, Any, bool]]) -> None:
    shapes = RequestShapes()
    for shape, own, is_own_first in requests:
        fields = {**own, **shape} if is_own_first else {**shape, **own}
        assert _fields(_parse(fields, shapes)) == _fields(_parse(fields, None))


_LONG_TOOLS = json.dumps([{**_TOOL, "description": "x" * 2_000}])
_LONG_TEXT = json.dumps('\u00e4" [] {} ' * 500)


@pytest.mark.parametrize(
    "other",
    [
        '{"input": [{"role": "user", "content": "a", "tools": TOOLS}]}',
        '{"input": [{"type": "additional_tools", "role": "developer", "tools": TOOLS}]}',
        '{"input": [{"type": "additional_tools", "tools": TOOLS}], "tools": TOOLS}',
        '{"input": "a", "metadata": {"tools": TOOLS}}',
        '{"input": "a", "tools": TOOLS, "tools": []}',
        '{"input": "a", "tools": [], "tools": TOOLS}',
        '{"input": "a", "instructions": TOOLS}',
        '{"tools": TEXT, "input": "a"}',
        '{"input": TEXT, "instructions": TEXT}',
        '{"input": "a", "tools": TOOLS]',
        '{"input": "a", "tools": TOOLS1}',
        '{"input": "a", "tools":  TOOLS , "instructions" :TEXT}',
        '{"input": "a", "instructions": TEXT, "tools": TOOLS, "store": false}',
        '{"input": "\\"tools\\": ", "tools": TOOLS}',
        '{"input": "a", "x\\"tools": TOOLS}',
        '{"x\\"tools": TOOLS, "instructions": TEXT, "input": "\\"tools\\": []"}',
    ],
)
def test_long_value_in_another_place_changes_nothing(other: str) -> None:
    shapes = RequestShapes()
    first = '{"input": "a", "tools": TOOLS, "instructions": TEXT}'
    for body in (first, other, other):
        body = body.replace("TOOLS", _LONG_TOOLS).replace("TEXT", _LONG_TEXT)
        expected = _fields(_parse_body(body.encode(), None))
        assert _fields(_parse_body(body.encode(), shapes)) == expected


def test_long_values_of_a_kept_shape_are_not_parsed_again() -> None:
    shapes = RequestShapes()
    fields = {"tools": json.loads(_LONG_TOOLS), "instructions": json.loads(_LONG_TEXT)}
    body = json.dumps({"input": "a", **fields}).encode()
    assert shapes.shorten(body) == (body, {})
    _parse_body(body, shapes)
    short, replaced = shapes.shorten(body)
    assert len(short) < 100 and len(replaced) == 2
    assert shapes.shorten(short) == (short, {})


def test_long_values_with_the_same_beginning_are_all_known() -> None:
    """Agents and their subagents have lists of tools that begin with the same tools."""
    shapes, limit = RequestShapes(max_bytes=30_000), 8
    tools = [{**_TOOL, "name": f"tool_{number}", "description": "x" * 50} for number in range(20)]
    bodies = [
        json.dumps({"input": "a", "tools": tools[:count]}, separators=(",", ":")).encode()
        for count in range(20, 10, -1)
    ]
    for _ in range(2):
        for body in bodies:
            _parse_body(body, shapes)
        short = [len(shapes.shorten(body)[0]) < 100 for body in bodies]
        assert short == [False, False] + [True] * limit
    for number in range(100):  # the shapes with these tools are dropped
        _parse_body(json.dumps({"instructions": f"{number}" * 700, "input": "a"}).encode(), shapes)
    assert not any(len(shapes.shorten(body)[0]) < 100 for body in bodies)


def test_shape_that_two_threads_add_is_dropped_whole() -> None:
    shapes = RequestShapes(max_bytes=10_000)
    request = parse_create_response(b'{"input": "a"}')
    first, second = (shapes.add(("tools", _LONG_TOOLS.encode()), request) for _ in range(2))
    assert first is second is not None
    body = b'{"tools": %b}' % _LONG_TOOLS.encode()
    assert len(shapes.shorten(body)[1]) == 1
    for number in range(10):
        shapes.add(("tools", b"%d" % number * 2_000), request)
    assert shapes.shorten(body) == (body, {})


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
    assert isinstance(one.tools, SharedTools) and bytes(one.tools.json) == msgspec.json.encode(
        one.tools
    )
    shape = shape_of(one)
    assert shape is not None and shape.template.input is None and shape is shape_of(other)


def test_instructions_of_one_shape_are_encoded_once() -> None:
    shapes = RequestShapes()
    for text in "ab":
        request = _parse({"instructions": 'Be "brief".', "input": text}, shapes)
    response = initial_response(request, id="resp_1", model="m", created_at=1)
    encoded = encodable(response)
    assert isinstance(encoded.instructions, msgspec.Raw)
    assert msgspec.json.encode(encoded) == msgspec.json.encode(response)
    changed = encodable(replace(response, instructions='Be "longer".'))
    assert changed.instructions == 'Be "longer".'


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
        assert shape_of(request) is None and not isinstance(request.tools, SharedTools)


def test_shapes_are_limited_in_bytes() -> None:
    shapes = RequestShapes(max_bytes=10_000)
    bodies = [
        {"tools": [{**_TOOL, "description": f"{number} " + "x" * 1_000}], "input": "hi"}
        for number in range(100)
    ]
    first = [shape_of(_parse(body, shapes)) for body in bodies]
    assert None not in first
    newest = bodies[::-1]
    kept = [
        shape_of(_parse(body, shapes)) is shape
        for body, shape in zip(newest, reversed(first), strict=True)
    ]
    assert kept == [True] * sum(kept) + [False] * (100 - sum(kept))
    assert 5 < sum(kept) < 10
    large = {**_TOOL, "description": "x" * 20_000}
    request = _parse({"tools": [large], "input": "hi"}, shapes)
    assert shape_of(request) is None


def test_values_are_derived_once_from_the_same_objects() -> None:
    shapes, calls = RequestShapes(), list[Any]()

    def combine(tools: tuple[Any, ...], number: int) -> int:
        calls.append((tools, number))
        return len(calls)

    request = _parse({**_SHAPES[1], "input": "a"}, shapes)
    shape = shape_of(request)
    assert shape is not None
    assert derive(request, lambda one: one.tools) is request.tools
    assert [shape.derive(combine, (request.tools,), n) for n in (1, 2, 1)] == [1, 2, 1]
    assert shape.derive(combine, ((*request.tools,),), 1) == 3, "an equal object"
    assert [shape.derive(combine, (request.tools,), {}) for _ in range(2)] == [4, 5], "no hash"
    for number in range(1000):
        shape.derive(combine, (request.tools,), number)
    assert shape.derive(combine, (request.tools,), 0) == len(calls) > 1000, "an old value is gone"

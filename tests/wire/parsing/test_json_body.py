"""Bodies that are invalid, deeply nested, hostile or too large."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antiphon.errors import InvalidRequest
from antiphon.wire import items as it
from antiphon.wire.parsing.json_body import parse_json_object
from antiphon.wire.parsing.requests import BodyLimits, parse_create_response


def parse_error(body: bytes, limits: BodyLimits | None = None) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_create_response(body, limits or BodyLimits())
    assert len(caught.value.message) < 300
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"hello",
        b"{",
        b'{"input":"hi"',
        b'{"input":"hi"}}',
        b'{"input":"hi",}',
        b"{'input':'hi'}",
        b'{"input":"\xff"}',
        b'{"input":"\xed\xa0\x80"}',
        b'{"input":"a\nb"}',
        b'{"temperature":NaN,"input":"hi"}',
        b'{"temperature":Infinity,"input":"hi"}',
        b'{"temperature":-Infinity,"input":"hi"}',
        b'{"temperature":1e999,"input":"hi"}',
        b'{"temperature":NaN,"input":"\\ud800"}',
        b'{"temperature":1e999,"input":"\\ud800"}',
        b'{"seed":' + b"9" * 5_000 + b',"input":"hi"}',
        '{"input":"hi"}'.encode("utf-16"),
        b"{" * 200_000,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_invalid_json_is_refused(body: bytes) -> None:
    error = parse_error(body)
    assert (error.param, error.code) == (None, "invalid_json")


@pytest.mark.parametrize("body", [b"[]", b'"hi"', b"7", b"null", b"true", b"1.5"])
def test_body_that_is_not_an_object_is_refused(body: bytes) -> None:
    error = parse_error(body)
    assert (error.param, error.code) == (None, "invalid_type")
    assert "expected an object" in error.message


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"\ud83d\ude00", "😀"),
        (r"\ud83d", "\ufffd"),
        (r"\ude00", "\ufffd"),
        (r"a\uDE00\uD83Db", "a\ufffd\ufffdb"),
        (r"\ud83d\ud83d\ude00", "\ufffd😀"),
        (r"\\ud83d", r"\ud83d"),
        (r"\\\ud83d", "\\\ufffd"),
        (r"\ud83d\\u de00", "\ufffd\\u de00"),
        (r"\u0000", "\0"),
    ],
)
def test_lone_surrogate_becomes_a_replacement_character(written: str, read: str) -> None:
    request = parse_create_response(b'{"input":"%b"}' % written.encode())
    assert request.input == (it.Message(role="user", content=(it.InputText(text=read),)),)


def test_lone_surrogates_are_replaced_everywhere() -> None:
    body = rb"""{"input":"hi","metadata":{"\ud800":"\udfff"},"tools":[
        {"type":"function","name":"f","parameters":{"\ud800":{"default":"\ud800"}}}]}"""
    request = parse_create_response(body)
    assert request.metadata == {"\ufffd": "\ufffd"}
    json.dumps(request.tools[0].parameters).encode()  # type: ignore[union-attr]


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = [value]
    return value


def schema_body(levels: int) -> bytes:
    tool = {"type": "function", "name": "f", "parameters": {"x": nested(levels)}}
    return json.dumps({"input": "hi", "tools": [tool]}).encode()


def test_nesting_is_limited() -> None:
    # The body, `tools`, the tool, its `parameters`, and the innermost object take five levels.
    parse_create_response(schema_body(BodyLimits().nesting - 5))
    error = parse_error(schema_body(BodyLimits().nesting - 4))
    assert error.code == "invalid_value"
    assert "deeper than 64 levels" in error.message
    assert error.param == "tools[0].parameters.x" + "[0]" * 60
    parse_create_response(schema_body(95), BodyLimits(nesting=100))


def test_brackets_in_text_are_not_nesting() -> None:
    parse_create_response(json.dumps({"input": "[" * 10_000}).encode())


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"input":[', b'[{"a":'])
def test_very_deep_nesting_is_refused(opening: bytes) -> None:
    assert parse_error(b'{"input":' + opening * 200_000).code in ("invalid_json", "invalid_value")
    closed = {b"[": b"]", b'{"a":': b"}"}.get(opening)
    if closed is not None:
        body = b'{"input":' + opening * 100_000 + b"1" + closed * 100_000 + b"}"
        assert parse_error(body).code == "invalid_value"
        assert str(parse_error(body).param).startswith("input")


def test_the_path_of_a_nested_value_counts_what_came_before() -> None:
    body = b'{"a\\"{": "]", "input": [1, [2], {"x": [], "\\u00e4": %s}]}' % (b"[" * 99 + b"]" * 99)
    assert parse_error(body).param == "input[2].\\u00e4" + "[0]" * 61


@pytest.mark.parametrize(
    ("limits", "fields", "param"),
    [
        (BodyLimits(items=2), {"input": [{"role": "user", "content": "hi"}] * 3}, "input"),
        (BodyLimits(tools=2), {"tools": [{"type": "web_search"}] * 3}, "tools"),
        (
            BodyLimits(tools=2),
            {
                "tools": [
                    {
                        "type": "namespace",
                        "name": "n",
                        "tools": [{"type": "function", "name": "f"}] * 3,
                    }
                ]
            },
            "tools[0].tools",
        ),
        (
            BodyLimits(tools=2),
            {"input": [{"type": "additional_tools", "tools": [{"type": "web_search"}] * 3}]},
            "input[0].tools",
        ),
        (
            BodyLimits(parts=2),
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": ""}] * 3}]},
            "input[0].content",
        ),
    ],
)
def test_number_of_entries_is_limited(
    limits: BodyLimits, fields: dict[str, Any], param: str
) -> None:
    error = parse_error(json.dumps({"input": "hi", **fields}).encode(), limits)
    assert (error.param, error.code) == (param, "array_above_max_length")
    assert error.message == (
        f"Invalid '{param}': array too long. Expected an array with maximum length 2, "
        "but got an array with length 3 instead."
    )
    parse_create_response(json.dumps({"input": "hi", **fields}).encode())


@pytest.mark.parametrize("element", ["1", '"a"', '"\\\\"', '"\\""', "null"])
def test_number_of_values_is_limited(element: str) -> None:
    """Values are counted outside strings, however the commas in strings are escaped."""
    limits = BodyLimits(values=5)
    text = json.dumps('a,b,c,"d,e,f",\\,,,\\"g,h,,')
    values = ",".join([element] * 3)
    body = f'{{"model": "m", "input": {text}, "x": [{values}]}}'.encode()
    assert parse_json_object(body, limits)["model"] == "m"
    with pytest.raises(InvalidRequest, match="more than 5 values"):
        parse_json_object(body.replace(b"]", b", 7, 8, 9]"), limits)


def test_string_of_many_pieces_ends_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.wire.parsing.json_body._PIECE_BYTES", 3)
    limits = BodyLimits(values=2)
    for text in ("a" * 20, '"' * 20, "\\" * 21, 'a"' * 9 + "\\"):
        body = json.dumps({"a": text + ",,,,", "b": [1, 2]}).encode()
        assert parse_json_object(body, limits)["b"] == [1, 2]
        with pytest.raises(InvalidRequest, match="more than 2 values"):
            parse_json_object(body.replace(b"1", b"1, 3"), limits)


def test_number_of_members_is_limited() -> None:
    body = b'{"input":"12:30:00","metadata":{"a":"b"}}'
    parse_create_response(body, BodyLimits(members=5))
    error = parse_error(body, BodyLimits(members=4))
    assert (error.param, error.code) == (None, "invalid_value")
    assert "more than 4 members" in error.message


LONG = {
    "input": ({"input": "x" * 10_485_761}, "input"),
    "text": (
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "x" * 10_485_761}]}
            ]
        },
        "input[0].content[0].text",
    ),
    "image": (
        {
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": "x" * 20_971_521}],
                }
            ]
        },
        "input[0].content[0].image_url",
    ),
    "sealed": (
        {"input": [{"type": "compaction", "encrypted_content": "x" * 20_971_521}]},
        "input[0].encrypted_content",
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_text_length_is_limited(name: str) -> None:
    fields, param = LONG[name]
    error = parse_error(json.dumps(fields).encode())
    assert (error.param, error.code) == (param, "string_above_max_length")


def test_body_of_brackets_is_refused_before_parsing() -> None:
    body = b'{"input": [' + b"{}," * 600_000 + b"{}]}"
    with pytest.raises(InvalidRequest, match="arrays and objects"):
        parse_create_response(body, BodyLimits())

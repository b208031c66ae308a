"""Responses as they are stored: what many of them share is compressed."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.store.sql.response_bodies import BodyDecoder, encode_body
from antiphon.wire.items import Message, OutputText
from antiphon.wire.json_types import EncodedText
from antiphon.wire.response import Response
from antiphon.wire.tools import Function, SharedTools

_USES = 20
_TEXT = "Be brief. " * 100


def _response(tools: SharedTools, text: str | None) -> Response:
    return Response(id="resp_1", created_at=1, model="m", tools=tools, instructions=text)


def _tools(name: str) -> SharedTools:
    tools = SharedTools(Function(name=f"{name}_{n}", description="Look. " * 50) for n in range(60))
    tools.instructions = EncodedText.of(_TEXT)
    return tools


def _packed(response: Response) -> bytes:
    return [encode_body(response) for _ in range(_USES)][-1]


@pytest.mark.parametrize("text", [None, "Other instructions.", _TEXT])
def test_every_form_is_decoded_to_the_same_response(text: str | None) -> None:
    response = _response(_tools("a"), text)
    for body in [encode_body(response) for _ in range(_USES)]:
        assert BodyDecoder().decode(body) == response


def test_shared_tools_are_stored_compressed() -> None:
    response = _response(_tools("a"), _TEXT)
    first, last = encode_body(response), _packed(response)
    assert len(last) < len(first) / 10
    loaded = BodyDecoder().decode(last)
    assert encode_body(replace(loaded, metadata={"a": "b"})) != last
    assert len(encode_body(replace(loaded, metadata={"a": "b"}))) < len(first) / 10


def test_consecutive_responses_share_their_tools() -> None:
    one, other = _tools("a"), _tools("b")
    bodies = [_packed(_response(tools, _TEXT)) for tools in (one, one, other, one)]
    decoder = BodyDecoder()
    found = [decoder.decode(body) for body in bodies]
    assert [response.tools for response in found] == [one, one, other, one]
    assert found[0].tools is found[1].tools and found[0].instructions is found[1].instructions


def test_output_is_not_part_of_the_body() -> None:
    output = (Message(id="msg_1", role="assistant", content=(OutputText(text="hi"),)),)
    response = _response(SharedTools(), None)
    assert encode_body(replace(response, output=output)) == encode_body(response)


@pytest.mark.parametrize("end", [0, 1, 10, -300, -1])
def test_damaged_body_is_an_error(end: int) -> None:
    body = _packed(_response(_tools("a"), _TEXT))
    with pytest.raises(msgspec.MsgspecError):
        BodyDecoder().decode(body[:end])

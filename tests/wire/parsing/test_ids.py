"""Ids that cannot be those of an object of this server."""

from __future__ import annotations

import json

import pytest

from antiphon.errors import InvalidRequest
from antiphon.wire.parsing.ids import check_conversation_id, check_response_id
from antiphon.wire.parsing.requests import parse_create_response


@pytest.mark.requirement("API-ID-FORM")
@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("msg_1", "Invalid 'response_id': 'msg_1'. Expected an ID that begins with 'resp'."),
        (
            "",
            "Invalid 'response_id': ''. Expected an ID that contains letters, numbers, underscores,"
            " or dashes, but this value contained additional characters.",
        ),
        (
            "resp_é",
            "Invalid 'response_id': 'resp_é'. Expected an ID that contains letters, numbers,"
            " underscores, or dashes, but this value contained additional characters.",
        ),
        (
            "resp_" + "a" * 60,
            "Invalid 'response_id': string too long. Expected a string with maximum length 64, but"
            " got a string with length 65 instead.",
        ),
    ],
)
def test_impossible_id_is_rejected_as_openai_does(id: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_response_id(id, "response_id")
    assert (refused.value.message, refused.value.param) == (message, "response_id")


@pytest.mark.requirement("API-ID-FORM")
@pytest.mark.parametrize(
    ("field", "value", "prefix"),
    [
        ("previous_response_id", "chatcmpl-1", "resp"),
        ("conversation", "resp_1", "conv"),
        ("conversation", {"id": "x"}, "conv"),
    ],
)
def test_impossible_id_in_a_request_is_rejected(field: str, value: object, prefix: str) -> None:
    body = {"model": "m", "input": "hi", field: value}
    with pytest.raises(InvalidRequest, match=f"begins with '{prefix}'") as refused:
        parse_create_response(json.dumps(body).encode())
    assert (refused.value.param, refused.value.code) == (field, "invalid_value")


def test_possible_ids_pass() -> None:
    assert check_response_id("resp_" + "a" * 59, "x").startswith("resp_")
    assert check_conversation_id("conv_1", "x") == "conv_1"

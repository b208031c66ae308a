"""Each member that the types of OpenAI's client allow in a request of the older APIs is honoured,
refused by name, or a hint that cannot change the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from antiphon.compat import chat_request, completion_request
from antiphon.compat.chat_request import parse_chat_request
from antiphon.compat.completion_request import parse_completion_request
from antiphon.compat.request_bodies import ChatFields, CompletionFields
from antiphon.errors import InvalidRequest
from tests.wire.test_sdk_members import Walk

#: Members of the body that our types do not declare → a value that would change the answer.
REFUSED: dict[str, Any] = {
    "ChatFields.audio": {"voice": "ash", "format": "wav"},
    "ChatFields.modalities": ["text", "audio"],
    "ChatFields.web_search_options": {"search_context_size": "low"},
    "CompletionFields.best_of": 2,
    "CompletionFields.suffix": "x",
}
#: Predicted output makes an answer faster, and cannot change it.
HINTS = {"ChatFields.prediction"}
ASSISTANT = {"role": "assistant", "content": "Hi", "audio": {"id": "audio_1"}}


def missing(theirs: Any, ours: Any) -> set[str]:
    walk = Walk()
    walk.compare(theirs, ours, "")
    return walk.missing


def test_each_member_of_a_chat_request_is_read_or_listed() -> None:
    found = missing(chat_create_params.CompletionCreateParamsBase, ChatFields)
    shared = {f"ChatFields.{name}" for name in chat_request.SHARED_FIELDS}
    chat = {name for name in REFUSED if name.startswith("ChatFields.")}
    assert found - shared == {*chat, *HINTS, "ChatInputMessage.audio"}


def test_each_member_of_a_completion_is_read_or_listed() -> None:
    found = missing(completion_create_params.CompletionCreateParamsBase, CompletionFields)
    shared = {f"CompletionFields.{name}" for name in completion_request.SHARED_FIELDS}
    refused = {name for name in REFUSED if name.startswith("CompletionFields.")}
    assert found - shared == refused


@pytest.mark.parametrize("name", REFUSED)
def test_member_that_would_change_the_answer_is_refused(name: str) -> None:
    body, _, field = name.partition(".")
    is_chat = body == "ChatFields"
    prompt = {"messages": [{"role": "user", "content": "Hi"}]} if is_chat else {"prompt": "Hi"}
    parse = parse_chat_request if is_chat else parse_completion_request
    with pytest.raises(InvalidRequest) as raised:
        parse(json.dumps({"model": "m", **prompt, field: REFUSED[name]}).encode())
    assert raised.value.param == field


def test_audio_of_an_earlier_answer_is_refused() -> None:
    body = {"model": "m", "messages": [ASSISTANT]}
    with pytest.raises(InvalidRequest) as raised:
        parse_chat_request(json.dumps(body).encode())
    assert raised.value.param == "messages[0].audio"


def test_parts_keep_their_cache_breakpoint() -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    picture = "data:image/png;base64,AAAA"
    parts = [
        {"type": "text", "text": "Hi", **mark},
        {"type": "image_url", "image_url": {"url": picture}, **mark},
        {"type": "image_url", "image_url": picture, **mark},
        {"type": "file", "file": {"file_id": "file-1"}, **mark},
    ]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    request = parse_chat_request(json.dumps(body).encode()).request
    content: Any = request.input[0]
    assert [part.prompt_cache_breakpoint.mode for part in content.content] == ["explicit"] * 4

"""What must hold of every answer, whatever was asked: the laws, and the official client's word.

A stream is framed as it should be, obeys the grammar, and folds to its terminal response; each of
its events is one the official client knows; that client's accumulator, fed the same bytes, comes to
the same texts. A response reads, strictly, as the client's own type and as Open Responses' one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Any, get_args

import httpx
import msgspec
import openai
import openresponses_types
import pytest
from openai.types.responses import Response as SdkResponse
from openai.types.responses import ResponseStreamEvent

from antiphon.stream.event_grammar import Checker
from antiphon.stream.fold import fold
from antiphon.wire.events import EVENTS, Event

__all__ = ["error", "error_frame", "plain", "stream"]

Json = dict[str, Any]
#: The official client's events by their type: its own union would try each of them in turn.
_SDK_EVENTS = {
    get_args(event.model_fields["type"].annotation)[0]: event
    for event in get_args(get_args(ResponseStreamEvent)[0])
}
_event = msgspec.json.Decoder(reduce(or_, EVENTS.values())).decode

#: Events that the official client's types do not list, though its stream takes them.
_UNLISTED = frozenset({"keepalive", "response.reasoning.delta", "response.reasoning.done"})

#: What Open Responses' types know; a response that holds more is one of its supersets.
_CORE_ITEMS = frozenset({"message", "reasoning", "function_call", "function_call_output"})
_CORE_EFFORTS = frozenset({None, "none", "low", "medium", "high", "xhigh"})
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})


def error(reply: httpx.Response) -> Json:
    """The error of an HTTP answer, in OpenAI's shape and under a request id."""
    body = reply.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] and body["error"]["type"]
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    assert reply.status_code != 422
    assert len(reply.content) < 2_000
    found: Json = body["error"]
    return found


def error_frame(frame: Json) -> Json:
    """The error of a WebSocket's frame, likewise, with the status it would have had."""
    assert set(frame) - {"stream_id"} == {"type", "status", "error"}
    assert set(frame["error"]) == {"message", "type", "param", "code"}
    assert frame["error"]["message"] and frame["error"]["type"]
    assert isinstance(frame["status"], int) and 400 <= frame["status"] < 600
    found: Json = frame["error"]
    return found


def plain(body: bytes) -> Json:
    """A response, read strictly by both."""
    SdkResponse.model_validate_json(body, strict=True)
    response: Json = json.loads(body)
    if _is_core(response):
        openresponses_types.ResponseResource.model_validate_json(body)
    return response


def _is_core(response: Json) -> bool:
    return (
        all(item["type"] in _CORE_ITEMS for item in response["output"])
        and all(tool["type"] == "function" for tool in response["tools"])
        and response["text"]["format"]["type"] == "text"
        and response["reasoning"]["effort"] in _CORE_EFFORTS
    )


def stream(body: bytes) -> list[Json]:
    """The events of a stream, with everything that must hold of them."""
    lines = list(_data(body))
    events: list[Json] = [json.loads(line) for line in lines]
    for event, line in zip(events, lines, strict=True):
        if event["type"] not in _UNLISTED:
            _SDK_EVENTS[event["type"]].model_validate_json(line, strict=True)
        if "response" in event:
            plain(json.dumps(event["response"]).encode())
    _obeys([_event(line) for line in lines])
    _agrees(body, events)
    return events


def _data(body: bytes) -> Iterable[bytes]:
    """The data of each frame: two lines and a blank one, LF only, and ``[DONE]`` at the end."""
    assert b"\r" not in body
    *frames, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    for frame in frames:
        name, data = frame.split(b"\n")
        assert name.removeprefix(b"event: ").decode() == json.loads(data[6:])["type"]
        assert data.startswith(b"data: ")
        yield data[6:]


def _obeys(events: list[Event]) -> None:
    checker = Checker()
    for event in events:
        checker.feed(event)
    assert checker.ended
    assert fold(events) == events[-1].response  # type: ignore[attr-defined]
    assert [n for n, event in enumerate(events) if _terminal(event)] == [len(events) - 1]


def _terminal(event: Event) -> bool:
    return str(event.__struct_config__.tag) in _TERMINAL


def _agrees(body: bytes, events: list[Json]) -> None:
    """The official client, fed the same bytes, hears the same response."""
    final = events[-1]["response"]
    heard: dict[tuple[int, int], str] = {}
    with _replayed(body) as client:
        asked = client.responses.stream(model="tiny", input="hi")
        if final["status"] == "failed":
            with pytest.raises(openai.APIError) as failed, asked as told:
                told.until_done()
            assert failed.value.code == final["error"]["code"]
            assert failed.value.message == final["error"]["message"]
            return
        with asked as told:
            for event in told:
                if event.type == "response.output_text.delta":
                    heard[event.output_index, event.content_index] = event.snapshot
                elif event.type == "response.function_call_arguments.delta":
                    heard[event.output_index, 0] = event.snapshot
    assert heard == {key: text for key, text in _texts(final) if text}
    if final["status"] == "completed":
        said = told.get_final_response()
        assert said.output_text == "".join(
            part["text"]
            for item in final["output"]
            for part in item.get("content") or ()
            if part["type"] == "output_text"
        )
        assert [item.id for item in said.output] == [item["id"] for item in final["output"]]


def _texts(response: Json) -> Iterable[tuple[tuple[int, int], str]]:
    for at, item in enumerate(response["output"]):
        if item["type"] == "message":
            for index, part in enumerate(item["content"]):
                if part["type"] == "output_text":
                    yield (at, index), part["text"]
        elif item["type"] == "function_call":
            yield (at, 0), item["arguments"]


def _replayed(body: bytes) -> openai.OpenAI:
    """The official client on a line that says ``body``."""
    headers = {"content-type": "text/event-stream; charset=utf-8"}
    transport = httpx.MockTransport(
        lambda request: httpx.Response(200, headers=headers, content=body)
    )
    return openai.OpenAI(
        api_key="none",
        base_url="http://localhost/v1",
        max_retries=0,
        http_client=httpx.Client(transport=transport),
    )

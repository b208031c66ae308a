"""The checks that every answer must pass: the protocol's rules and the official client.

A stream must be framed correctly, follow the event grammar, and fold to its terminal response. The
official client must know each event, and its accumulator must arrive at the same texts. A response
must validate strictly as the official client's type and as the type of Open Responses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache, reduce
from itertools import groupby
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
from tests.wire.samples import FOREIGN, FOREIGN_EVENTS, SENT_TO_CODEX, known

Json = dict[str, Any]
#: Event type → the official client's class. Its own union would try each class in turn.
_SDK_EVENTS = {
    get_args(event.model_fields["type"].annotation)[0]: event
    for event in get_args(get_args(ResponseStreamEvent)[0])
}
_event = msgspec.json.Decoder(reduce(or_, EVENTS.values())).decode

#: Events that the official client's types lack, although its stream accepts them.
_UNLISTED = FOREIGN_EVENTS | {"keepalive", "response.reasoning.delta", "response.reasoning.done"}

#: What the types of Open Responses support. A response with more is a superset.
_CORE_ITEMS = frozenset({"message", "reasoning", "function_call", "function_call_output"})
_CORE_EFFORTS = frozenset({None, "none", "low", "medium", "high", "xhigh"})
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
#: The structures of streams that the official client has read in this process.
_READ_SHAPES = set[tuple[object, ...]]()


def error(reply: httpx.Response) -> Json:
    """Return the error of an HTTP answer, after checking its shape and headers."""
    body = reply.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] and body["error"]["type"]
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    assert reply.status_code != 422
    assert len(reply.content) < 2_000
    error_fields: Json = body["error"]
    return error_fields


def error_frame(frame: Json) -> Json:
    """Return the error of a WebSocket frame, after checking its shape and status."""
    assert set(frame) - {"stream_id"} == {"type", "status", "error"}
    assert set(frame["error"]) == {"message", "type", "param", "code"}
    assert frame["error"]["message"] and frame["error"]["type"]
    assert isinstance(frame["status"], int) and 400 <= frame["status"] < 600
    error_fields: Json = frame["error"]
    return error_fields


def plain(body: bytes) -> Json:
    """Return a response, after validating it strictly with both types."""
    response: Json = json.loads(body)
    if _has_unlisted(response):
        body = json.dumps(known(response)).encode()
    SdkResponse.model_validate_json(body, strict=True)
    if _is_core(response):
        openresponses_types.ResponseResource.model_validate_json(body)
    return response


def _has_unlisted(response: Json) -> bool:
    """Whether the types of the official client lack a part of a response."""
    types = {each["type"] for name in ("output", "tools") for each in response[name]}
    code = (response["error"] or {}).get("code")
    return bool(FOREIGN & types) or code in SENT_TO_CODEX


def _is_core(response: Json) -> bool:
    return (
        all(item["type"] in _CORE_ITEMS for item in response["output"])
        and all(tool["type"] == "function" for tool in response["tools"])
        and response["text"]["format"]["type"] == "text"
        and response["reasoning"]["effort"] in _CORE_EFFORTS
    )


def stream(body: bytes) -> list[Json]:
    """Return the events of a stream, after all checks."""
    lines = _checked_lines(body)
    return [json.loads(line) for line in lines]


@lru_cache(maxsize=4)
def _checked_lines(body: bytes) -> tuple[bytes, ...]:
    """Return the lines of a stream, after all checks. A test reads one stream several times."""
    lines = tuple(_data(body))
    events: list[Json] = [json.loads(line) for line in lines]
    for event, line in zip(events, lines, strict=True):
        check_types(event, line)
    _check_grammar([_event(line) for line in lines])
    if (shape := _shape(events)) not in _READ_SHAPES:
        _check_official_client(body, events)
        _READ_SHAPES.add(shape)
    return lines


def check_types(event: Json, line: bytes) -> None:
    """Validate an event, and the response in it, strictly with the official client's types.
    ``line``: the JSON of the event."""
    if "response" in event and _has_unlisted(event["response"]):
        line = json.dumps({**event, "response": known(event["response"])}).encode()
    if event["type"] not in _UNLISTED and event.get("item", {}).get("type") not in FOREIGN:
        _SDK_EVENTS[event["type"]].model_validate_json(line, strict=True)
    if "response" in event:
        plain(json.dumps(event["response"]).encode())


def _shape(events: Sequence[Json]) -> tuple[object, ...]:
    """Return the structure of a stream: all but texts, numbers and how texts are cut.

    The official client is slow, and reads streams of one structure alike.
    """
    final = events[-1]["response"]
    steps = ((event["type"], event.get("output_index"), _kind(event)) for event in events)
    return (final["status"], *(step for step, _ in groupby(steps)))


def _kind(event: Json) -> object:
    """Return the type of an event's item, part or annotation, and the names of its fields."""
    for name in ("item", "part", "annotation"):
        if isinstance(value := event.get(name), dict):
            return (value.get("type"), *value)
    return None


def _data(body: bytes) -> Iterable[bytes]:
    """Yield the data of each frame: two lines and an empty one, LF only, ``[DONE]`` last."""
    assert b"\r" not in body
    *frames, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    for frame in frames:
        name, data = frame.split(b"\n")
        assert name.removeprefix(b"event: ").decode() == json.loads(data[6:])["type"]
        assert data.startswith(b"data: ")
        yield data[6:]


def _check_grammar(events: list[Event]) -> None:
    checker = Checker()
    for event in events:
        checker.feed(event)
    assert fold(events) == events[-1].response  # type: ignore[attr-defined]
    assert [n for n, event in enumerate(events) if _terminal(event)] == [len(events) - 1]


def _terminal(event: Event) -> bool:
    return str(event.__struct_config__.tag) in _TERMINAL


def _check_official_client(body: bytes, events: list[Json]) -> None:
    """Check that the official client, given the same bytes, arrives at the same response."""
    final = events[-1]["response"]
    texts: dict[tuple[int, int], str] = {}
    with _replay_client(body) as client:
        stream_manager = client.responses.stream(model="tiny", input="hi")
        if final["status"] == "failed":
            with pytest.raises(openai.APIError) as raised, stream_manager as client_stream:
                client_stream.until_done()
            assert raised.value.code == final["error"]["code"]
            assert raised.value.message == final["error"]["message"]
            return
        with stream_manager as client_stream:
            for event in client_stream:
                if event.type == "response.output_text.delta":
                    texts[event.output_index, event.content_index] = event.snapshot
                elif event.type == "response.function_call_arguments.delta":
                    texts[event.output_index, 0] = event.snapshot
    assert texts == {key: text for key, text in _texts(final) if text}
    if final["status"] == "completed":
        final_response = client_stream.get_final_response()
        assert final_response.output_text == "".join(
            part["text"]
            for item in final["output"]
            for part in item.get("content") or ()
            if part["type"] == "output_text"
        )
        assert [item.id for item in final_response.output] == [
            item["id"] for item in final["output"]
        ]


def _texts(response: Json) -> Iterable[tuple[tuple[int, int], str]]:
    for output_index, item in enumerate(response["output"]):
        if item["type"] == "message":
            for index, part in enumerate(item["content"]):
                if part["type"] == "output_text":
                    yield (output_index, index), part["text"]
        elif item["type"] == "function_call":
            yield (output_index, 0), item["arguments"]


def _replay_client(body: bytes) -> openai.OpenAI:
    """Return the official client over a transport that answers with ``body``."""
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

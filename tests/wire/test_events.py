"""Events: the official client parses every event as its own type."""

from __future__ import annotations

import json
from typing import Any, get_args, get_type_hints

import msgspec
import openresponses_types
import pytest
from msgspec import UNSET, UnsetType
from openai.types import responses as sdk
from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from antiphon.wire import events as ev
from antiphon.wire import items as it
from antiphon.wire import response as rs
from tests.wire.samples import FOREIGN_EVENTS

SDK = TypeAdapter[Any](ResponseStreamEvent)

#: Events that are not among the types of the SDK's stream, and why they exist all the same.
FOREIGN = {
    "keepalive": "fills silence; every client was seen to skip it",
    "response.reasoning.delta": "Open Responses' name of reasoning_text.delta",
    "response.reasoning.done": "Open Responses' name of reasoning_text.done",
    "response.steer.accepted": "WebSocket only",
    "response.steer.pending": "WebSocket only",
    "response.steer.failed": "WebSocket only",
    **dict.fromkeys(FOREIGN_EVENTS, "of an item that the SDK does not know"),
}

_ERROR = ev.ErrorBody(type="server_error", code="server_error", message="m")
_VALUES: dict[str, Any] = {
    "response": rs.Response(id="resp_1", created_at=1, model="m"),
    "item": it.FunctionCall(id="fc_1", call_id="call_1", name="f", arguments=""),
    "part": it.OutputText(text=""),
    "annotation": it.FilePath(file_id="file_1", index=0),
    "error": _ERROR,
    "logprobs": (),
    "steer": ev.Steer(id="steer_1", previous_response_id="resp_1", input="x"),
}
_BY_TYPE: dict[Any, Any] = {str: "x", int: 0}
_BY_EVENT: dict[str, dict[str, Any]] = {
    "response.reasoning_summary_part.added": {"part": it.SummaryText(text="")},
    "response.reasoning_summary_part.done": {"part": it.SummaryText(text="x")},
    "response.shell_call_output_content.delta": {"delta": {"stdout": "a"}},
    "response.shell_call_output_content.done": {
        "output": ({"stdout": "", "stderr": "", "outcome": {"type": "timeout"}},)
    },
    "response.steer.failed": {"error": ev.SteerError(code="invalid_input", message="m")},
}


def _event(name: str) -> ev.Event:
    cls = ev.EVENTS[name]
    fields = {}
    for field, hint in get_type_hints(cls).items():
        if field in _BY_EVENT.get(name, {}):
            fields[field] = _BY_EVENT[name][field]
        elif field in _VALUES:
            fields[field] = _VALUES[field]
        elif UnsetType not in get_args(hint) and hint in _BY_TYPE:
            fields[field] = _BY_TYPE[hint]
    return cls(**fields)


@pytest.mark.parametrize("name", ev.EVENTS)
def test_event_is_parsed_by_the_sdk(name: str) -> None:
    encoded = msgspec.json.encode(_event(name))
    assert json.loads(encoded)["type"] == name
    if name not in FOREIGN:
        assert SDK.validate_json(encoded, strict=True).type == name


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("response.steer.accepted", sdk.ResponseSteerAcceptedEvent),
        ("response.steer.pending", sdk.ResponseSteerPendingEvent),
        ("response.steer.failed", sdk.ResponseSteerFailedEvent),
    ],
)
def test_events_of_sockets_are_parsed_by_the_sdk(name: str, theirs: type[BaseModel]) -> None:
    theirs.model_validate_json(msgspec.json.encode(_event(name)), strict=True)


def test_every_event_of_the_sdk_has_a_class() -> None:
    known = {
        value
        for arm in get_args(get_args(ResponseStreamEvent)[0])
        for value in get_args(arm.model_fields["type"].annotation)
    }
    assert set(ev.EVENTS) == known | set(FOREIGN)


def test_error_event_has_flat_and_nested_fields() -> None:
    output = json.loads(
        msgspec.json.encode(
            ev.Error(sequence_number=7, code="server_error", message="m", error=_ERROR)
        )
    )
    assert output == {
        "type": "error",
        "sequence_number": 7,
        "code": "server_error",
        "message": "m",
        "param": None,
        "error": {"type": "server_error", "code": "server_error", "message": "m", "param": None},
    }


def test_incomplete_summary_part_has_a_status() -> None:
    done = ev.ReasoningSummaryPartDone(
        sequence_number=0, item_id="rs_1", output_index=0, summary_index=0,
        part=it.SummaryText(text="x"), status="incomplete",
    )  # fmt: skip
    assert json.loads(msgspec.json.encode(done))["status"] == "incomplete"
    whole = msgspec.structs.replace(done, status=UNSET)
    assert "status" not in json.loads(msgspec.json.encode(whole))


OPEN_RESPONSES = {
    "response.created": "ResponseCreatedStreamingEvent",
    "response.queued": "ResponseQueuedStreamingEvent",
    "response.in_progress": "ResponseInProgressStreamingEvent",
    "response.completed": "ResponseCompletedStreamingEvent",
    "response.incomplete": "ResponseIncompleteStreamingEvent",
    "response.failed": "ResponseFailedStreamingEvent",
    "response.output_item.added": "ResponseOutputItemAddedStreamingEvent",
    "response.output_item.done": "ResponseOutputItemDoneStreamingEvent",
    "response.content_part.added": "ResponseContentPartAddedStreamingEvent",
    "response.content_part.done": "ResponseContentPartDoneStreamingEvent",
    "response.output_text.delta": "ResponseOutputTextDeltaStreamingEvent",
    "response.output_text.done": "ResponseOutputTextDoneStreamingEvent",
    "response.refusal.delta": "ResponseRefusalDeltaStreamingEvent",
    "response.refusal.done": "ResponseRefusalDoneStreamingEvent",
    "response.reasoning.delta": "ResponseReasoningDeltaStreamingEvent",
    "response.reasoning.done": "ResponseReasoningDoneStreamingEvent",
    "response.reasoning_summary_part.added": "ResponseReasoningSummaryPartAddedStreamingEvent",
    "response.reasoning_summary_part.done": "ResponseReasoningSummaryPartDoneStreamingEvent",
    "response.function_call_arguments.delta": "ResponseFunctionCallArgumentsDeltaStreamingEvent",
    "response.function_call_arguments.done": "ResponseFunctionCallArgumentsDoneStreamingEvent",
    "error": "ErrorStreamingEvent",
}


@pytest.mark.parametrize("name", OPEN_RESPONSES)
def test_core_event_conforms_to_open_responses(name: str) -> None:
    cls = getattr(openresponses_types, OPEN_RESPONSES[name])
    cls.model_validate_json(msgspec.json.encode(_event(name)))

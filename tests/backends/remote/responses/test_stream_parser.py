"""Our own streams are parsed: every golden story, as servers of many kinds would send it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from antiphon.backends.remote.responses.stream_parser import ResponsesStreamParser
from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.errors import BackendError
from antiphon.runs.execution.recorder import Recorder
from antiphon.stream.deltas import Annotate, Close, Delta, Finish, Open, Progress, Text
from antiphon.stream.event_grammar import check
from antiphon.stream.kinds import KINDS, OPEN_RESPONSES_KINDS
from antiphon.stream.writer import ResponseWriter
from antiphon.testing.delta_reader import read_reply as checked
from antiphon.wire import items as it
from antiphon.wire.response import Response
from tests.golden import story
from tests.hypothesis_settings import examples

Json = dict[str, Any]
#: Stories with a complete stream.
STORIES = sorted(path for path in story.FOLDER.glob("*.txt") if "leaves" not in path.stem)


def as_it_is(events: list[Json]) -> Iterable[Json]:
    return events


def without_positions(events: list[Json]) -> Iterable[Json]:
    """llama-server."""
    hidden = ("sequence_number", "output_index", "content_index")
    for event in events:
        yield {key: value for key, value in event.items() if key not in hidden}


def without_ids(events: list[Json]) -> Iterable[Json]:
    """Ids that change from event to event, as some servers send them."""
    for number, event in enumerate(events):
        event = {**event}
        if "item_id" in event:
            event["item_id"] = f"x_{number}"
        if "item" in event:
            event["item"] = {**event["item"], "id": f"y_{number}"}
        yield event


def without_deltas(events: list[Json]) -> Iterable[Json]:
    """Items that are sent only when they are complete."""
    return [e for e in events if e["type"] == "response.output_item.done" or "response" in e]


def with_nothing_but_the_end(events: list[Json]) -> Iterable[Json]:
    return events[:1] + events[-1:]


def as_one_answer(events: list[Json]) -> Iterable[Json]:
    """A response that is not streamed."""
    response: Json = events[-1]["response"]
    yield response


WAYS: list[Callable[[list[Json]], Iterable[Json]]] = [
    as_it_is,
    without_positions,
    without_ids,
    without_deltas,
    with_nothing_but_the_end,
    as_one_answer,
]


def deltas_of(payloads: Iterable[Json], **more: Any) -> list[Delta]:
    reading = ResponsesStreamParser({}, **more)
    found = [delta for each in payloads for delta in reading.feed([json.dumps(each).encode()])]
    return [*found, *reading.finish(done=False)]


def response_of(deltas: Iterable[Delta]) -> Response:
    """The response that our recorder builds from them."""
    out = ResponseWriter(
        Response(id="resp_1", created_at=0, model="m"), ids=lambda prefix: f"{prefix}_x"
    )
    out.create()
    out.start()
    recorder = Recorder(out)
    for delta in deltas:
        recorder.record([delta])
    status = "incomplete" if recorder.is_truncated else "completed"
    return out.finalize(status, at=0, usage=recorder.usage)


def plain(response: Json) -> Json:
    """Without ids."""
    output = [
        {key: value for key, value in item.items() if key != "id"} for item in response["output"]
    ]
    return {"output": output, "usage": response["usage"]}


@pytest.mark.requirement("UP-ITEMS")
@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
async def test_our_own_streams_are_parsed(path: Path) -> None:
    result = story.read(path)
    played = await story.play(result, result.turns)
    events = [msgspec.to_builtins(event) for event in played.events]
    for way in WAYS:
        _check_read(path, list(way(events)), events[-1]["response"], way)


def _check_read(path: Path, sent: list[Json], last: Json, way: Any) -> None:
    if last["status"] == "failed":
        with pytest.raises(BackendError) as raised:
            deltas_of(sent)
        assert raised.value.code == last["error"]["code"]
        return
    deltas = deltas_of(sent)
    checked(deltas)
    found, expected = plain(msgspec.to_builtins(response_of(deltas))), plain(last)
    if way is not as_it_is and "logprobs" in path.stem:
        found, expected = (_without_logprobs(each) for each in (found, expected))
    if way is without_deltas:  # what is told of when it is done comes in that order
        for each in (found, expected):
            each["output"].sort(key=json.dumps)
    assert found == expected


def _without_logprobs(value: Any) -> Any:
    return json.loads(json.dumps(value), object_hook=lambda o: {**o, "logprobs": []})


# --- cases beyond the stories ---------------------------------------------------------------------


def completed(*output: Json, **more: Any) -> Json:
    response = {"object": "response", "status": "completed", "output": list(output), **more}
    return {"type": "response.completed", "response": response}


def added(index: int, item: Json) -> Json:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, item: Json) -> Json:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def event(name: str, index: int, **fields: Any) -> Json:
    return {"type": f"response.{name}", "output_index": index, **fields}


def call(name: str, arguments: str = "", status: str = "in_progress") -> Json:
    return {
        "type": "function_call",
        "id": f"fc_{name}",
        "call_id": f"call_{name}",
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def test_hosted_tools_of_the_upstream_are_items() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "in_progress"}
    code = {"type": "code_interpreter_call", "id": "ci_1", "container_id": "c", "code": ""}
    cited = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 3}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    action = {"type": "search", "query": "q"}
    deltas = deltas_of(
        [
            added(0, search),
            event("web_search_call.in_progress", 0),
            event("web_search_call.searching", 0),
            event("web_search_call.searching", 0),
            event("web_search_call.completed", 0),
            done(0, {**search, "status": "completed", "action": action}),
            added(1, {**code, "status": "in_progress", "outputs": None}),
            event("code_interpreter_call.in_progress", 1),
            event("code_interpreter_call_code.delta", 1, delta="1+"),
            event("code_interpreter_call_code.delta", 1, delta="1"),
            event("code_interpreter_call.interpreting", 1),
            event("code_interpreter_call.completed", 1),
            done(1, {**code, "code": "1+1", "status": "failed", "outputs": [{"logs": "2"}]}),
            added(2, message),
            event("output_text.delta", 2, delta="Two"),
            event("output_text.annotation.added", 2, annotation=cited),
            event("output_text.annotation.added", 2, annotation={"type": "odd"}),
            done(2, {**message, "content": [{"type": "output_text", "text": "Two"}]}),
            completed(),
        ]
    )
    assert [delta.name for delta in deltas if isinstance(delta, Progress)] == [
        "in_progress",
        "searching",
        "completed",
        "in_progress",
        "interpreting",
        "completed",
    ]
    first, second, third = response_of(deltas).output
    assert first == it.WebSearchCall(id="ws_x", action=action)
    assert second == it.CodeInterpreterCall(
        id="ci_x", container_id="c", code="1+1", outputs=({"logs": "2"},), status="failed"
    )
    assert isinstance(third, it.Message) and isinstance(third.content[0], it.OutputText)
    assert [each.url for each in third.content[0].annotations] == ["u"]  # type: ignore[union-attr]


def test_unstreamed_citations_are_taken_from_the_item() -> None:
    cited = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 3}
    part = {"type": "output_text", "text": "Two", "annotations": [cited]}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
    deltas = deltas_of([done(0, message), completed()])
    assert [type(delta) for delta in deltas] == [Open, Text, Annotate, Close, Finish]


@pytest.mark.parametrize("content", [{"cached_tokens": 1}, [None, "x", {"annotations": 1}], 3])
def test_malformed_citations_are_ignored(content: Any) -> None:
    message = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
    deltas = deltas_of([event("output_text.delta", 0, delta="Two"), done(0, message), completed()])
    assert [type(delta) for delta in deltas] == [Open, Text, Close, Finish]


def test_unknown_caller_is_dropped() -> None:
    for caller in ({}, {"type": "oracle"}, 3):
        output = {**call("a"), "caller": caller, "namespace": 7}
        (item,) = response_of(deltas_of([done(0, output), completed()])).output
        assert isinstance(item, it.FunctionCall)
        assert (item.caller, item.namespace) == (UNSET, "7")


def test_parallel_calls_are_serialized() -> None:
    deltas = deltas_of(
        [
            added(0, call("a")),
            added(1, call("b")),
            event("function_call_arguments.delta", 1, delta='{"b"'),
            event("function_call_arguments.delta", 0, delta='{"a"'),
            event("function_call_arguments.delta", 1, delta=":2}"),
            done(1, call("b", '{"b":2}', "completed")),
            event("function_call_arguments.delta", 0, delta=":1}"),
            done(0, call("a", '{"a":1}', "completed")),
            completed(),
        ]
    )
    checked(deltas)
    output = response_of(deltas).output
    assert [
        (item.name, item.arguments) for item in output if isinstance(item, it.FunctionCall)
    ] == [
        ("a", '{"a":1}'),
        ("b", '{"b":2}'),
    ]


@pytest.mark.parametrize("ended", [True, False])
def test_parallel_calls_without_an_end(ended: bool) -> None:
    events = [
        added(0, call("a")),
        added(1, call("b")),
        event("function_call_arguments.delta", 1, delta='{"b":2}'),
        event("function_call_arguments.delta", 0, delta='{"a":1}'),
    ]
    last = completed()
    if not ended:
        last["response"]["incomplete_details"] = {"reason": "max_output_tokens"}
    deltas = deltas_of([*events, last])
    output = response_of(deltas).output
    assert [item.arguments for item in output if isinstance(item, it.FunctionCall)] == [
        '{"a":1}',
        '{"b":2}',
    ]
    assert [getattr(item, "status", "") for item in output] == [
        "completed",
        "completed" if ended else "incomplete",
    ]


def test_functions_become_the_original_tools() -> None:
    shapes = {
        "patch": ToolShape(wire_name="patch", custom=True),
        "desk__look": ToolShape(wire_name="look", namespace="desk"),
    }
    reading = ResponsesStreamParser(shapes)
    payloads = [
        added(0, call("patch")),
        event("function_call_arguments.delta", 0, delta='{"input":"*** é'),
        event("function_call_arguments.delta", 0, delta='\\n"}'),
        done(0, call("patch", '{"input":"*** é\\n"}')),
        done(1, call("desk__look", "{}")),
        completed(),
    ]
    deltas = [delta for each in payloads for delta in reading.feed([json.dumps(each).encode()])]
    first, second = response_of([*deltas, *reading.finish(done=True)]).output
    assert isinstance(first, it.CustomToolCall) and first.input == "*** é\n"
    assert isinstance(second, it.FunctionCall)
    assert (second.name, second.namespace) == ("look", "desk")


@pytest.mark.requirement("UP-SEALED")
def test_encrypted_reasoning_is_stored_for_its_upstream() -> None:
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    deltas = deltas_of(
        [
            added(0, {"type": "reasoning", "id": "rs_1", "summary": []}),
            event("reasoning_summary_text.delta", 0, summary_index=0, delta="First."),
            event("reasoning_summary_part.added", 0, summary_index=1),
            event("reasoning_summary_text.delta", 0, summary_index=1, delta="Second."),
            done(0, sealed),
            completed(),
        ],
        origin="http://h",
    )
    close = next(delta for delta in deltas if isinstance(delta, Close))
    origin, stored = close.result["encrypted_content"].split("\n")
    assert (origin, json.loads(stored)) == ("http://h", {"id": "rs_1", "encrypted_content": "gAAA"})
    item, _ = response_of(deltas).output
    assert isinstance(item, it.Reasoning) and item.summary[0].text == "First.\n\nSecond."


@pytest.mark.requirement("API-SUMMARISED")
def test_summary_beside_reasoning_does_not_split_its_text() -> None:
    deltas = deltas_of(
        [
            added(0, {"type": "reasoning", "id": "rs_1", "summary": []}),
            event("reasoning_text.delta", 0, content_index=0, delta="One. "),
            event("reasoning_summary_part.added", 0, summary_index=0),
            event("reasoning_summary_text.delta", 0, summary_index=0, delta="On"),
            event("reasoning_summary_text.delta", 0, summary_index=0, delta="e."),
            event("reasoning_summary_text.done", 0, summary_index=0, text="One."),
            event("reasoning_text.delta", 0, content_index=0, delta="Two."),
            event("reasoning_text.done", 0, content_index=0, text="One. Two."),
            done(0, {"type": "reasoning", "id": "rs_1", "summary": []}),
            completed(),
        ]
    )
    item = response_of(deltas).output[0]
    assert isinstance(item, it.Reasoning) and item.summary == (it.SummaryText(text="One."),)
    assert item.content == (it.ReasoningText(text="One. Two."),)


@pytest.mark.parametrize(
    ("fields", "most", "reason"),
    [
        ({}, None, "stop"),
        ({"incomplete_details": {"reason": "max_output_tokens"}}, None, "length"),  # vLLM
        ({"status": "incomplete"}, None, "length"),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, None, None),
        ({"usage": {"input_tokens": 1, "output_tokens": 5}}, 5, "length"),  # llama-server
        ({"usage": {"input_tokens": 1, "output_tokens": 4}}, 5, "stop"),
    ],
)
def test_finish_reason_follows_from_status_details_and_usage(
    fields: Json, most: int | None, reason: str | None
) -> None:
    finish = deltas_of([completed(**fields)], max_output_tokens=most)[-1]
    assert isinstance(finish, Finish) and finish.reason == (reason or "content_filter")


@pytest.mark.parametrize(
    "payload",
    [
        {"type": "error", "code": "server_error", "message": "broken"},
        {"type": "error", "error": {"message": "broken"}},
        {"error": {"message": "broken"}},
        {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"message": "broken"}},
        },
        {"type": "response.completed", "response": {"status": "cancelled"}},
    ],
)
def test_reported_failure_raises_backend_error(payload: Json) -> None:
    with pytest.raises(BackendError):
        deltas_of([payload])


def test_rate_limit_error_keeps_its_code() -> None:
    error = {"code": "rate_limit_exceeded", "message": "wait"}
    failed = {"type": "response.failed", "response": {"status": "failed", "error": error}}
    with pytest.raises(BackendError) as raised:
        deltas_of([failed])
    assert raised.value.code == "rate_limit_exceeded"


@pytest.mark.parametrize("payloads", [[], [added(0, call("a"))], [{"type": "response.created"}]])
def test_incomplete_stream_raises(payloads: list[Json]) -> None:
    with pytest.raises(BackendError, match="broke off"):
        deltas_of(payloads)


def test_malformed_events_raise_and_unknown_events_are_ignored() -> None:
    for payload in (b"nonsense", b"[]", b'{"delta": {}, "item": 7}'):
        with pytest.raises(BackendError, match="cannot be read"):
            ResponsesStreamParser({}).feed([payload])
    odd = [
        {"type": "response.something.new", "output_index": 9},
        {"type": "response.output_text.delta", "output_index": 0, "delta": None},
        added(3, {"type": "brand_new_call", "id": "x"}),
        done(3, {"type": "brand_new_call", "id": "x"}),
        {"type": "keepalive"},
        completed(),
    ]
    deltas = deltas_of(odd)
    assert isinstance(deltas[-1], Finish)
    assert not [d for d in deltas if isinstance(d, Open) and not isinstance(d.item, it.Message)]


# --- streams that contradict themselves -----------------------------------------------------------

_CITED = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
_TAGS = sorted(str(cls.__struct_config__.tag) for cls in KINDS)
_FIELDS: Json = {
    "annotations": [_CITED],
    "arguments": "{}",
    "call_id": "call_1",
    "code": "1",
    "container_id": "c",
    "content": [{"type": "output_text", "text": "So", "annotations": [_CITED]}],
    "id": "x_1",
    "input": "in",
    "name": "look",
    "output": "out",
    "result": "aGk=",
    "role": "assistant",
    "server_label": "desk",
    "summary": [{"type": "summary_text", "text": "Hm."}],
    "tools": [],
}
_STEPS = sorted(
    {
        f"{cls.__struct_config__.tag}.{name}"
        for cls, kind in KINDS.items()
        for name in (*kind.progress, "output_item.done")
    }
)
_DELTAS = sorted(
    str(channel.delta.__struct_config__.tag)
    for kind in (*KINDS.values(), *OPEN_RESPONSES_KINDS.values())
    for channel in kind.channels.values()
)


def _items() -> st.SearchStrategy[Json]:
    statuses = st.sampled_from(("in_progress", "completed", "incomplete", "failed"))
    names = st.lists(st.sampled_from(sorted(_FIELDS)), unique=True)
    return st.builds(
        lambda tag, names, status: {
            **{name: _FIELDS[name] for name in names},
            "type": tag,
            "status": status,
        },
        st.sampled_from(_TAGS),
        names,
        statuses,
    )


def _events() -> st.SearchStrategy[Json]:
    item_events = st.builds(
        lambda end, item: {"type": f"response.output_item.{end}", "item": item},
        st.sampled_from(("added", "done")),
        _items(),
    )
    deltas = st.builds(
        lambda name, index: {"type": name, "delta": "ab", "summary_index": index},
        st.sampled_from(_DELTAS),
        st.integers(0, 1),
    )
    steps = st.builds(
        lambda name: {"type": f"response.{name}", **_PREVIEW}, st.sampled_from(_STEPS)
    )
    annotations = st.just({"type": "response.output_text.annotation.added", "annotation": _CITED})
    positions = st.fixed_dictionaries(
        {},
        optional={
            "output_index": st.integers(0, 3),
            "item_id": st.sampled_from(("x_1", "x_2")),
        },
    )
    any_event = st.one_of(item_events, deltas, steps, annotations)
    return st.builds(lambda one, position: {**one, **position}, any_event, positions)


_PREVIEW: Json = {"partial_image_b64": "aGk=", "partial_image_index": 0}


@pytest.mark.requirement("UP-NONSENSE")
@examples(300)
@given(
    events=st.lists(_events(), max_size=12),
    reason=st.sampled_from((None, "max_output_tokens", "content_filter")),
    output=st.lists(_items(), max_size=2),
)
def test_any_order_of_events_gives_a_legal_stream(
    events: list[Json], reason: str | None, output: list[Json]
) -> None:
    """Types, ids, positions and steps that contradict each other, in any order."""
    details = {} if reason is None else {"incomplete_details": {"reason": reason}}
    deltas = deltas_of([*events, completed(*output, **details)])
    number = count()
    out = ResponseWriter(
        Response(id="resp_1", created_at=0, model="m"),
        ids=lambda prefix: f"{prefix}_{next(number)}",
    )
    out.create()
    out.start()
    recorder = Recorder(out)
    recorder.record(deltas)
    out.finalize("incomplete" if recorder.is_truncated else "completed", at=0, usage=recorder.usage)
    check(out.take())


def test_halves_of_characters_and_broken_arguments_do_not_cost_the_answer() -> None:
    payloads = [
        added(0, {"type": "message", "id": "m"}),
        event("output_text.delta", 0, delta="\ude00 a \ud83d"),
        event("output_text.delta", 0, delta="\ude00 b"),
        done(0, {"type": "message", "id": "m", "content": []}),
        added(1, call("look")),
        event("function_call_arguments.delta", 1, delta="{'at': \"a\tb\", "),
        event("function_call_arguments.delta", 1, delta="}"),
        done(1, call("look", status="completed")),
        completed(),
    ]
    response = response_of(deltas_of(payloads))
    message, called = response.output
    assert isinstance(message, it.Message) and message.content[0].text == "\ufffd a 😀 b"  # type: ignore[union-attr]
    assert isinstance(called, it.FunctionCall) and json.loads(called.arguments) == {"at": "a\tb"}


def test_call_whose_arguments_cannot_be_repaired_is_incomplete() -> None:
    payloads = [
        added(0, call("look")),
        event("function_call_arguments.delta", 0, delta='{"at": "sea" side'),
        done(0, call("look", status="completed")),
        completed(),
    ]
    (called,) = response_of(deltas_of(payloads)).output
    assert isinstance(called, it.FunctionCall) and called.status == "incomplete"

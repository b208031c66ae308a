"""Chat Completions streams of many servers, correct and incorrect, parsed into deltas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from antiphon.backends.remote.chat_completions import stream_parser
from antiphon.backends.remote.chat_completions.stream_parser import ChatStreamParser
from antiphon.dialects.parser.tool_call import ToolShape
from antiphon.errors import BackendError
from antiphon.stream.deltas import Close, Delta, Open
from antiphon.testing.delta_reader import ReplyRecord as Read
from antiphon.testing.delta_reader import read_reply
from antiphon.wire.items import CustomToolCall, FunctionCall, Message, Reasoning
from antiphon.wire.response import OutputTokensDetails

SHAPES = {
    "look": ToolShape(wire_name="look", schema={"properties": {"at": {"type": "string"}}}),
    "desk__look": ToolShape(wire_name="look", namespace="desk"),
    "patch": ToolShape(wire_name="patch", custom=True),
}
JSON = Mapping[str, Any]


def parse_deltas(
    deltas: Sequence[JSON], reason: str | None = "stop", *, done: bool = True, **more: Any
) -> Read:
    """The reply parsed from a stream of these deltas."""
    reading = ChatStreamParser(SHAPES, used_call_ids=["taken"], origin="http://h", input_tokens=7)
    payloads = [{"choices": [{"delta": delta}]} for delta in deltas]
    payloads.append({"choices": [{"delta": {}, "finish_reason": reason}], **more})
    found = [d for each in payloads for d in reading.feed([json.dumps(each).encode()])]
    return read_reply([*found, *reading.finish(done=done)])


def ended(reading: ChatStreamParser) -> list[Delta]:
    """The last deltas of an answer that ends with a finish reason."""
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    return [*reading.feed([json.dumps(end).encode()]), *reading.finish(done=True)]


def item_pairs(reply: Read) -> list[tuple[str, str]]:
    """Each item as a short pair."""
    short = {Message: "message", Reasoning: "reasoning"}
    return [
        (
            getattr(each.item, "name", "") or short[type(each.item)],
            "|".join(each.text.values()),
        )
        for each in reply.items
    ]


def call(index: int | None = 0, id: str | None = None, name: str | None = None, args: Any = None):  # type: ignore[no-untyped-def]
    """A piece of a call."""
    function = {"name": name, "arguments": args}
    given = {"index": index, "id": id, "type": "function"}
    return {
        **{key: value for key, value in given.items() if value is not None},
        "function": {key: value for key, value in function.items() if value is not None},
    }


def calls(*pieces: JSON) -> list[JSON]:
    return [{"tool_calls": [piece]} for piece in pieces]


TWO = [("look", '{"at":"sea"}'), ("look", '{"at":"sky"}')]

STREAMS: dict[str, tuple[list[JSON], list[tuple[str, str]]]] = {
    "text": (
        [{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}],
        [("message", "Hello")],
    ),
    "nothing": ([{"role": "assistant", "content": None}], []),
    "DeepSeek's thinking": (
        [
            {"role": "assistant", "content": None, "reasoning_content": ""},
            {"content": None, "reasoning_content": "Hm"},
            {"content": "Yes", "reasoning_content": None},
        ],
        [("reasoning", "Hm"), ("message", "Yes")],
    ),
    "OpenRouter's thinking": (
        [{"reasoning": "H"}, {"reasoning": "m", "content": ""}, {"content": "Yes"}],
        [("reasoning", "Hm"), ("message", "Yes")],
    ),
    "Mistral's thinking": (
        [
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}]},
            {"content": [{"type": "text", "text": "Yes"}]},
        ],
        [("reasoning", "Hm"), ("message", "Yes")],
    ),
    "thinking of white space": (
        [{"reasoning_content": "\n"}, {"content": "a"}],
        [("message", "a")],
    ),
    "all at once": (
        [{"content": "Yes", "reasoning_content": "Hm", "tool_calls": [call(0, "a", "look", "{}")]}],
        [("reasoning", "Hm"), ("message", "Yes"), ("look", "{}")],
    ),
    "a refusal": ([{"refusal": "I can"}, {"refusal": "not."}], [("message", "I cannot.")]),
    "a call": (
        calls(
            call(0, "a", "look", ""),
            call(0, args='{"at"'),
            call(0, args=':"sea'),
            call(0, args='"}'),
        ),
        TWO[:1],
    ),
    "two calls in turn": (
        calls(
            call(0, "a", "look", '{"at":'),
            call(0, args='"sea"}'),
            call(1, "b", "look", '{"at":"sky"}'),
        ),
        TWO,
    ),
    "two calls mixed": (
        calls(
            call(0, "a", "look", ""),
            call(1, "b", "look", ""),
            call(1, args='{"at":"s'),
            call(0, args='{"at":"sea"'),
            call(1, args='ky"}'),
            call(0, args="}"),
        ),
        TWO,
    ),
    "two calls in one piece": (
        [
            {
                "tool_calls": [
                    call(0, "a", "look", '{"at":"sea"}'),
                    call(1, "b", "look", '{"at":"sky"}'),
                ]
            }
        ],
        TWO,
    ),
    "no ids": (
        calls(call(0, None, "look", '{"at":"sea"}'), call(1, "", "look", '{"at":"sky"}')),
        TWO,
    ),
    "one index for all": (
        calls(call(0, "a", "look", '{"at":"sea"}'), call(0, "b", "look", '{"at":"sky"}')),
        TWO,
    ),
    "one index, no ids": (
        calls(call(0, None, "look", '{"at":"sea"}'), call(0, None, "look", '{"at":"sky"}')),
        TWO,
    ),
    "no index": (
        calls(
            call(None, "a", "look", '{"at":'),
            call(None, None, None, '"sea"}'),
            call(None, "b", "look", '{"at":"sky"}'),
        ),
        TWO,
    ),
    "the id in every piece": (
        calls(call(0, "a", "look", '{"at"'), call(0, "a", None, ':"sea"}'), call(0, "a", None, "")),
        TWO[:1],
    ),
    "the name in every piece": (
        calls(
            call(0, "a", "look", ""), call(0, "a", "look", '{"at":'), call(0, "a", "look", '"sea"}')
        ),
        TWO[:1],
    ),
    "the name in pieces": (
        calls(call(0, "a", "lo", ""), call(0, None, "ok", ""), call(0, args='{"at":"sea"}')),
        TWO[:1],
    ),
    "arguments said twice": (
        calls(call(0, "a", "look", '{"at":"sea"}'), call(0, None, None, '{"at":"sea"}')),
        TWO[:1],
    ),
    "arguments as an object": (
        calls(call(0, "a", "look", {"at": "sea"})),
        [("look", '{"at": "sea"}')],
    ),
    "no arguments": (calls(call(0, "a", "look")), [("look", "{}")]),
    "empty arguments, twice": (
        calls(call(0, "a", "look", ""), call(1, "b", "look", "")),
        [("look", "{}"), ("look", "{}")],
    ),
    "empty arguments, twice, without an index": (
        calls(call(None, None, "look", {}), call(None, None, "patch", '{"input": "a"}')),
        [("look", "{}"), ("patch", "a")],
    ),
    "names of two calls without arguments": (
        calls(call(None, None, "look", ""), call(None, None, "desk__look", "")),
        [("look", "{}"), ("look", "{}")],
    ),
    "an index in a string, an id that is a number": (
        calls(call("0", 5, "look", '{"at"'), call("0", None, None, ':"sea"}')),  # type: ignore[arg-type]
        TWO[:1],
    ),
    "an empty object in two pieces before the arguments": (
        calls(call(0, "a", "look", "{"), call(0, args="}"), call(0, args='{"at":"sea"}')),
        TWO[:1],
    ),
    "an empty object for each call before the arguments": (
        calls(
            call(0, "a", "look", "{}"),
            call(1, "b", "look", "{}"),
            call(0, args='{"at":"sea"}'),
            call(1, args='{"at":'),
            call(1, args='"sky"}'),
        ),
        TWO,
    ),
    "a call without parameters before another call": (
        calls(call(0, "a", "patch", "{}"), call(1, "b", "look", "{}"), call(1, args="{}")),
        [("patch", ""), ("look", "{}")],
    ),
    "an empty list of arguments": (calls(call(0, "a", "look", "[]")), [("look", "{}")]),
    "another way to write a name": (calls(call(0, "a", "functions.Look", "{}")), [("look", "{}")]),
    "arguments that are no JSON": (
        calls(call(0, "a", "look", "at the sea")),
        [("look", "at the sea")],
    ),
    "line ends beside a call": (
        [
            {"content": "\n\n"},
            *calls(call(0, "a", "look", '{"at":')),
            {"content": "\n"},
            *calls(call(0, args='"sea"}')),
        ],
        [("message", "\n\n"), *TWO[:1]],
    ),
    "text after a call": (
        [*calls(call(0, "a", "look", '{"at":"sea"')), {"content": "There."}],
        [("look", '{"at":"sea"}'), ("message", "There.")],
    ),
    "text between the pieces of a call": (
        [
            *calls(call(0, "a", "look", '{"at"')),
            {"content": "There "},
            {"reasoning_content": "Hm."},
            *calls(call(1, "b", "look", '{"at":"b"}')),
            {"content": "it is."},
            *calls(call(0, args=':"sea"}')),
        ],
        [
            ("look", '{"at":"sea"}'),
            ("look", '{"at":"b"}'),
            ("message", "There "),
            ("reasoning", "Hm."),
            ("message", "it is."),
        ],
    ),
    "broken arguments": (
        calls(call(0, "a", "look", '{\'at\': "a\tb", "n": True, }')),
        [("look", '{"at": "a\\tb", "n": true}')],
    ),
    "a lone half of a character": ([{"content": "\ude00 ok"}], [("message", "\ufffd ok")]),
    "a character in two chunks": (
        [{"content": "a \ud83d"}, {"content": "\ude00 b \ud83d"}],
        [("message", "a 😀 b \ufffd")],
    ),
    "halves of two texts": (
        [
            {"reasoning_content": "a \ud83d"},
            {"reasoning_content": "\ude00"},
            {"content": "b \ud83d"},
            {"content": "c"},
        ],
        [("reasoning", "a 😀"), ("message", "b \ufffdc")],
    ),
    "a namespace": (calls(call(0, "a", "desk__look", "{}")), [("look", "{}")]),
    "a custom tool": (
        calls(
            call(0, "a", "patch", '{"in'),
            call(0, args='put": "*** Beg'),
            call(0, args='in\\n\\u00e9"'),
            call(0, args="}"),
        ),
        [("patch", "*** Begin\né")],
    ),
    "a tool nobody has": (calls(call(0, "a", "dig", '{"x":1}')), [("dig", '{"x":1}')]),
    "functions of old": (
        [
            {"function_call": {"name": "look", "arguments": ""}},
            {"function_call": {"arguments": '{"at":"sea"}'}},
        ],
        TWO[:1],
    ),
    "no name, and arguments that fit one tool": (
        calls(call(0, "a", None, '{"at":"sea"}')),
        TWO[:1],
    ),
    "no name, and arguments that fit no tool": (
        calls(call(0, "a", None, '{"to"'), call(0, None, None, ':"sea"}')),
        [("message", '{"to":"sea"}')],
    ),
    "an id alone": (calls(call(0, "a")), []),
    "an empty object before the arguments": (
        calls(call(0, "a", "look", {}), call(0, args='{"at"'), call(0, args=':"sea"}')),
        TWO[:1],
    ),
    "empty objects before the arguments of two calls": (
        calls(
            call(0, "a", "look", "{}"),
            call(0, args='{"at":"sea"}'),
            call(1, "b", "look", "{}"),
            call(1, args='{"at":"sky"}'),
        ),
        TWO,
    ),
    "an empty object before text": (
        [*calls(call(0, "a", "look", "{}")), {"content": "Hm."}, *calls(call(0, args=TWO[0][1]))],
        [*TWO[:1], ("message", "Hm.")],
    ),
    "two calls, the first without arguments": (
        calls(call(0, "a", "look", "{}"), call(1, "b", "look", '{"at":"sky"}')),
        [("look", "{}"), TWO[1]],
    ),
    "the name in every piece, and no id": (
        calls(
            call(0, None, "look", '{"at":'), call(0, None, "look", '"sea"}'), call(0, None, "look")
        ),
        TWO[:1],
    ),
}


@pytest.mark.requirement("UP-BROKEN")
@pytest.mark.parametrize("name", STREAMS)
def test_stream_of_deltas_becomes_items(name: str) -> None:
    deltas, expected = STREAMS[name]
    assert item_pairs(parse_deltas(deltas)) == expected


@pytest.mark.parametrize("name", [name for name in STREAMS if name != "text after a call"])
def test_unstreamed_response_is_parsed_alike(name: str) -> None:
    """A whole message in place of deltas: some servers never stream."""
    deltas, expected = STREAMS[name]
    if len(deltas) > 1:
        return
    reading = ChatStreamParser(SHAPES)
    whole = {"choices": [{"message": deltas[0], "finish_reason": "stop"}]}
    found = [*reading.feed([json.dumps(whole).encode()]), *reading.finish(done=False)]
    assert item_pairs(read_reply(found)) == expected


def test_pieces_are_yielded_immediately() -> None:
    reading = ChatStreamParser(SHAPES)
    sizes = [
        len(reading.feed([json.dumps({"choices": [{"delta": delta}]}).encode()]))
        for delta in (
            {"content": "a"},
            {"content": "b"},
            *calls(call(0, "a", "look", '{"at":')),
            *calls(call(0, args='"sea')),
            *calls(call(1, "b", "look", '{"at":"sky"}')),  # waits for the first
            *calls(call(0, args='"}')),
        )
    ]
    assert sizes == [2, 1, 3, 1, 0, 5]


def test_text_that_waits_for_a_call_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_parser, "MAX_RESPONSE_BYTES", 100)
    for kind in ("content", "reasoning"):
        with pytest.raises(BackendError, match="too long"):
            parse_deltas([*calls(call(0, "a", "look", '{"at"')), *([{kind: "word "}] * 30)])


def test_used_call_ids_are_dropped() -> None:
    reply = parse_deltas(
        calls(
            call(0, "taken", "look", "{}"), call(1, "b", "look", "{}"), call(2, "b", "look", "{}")
        )
    )
    ids = [each.item.call_id for each in reply.items if isinstance(each.item, FunctionCall)]
    assert ids == ["", "b", ""]


@pytest.mark.parametrize("indices", [(0, 1), (0, 0)])
def test_parallel_calls_with_one_id_stay_two(indices: tuple[int, int]) -> None:
    first, second = indices
    reply = parse_deltas(
        [
            {"tool_calls": [call(first, "same", "look", '{"at": "a"}')]},
            {"tool_calls": [call(second, "same", "desk__look", '{"at": ')]},
            {"tool_calls": [call(second, "same", None, '"b"}')]},
        ]
    )
    assert item_pairs(reply) == [("look", '{"at": "a"}'), ("look", '{"at": "b"}')]
    ids = [each.item.call_id for each in reply.items if isinstance(each.item, FunctionCall)]
    assert ids == ["same", ""], "the run makes an id for the second"


def test_parallel_calls_of_one_function_with_one_id_stay_two() -> None:
    reply = parse_deltas(
        [
            {"tool_calls": [call(0, "same", "look", ""), call(1, "same", "look", "")]},
            {"tool_calls": [call(0, "same", None, '{"at": "a"}')]},
            {"tool_calls": [call(1, "same", None, '{"at": "b"}')]},
        ]
    )
    assert item_pairs(reply) == [("look", '{"at": "a"}'), ("look", '{"at": "b"}')]


def test_custom_calls_become_custom_items() -> None:
    reply = parse_deltas(calls(call(0, "a", "patch", '{"input":"x"}')))
    assert isinstance(reply.items[0].item, CustomToolCall)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("stop", "stop"),
        ("tool_calls", "stop"),
        ("function_call", "stop"),
        ("eos", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("content_filter", "content_filter"),
        ("SAFETY".lower(), "content_filter"),
    ],
)
def test_finish_reasons_of_upstreams_are_translated(reason: str, expected: str) -> None:
    reply = parse_deltas([{"content": "a"}], reason)
    assert reply.finish is not None and reply.finish.reason == expected
    assert reply.items[0].closed == (expected == "stop")


@pytest.mark.requirement("UP-FAILOVER")
@pytest.mark.parametrize("done", [False, True])
def test_only_a_finish_reason_ends_an_answer(done: bool) -> None:
    """Routers send the end mark behind an answer whose server has died, too."""
    reading = ChatStreamParser({})
    reading.feed([json.dumps({"choices": [{"delta": {"content": "So"}}]}).encode()])
    with pytest.raises(BackendError, match="broke off"):
        reading.finish(done=done)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ({"stop_reason": "END"}, "END"),
        ({"matched_stop": "END"}, "END"),
        ({"stop_reason": 17, "matched_stop": "<|im_end|>"}, None),
        ({}, None),
    ],
)
def test_stop_string_of_the_request_is_reported(reported: JSON, expected: str | None) -> None:
    reading = ChatStreamParser({}, stop=("END",))
    choice = {"delta": {"content": "So"}, "finish_reason": "stop", **reported}
    deltas = [*reading.feed([json.dumps({"choices": [choice]}).encode()])]
    assert read_reply([*deltas, *reading.finish(done=True)]).finish.stop_text == expected


def test_truncated_call_stays_open() -> None:
    pieces = calls(call(0, "a", "look", '{"at":"sea"}'), call(1, "b", "look", '{"at":"s'))
    reply = parse_deltas(pieces, "length")
    assert [each.closed for each in reply.items] == [True, False]
    assert item_pairs(reply) == [TWO[0], ("look", '{"at":"s')]


def test_usage_of_the_upstream_is_parsed() -> None:
    usage = {
        "prompt_tokens": 90,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 12},
    }
    reply = parse_deltas([{"content": "a"}], usage=usage)
    assert reply.finish is not None
    found = reply.finish.usage
    assert (found.input_tokens, found.output_tokens, found.total_tokens) == (90, 20, 110)
    assert found.input_tokens_details.cached_tokens == 64
    assert found.output_tokens_details.reasoning_tokens == 12


@pytest.mark.requirement("UP-THOUGHT")
@pytest.mark.parametrize("where", ["timings", "usage"])
def test_reasoning_tokens_are_counted_from_running_totals(where: str) -> None:
    """Tokens sampled before a text, such as a reasoning tag, belong to that text."""
    reading = ChatStreamParser(SHAPES)
    name = "predicted_n" if where == "timings" else "completion_tokens"
    steps: list[tuple[JSON, int]] = [
        ({"role": "assistant", "content": None}, 1),
        ({"reasoning_content": "I"}, 3),
        ({"reasoning_content": " see."}, 5),
        ({}, 6),
        ({"content": "A"}, 7),
        ({"reasoning_content": "Hm."}, 10),
        ({"tool_calls": [call(0, "a", "look", TWO[0][1])]}, 20),
    ]
    for delta, count in steps:
        result = {"choices": [{"delta": delta}], where: {name: count}}
        reading.feed([json.dumps(result).encode()])
    end = {"choices": [], where: {name: 22}, "usage": {"completion_tokens": 22}}
    reading.feed([json.dumps(end).encode()])
    assert read_reply([*ended(reading)]).finish.usage.output_tokens_details == (
        OutputTokensDetails(reasoning_tokens=8)
    )


@pytest.mark.parametrize("usage", ["none", {"completion_tokens": 2.5}, [1], 7])
def test_unreadable_usage_is_ignored(usage: Any) -> None:
    reply = parse_deltas([{"content": "nine char"}], usage=usage)
    assert item_pairs(reply) == [("message", "nine char")]
    assert (reply.finish.usage.input_tokens, reply.finish.usage.output_tokens) == (7, 3)


@pytest.mark.requirement("UP-BROKEN")
@pytest.mark.parametrize("first", [0, 3])
def test_only_one_choice_is_read(first: int) -> None:
    reading = ChatStreamParser(SHAPES)
    chunks: list[tuple[int, JSON]] = [
        (first, {"delta": {"content": "a"}}),
        (7, {"delta": {"content": "X"}}),
        (first, {"delta": {"content": "b"}}),
        (7, {"delta": {}, "finish_reason": "length"}),
        (first, {"delta": {}, "finish_reason": "stop"}),
    ]
    found = [
        delta
        for index, choice in chunks
        for delta in reading.feed([json.dumps({"choices": [{"index": index, **choice}]}).encode()])
    ]
    reply = read_reply([*found, *reading.finish(done=True)])
    assert item_pairs(reply) == [("message", "ab")] and reply.finish.reason == "stop"


@pytest.mark.requirement("UP-BROKEN")
@pytest.mark.parametrize("arguments", [['{"at":', ' "x"}'], ['{"at": "x"}', ""]])
def test_call_name_may_follow_its_arguments(arguments: list[str]) -> None:
    pieces = (call(id="a", args=arguments[0]), call(name="look", args=arguments[1]))
    assert item_pairs(parse_deltas(calls(*pieces), "tool_calls")) == [("look", '{"at": "x"}')]


def test_reasoning_details_are_joined() -> None:
    pieces: list[JSON] = [
        {"type": "reasoning.text", "index": 0, "text": "a", "signature": None, "format": "x"},
        {"type": "reasoning.text", "index": 0, "text": "b", "signature": "s1", "format": None},
        {"type": "reasoning.text", "index": 0, "text": None, "signature": "s2", "data": [1]},
        {"type": "reasoning.text", "index": 0, "data": "d"},
    ]
    reading = ChatStreamParser(SHAPES, origin="http://h")
    for piece in pieces:
        payload = {"choices": [{"delta": {"reasoning_details": [piece]}}]}
        reading.feed([json.dumps(payload).encode()])
    (remaining,) = [
        delta.result["encrypted_content"] for delta in ended(reading) if isinstance(delta, Close)
    ]
    assert json.loads(remaining.partition("\n")[2]) == [
        {
            "type": "reasoning.text",
            "index": 0,
            "text": "ab",
            "signature": "s1s2",
            "format": "x",
            "data": "d",
        }
    ]


def test_reported_reasoning_tokens_are_used() -> None:
    usage = {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
    reply = parse_deltas([{"reasoning_content": "a"}, {"content": "b"}], usage=usage)
    assert reply.finish.usage.output_tokens_details.reasoning_tokens == 4


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, (7, 3, 0, 0)),
        ({}, (7, 3, 0, 0)),
        ({"prompt_tokens": 5, "completion_tokens": None}, (5, 3, 0, 0)),
        ({"prompt_tokens": 5, "completion_tokens": 6, "prompt_cache_hit_tokens": 4}, (5, 6, 4, 0)),
        (
            {"prompt_tokens": 5, "completion_tokens": 6, "prompt_tokens_details": None}
            | {"completion_tokens_details": {"reasoning_tokens": 9}},
            (5, 6, 0, 6),
        ),
    ],
)
def test_missing_usage_is_estimated(usage: Any, expected: tuple[int, ...]) -> None:
    reply = parse_deltas([{"content": "nine char"}], usage=usage)
    assert reply.finish is not None
    found = reply.finish.usage
    assert expected == (
        found.input_tokens,
        found.output_tokens,
        found.input_tokens_details.cached_tokens,
        found.output_tokens_details.reasoning_tokens,
    )


def test_logprobs_are_parsed_and_made_finite() -> None:
    content = [
        {
            "token": "é",
            "logprob": -0.5,
            "bytes": [195, 169],
            "top_logprobs": [{"token": "e", "logprob": None}],
        },
        {"token": "b", "logprob": -99999, "bytes": None},
    ]
    reading = ChatStreamParser({})
    chunk = {"choices": [{"delta": {"content": "éb"}, "logprobs": {"content": content}}]}
    reply = read_reply([*reading.feed([json.dumps(chunk).encode()]), *ended(reading)])
    first, second = reply.items[0].logprobs
    assert (first.token, first.logprob, first.bytes) == ("é", -0.5, (195, 169))
    assert (first.top_logprobs[0].logprob, first.top_logprobs[0].bytes) == (-9999.0, (101,))
    assert (second.logprob, second.bytes, second.top_logprobs) == (-9999.0, (98,), ())


def test_reasoning_details_are_stored_for_their_upstream() -> None:
    pieces = [
        {
            "reasoning": "H",
            "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "H"}],
        },
        {
            "reasoning_details": [
                {"type": "reasoning.text", "index": 0, "text": "m", "signature": "s"}
            ]
        },
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "=="}]},
        {"content": "Yes"},
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 2, "data": "late"}]},
    ]
    reading = ChatStreamParser({}, origin="http://h")
    found = [
        delta
        for piece in pieces
        for delta in reading.feed([json.dumps({"choices": [{"delta": piece}]}).encode()])
    ]
    found += ended(reading)
    remaining = [
        delta.result["encrypted_content"]
        for delta in found
        if isinstance(delta, Close) and delta.result
    ]
    assert [each.split("\n")[0] for each in remaining] == ["http://h", "http://h"]
    first, late = (json.loads(each.split("\n")[1]) for each in remaining)
    assert first == [
        {"type": "reasoning.text", "index": 0, "text": "Hm", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "=="},
    ]
    assert late == [{"type": "reasoning.encrypted", "index": 2, "data": "late"}]
    assert item_pairs(read_reply(found)) == [
        ("reasoning", "Hm"),
        ("message", "Yes"),
        ("reasoning", ""),
    ]


@pytest.mark.parametrize(
    "payload",
    [
        b"nonsense",
        b"[1]",
        b'{"choices": "no"}',
        b'{"choices": [{"delta": {"content": 7}}]}',
        b"\xff\xfe",
        b'{"error": {"message": "it broke", "code": 502}}',
        b'{"error": "it broke"}',
        b'{"object": "error", "message": "it broke"}',
    ],
)
def test_malformed_chunks_and_errors_raise(payload: bytes) -> None:
    with pytest.raises(BackendError):
        ChatStreamParser({}).feed([payload])


def test_stream_errors_are_translated() -> None:
    with pytest.raises(BackendError) as raised:
        ChatStreamParser({}).feed([b'{"error": {"message": "wait", "code": 429}}'])
    assert raised.value.code == "rate_limit_exceeded"


@pytest.mark.parametrize("reason", ["abort", "error", "insufficient_system_resource", None])
def test_incomplete_stream_raises(reason: str | None) -> None:
    with pytest.raises(BackendError):
        parse_deltas([{"content": "a"}], reason, done=False)


def test_unusual_chunks_are_ignored() -> None:
    reading = ChatStreamParser({})
    for payload in (b"{}", b'{"choices": []}', b'{"choices": null, "usage": null}'):
        assert reading.feed([payload]) == ()
    assert not [d for d in ended(reading) if isinstance(d, Open)]

"""Events as ``text/event-stream``."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from antiphon.http.streaming.sse import (
    COMMENT,
    DONE,
    frame_events,
    frame_lines,
    frame_pieces,
    pad_chunks,
)
from antiphon.wire import events as ev
from antiphon.wire.response import Response


def delta(number: int, text: str) -> ev.Event:
    return ev.OutputTextDelta(
        sequence_number=number, item_id="msg_1", output_index=0, content_index=0, delta=text
    )


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_any_text_survives_the_framing(texts: list[str]) -> None:
    sent = frame_events([delta(number, text) for number, text in enumerate(texts)]) + DONE
    decoded = list(SSEDecoder().iter_bytes(iter([sent])))
    assert decoded.pop().data == "[DONE]"
    assert [json.loads(frame.data)["delta"] for frame in decoded] == texts
    assert {frame.event for frame in decoded} <= {"response.output_text.delta"}


def test_padding_leaves_comments_between_frames_unchanged() -> None:
    padded = pad_chunks(b'data: {"a":1}\n\n' + COMMENT + b'data: {"b":"c"}\n\n')
    first, comment, last, rest = padded.split(b"\n\n")
    assert (comment + b"\n\n", rest) == (COMMENT, b"")
    assert json.loads(first[6:])["a"] == 1 and json.loads(last[6:])["b"] == "c"
    assert len(first) == len(last)


def test_frame_is_two_lines_and_a_blank_line() -> None:
    assert frame_events([delta(3, "a\nb\r\u2028")]) == (
        b"event: response.output_text.delta\n"
        b'data: {"type":"response.output_text.delta","sequence_number":3,"item_id":"msg_1",'
        b'"output_index":0,"content_index":0,"delta":"a\\nb\\r\xe2\x80\xa8","logprobs":[]}\n\n'
    )


def test_frame_names_the_event_type() -> None:
    samples: dict[type, Any] = {
        ev.Created: ev.Created(
            sequence_number=0, response=Response(id="resp_1", created_at=1, model="m")
        ),
        ev.Keepalive: ev.Keepalive(sequence_number=1),
    }
    for event in samples.values():
        first, second, *_ = frame_events([event]).decode().split("\n")
        assert first == "event: " + json.loads(second.removeprefix("data: "))["type"]


def test_long_lines_are_framed_in_pieces() -> None:
    lines = [
        msgspec.json.encode(delta(number, "x" * size)) for number, size in ((3, 9), (4, 10**6))
    ]
    pieces = list(frame_pieces([memoryview(line) for line in lines]))
    assert max(map(len, pieces)) == 1 << 16
    assert b"".join(pieces) == frame_lines(lines)
    assert list(frame_pieces(lines[:1])) == [frame_lines(lines[:1])]

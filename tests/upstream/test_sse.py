from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import BackendError
from antiphon.upstream import sse as payloads
from antiphon.upstream.sse import SseParser


def read(*received: bytes) -> tuple[list[bytes], bool]:
    reader = SseParser()
    found = [payload for each in received for payload in reader.feed(each)]
    return found + reader.finish(), reader.done


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b'data: {"a":1}\n\ndata: {"b":2}\n\n', [b'{"a":1}', b'{"b":2}']),
        (b'data:{"a":1}\r\n\r\ndata:{"b":2}\r\n\r\n', [b'{"a":1}', b'{"b":2}']),
        (b': ping\n\nevent: x\nid: 7\nretry: 3\ndata: {"a":1}\n\n', [b'{"a":1}']),
        (b'data: {"a":\ndata: 1}\n\n', [b'{"a":\n 1}']),
        (b'data: {"a":1}', [b'{"a":1}']),
        (b'data: {"a":1}\n', [b'{"a":1}']),
        (b'{"error":"x"}\n', [b'{"error":"x"}']),
        (b"data: {}\n\ndata: [DONE]\n\ndata: {}\n\n", [b"{}"]),
        (b"data:\n\ndata: \n\n: OPENROUTER PROCESSING\n\n\n\n", []),
        (b"<html>no stream</html>", []),
        (b"", []),
    ],
)
def test_reader_returns_the_data_of_each_event(stream: bytes, expected: list[bytes]) -> None:
    assert read(stream)[0] == expected


def test_reader_reports_the_event_done() -> None:
    assert read(b"data: {}\n\ndata: [DONE]\n\n")[1]
    assert read(b"data: [DONE]")[1]
    assert not read(b"data: {}\n\n")[1]


@given(
    st.lists(
        st.sampled_from(
            [
                b'data: {"a":1}\n\n',
                b'event: e\ndata: {"a":1}\n\n',
                b'event: e\nid: 1\ndata: {"a":1}\n\n',
                b'event: e\n{"a":2}\ndata: {"a":1}\n\n',
                b'data: {"a":\ndata: 1}\n\n',
                b"data: \n\n",
                b"data: x\n\n",
                b"data: [DONE]\n\n",
                b"data: [DONE] \n\n",
                b'data: {"a":1}\r\n\r\n',
            ]
        ),
        min_size=1,
        max_size=5,
    )
)
def test_usual_events_are_read_as_single_bytes_are(events: list[bytes]) -> None:
    """Events that arrive as a whole are split at once, if all of them have a usual form."""
    stream = b"".join(events)
    assert read(stream) == read(*(stream[at : at + 1] for at in range(len(stream))))


@given(st.data())
def test_chunking_does_not_change_the_payloads(data: st.DataObject) -> None:
    lines = st.sampled_from(
        [b'data: {"a":1}', b"data:x", b": c", b"event: e", b"", b"", b"{}", b"data: [DONE]"]
    )
    ends = st.sampled_from([b"\n", b"\r\n"])
    stream = b"".join(line + data.draw(ends) for line in data.draw(st.lists(lines, max_size=12)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert read(*pieces) == read(stream)


def test_size_limit_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    long = b"x" * 10_000
    assert read(b"data: ", *[long] * 100, b"\n\n")[0] == [long * 100]
    monkeypatch.setattr(payloads, "MAX_RESPONSE_BYTES", 50_000)
    with pytest.raises(BackendError, match="too long"):
        read(b"data: ", *[long] * 6)

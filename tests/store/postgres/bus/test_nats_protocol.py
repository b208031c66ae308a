"""The protocol that reads messages from the connection of a NATS client."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.store.postgres.bus.nats_protocol import NatsProtocol, read_messages

from .fake_connection import Client, Transport, feed

MESSAGES = (b"", b"one", b"MSG a 1 3\r\nabc\r\n", b"PING\r\n", b"\x00\xff" * 400)
#: Lines between the messages, which the client must get.
LINES = (b"PING\r\n", b"+OK\r\n", b'INFO {"max_payload":1048576}\r\n', b"-ERR 'late'\r\n")


class Connection:
    """A protocol with a handler for channel "a", and what handler, client and transport got."""

    def __init__(self) -> None:
        self.transport, self.client = Transport(), Client()
        self.messages: list[bytes] = []
        handlers = {"a": self.messages.append}
        self.protocol = NatsProtocol(self.transport, self.client, handlers)


def stream() -> bytes:
    """Messages with and without a reply channel, and a line of each kind between them."""
    parts = []
    for number, message in enumerate(MESSAGES):
        reply = b"reply " if number % 2 else b""
        parts.append(b"MSG a 1 %b%d\r\n%b\r\n" % (reply, len(message), message))
        parts += LINES[number : number + 1]
    return b"".join(parts)


@given(st.sets(st.integers(1, len(stream()) - 1), max_size=30))
def test_messages_and_other_lines_survive_every_split_of_the_stream(cuts: set[int]) -> None:
    connection = Connection()
    feed(connection.protocol, stream(), cuts)
    assert connection.messages == list(MESSAGES)
    assert connection.client.received == b"".join(LINES)
    assert not connection.transport.is_aborted


@pytest.mark.parametrize(
    "data",
    [
        b"MSG other 2 3\r\nabc\r\n",
        b"HMSG a 1 12 15\r\nNATS/1.0\r\n\r\nabc\r\n",
    ],
)
def test_messages_of_other_channels_and_with_headers_are_dropped(data: bytes) -> None:
    connection = Connection()
    connection.protocol.data_received(data + b"MSG a 1 2\r\nhi\r\n")
    assert connection.messages == [b"hi"]
    assert connection.client.received == b""


@pytest.mark.parametrize(
    "data", [b"MSG a 1 many\r\n", b"MSG a 1 -9\r\n", b"MSG a 1 100000000\r\n", b"x" * 2_000_000]
)
def test_invalid_stream_closes_the_connection(data: bytes) -> None:
    connection = Connection()
    connection.protocol.data_received(data)
    assert connection.transport.is_aborted
    assert connection.messages == []


def test_events_of_the_connection_reach_the_client() -> None:
    connection = Connection()
    connection.protocol.pause_writing()
    connection.protocol.resume_writing()
    assert connection.protocol.eof_received()
    connection.protocol.connection_lost(None)
    assert connection.client.calls == [
        "pause_writing",
        "resume_writing",
        "eof_received",
        "connection_lost",
    ]


def test_client_without_the_expected_transport_keeps_its_own_way() -> None:
    read_messages(cast(Any, object()), {})

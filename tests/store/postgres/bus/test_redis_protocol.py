"""The protocol that reads messages from a Redis connection that only listens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.store.postgres.bus.redis_protocol import RedisProtocol

from .fake_connection import Client, Transport

MESSAGES = (b"", b"one", b"*3\r\n$7\r\nmessage\r\n", b"\x00\xff" * 400)


class Connection:
    """A protocol with handlers for channels "a" and "b", and the messages of "a"."""

    def __init__(self) -> None:
        self.transport, self.client = Transport(), Client()
        self.messages: list[bytes] = []
        handlers = {"a": self.messages.append, "b": lambda message: None}
        self.protocol = RedisProtocol(self.transport, self.client, handlers)


def array(*strings: bytes) -> bytes:
    """An array of strings as Redis sends it."""
    parts = [b"$%d\r\n%b\r\n" % (len(each), each) for each in strings]
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def subscribed(channel: bytes, count: int) -> bytes:
    """The confirmation of a subscription."""
    return b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%b\r\n:%d\r\n" % (len(channel), channel, count)


def stream() -> bytes:
    """Confirmations, then messages with answers to pings between them."""
    parts = [subscribed(b"a", 1), subscribed(b"b", 2)]
    for message in MESSAGES:
        parts += [array(b"message", b"a", message), array(b"pong", b"")]
    return b"".join(parts)


@given(st.sets(st.integers(1, len(stream()) - 1), max_size=30))
def test_messages_survive_every_split_of_the_stream(cuts: set[int]) -> None:
    connection = Connection()
    data, start = stream(), 0
    for end in (*sorted(cuts), len(data)):
        connection.protocol.data_received(data[start:end])
        start = end
    assert connection.messages == list(MESSAGES)
    assert connection.protocol.is_subscribed.is_set()
    assert not connection.transport.is_aborted


def test_connection_is_subscribed_when_all_channels_are_confirmed() -> None:
    connection = Connection()
    connection.protocol.data_received(subscribed(b"a", 1))
    assert not connection.protocol.is_subscribed.is_set()
    connection.protocol.data_received(subscribed(b"b", 2))
    assert connection.protocol.is_subscribed.is_set()


def test_messages_of_other_channels_are_dropped() -> None:
    connection = Connection()
    connection.protocol.data_received(array(b"message", b"c", b"x") + array(b"message", b"a", b"y"))
    assert connection.messages == [b"y"]


@pytest.mark.parametrize(
    "data", [b"-NOAUTH Authentication required.\r\n", b"HTTP/1.1 400 Bad Request\r\n", b":1\r\n"]
)
def test_unexpected_reply_closes_the_connection(data: bytes) -> None:
    connection = Connection()
    connection.protocol.data_received(data)
    assert connection.transport.is_aborted


def test_lost_connection_is_reported_to_the_client_too() -> None:
    connection = Connection()
    connection.protocol.pause_writing()
    connection.protocol.resume_writing()
    connection.protocol.connection_lost(None)
    assert connection.client.calls == ["pause_writing", "resume_writing", "connection_lost"]
    assert connection.protocol.is_lost.is_set()

"""The protocols of Redis connections: one only listens, the other sends commands."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.store.postgres.bus.base import BusError
from antiphon.store.postgres.bus.redis_protocol import RedisProtocol, RedisSender

from .fake_connection import Client, Transport, feed

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
    """Redis's reply to SUBSCRIBE. ``count``: number of channels that are subscribed then."""
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
    feed(connection.protocol, stream(), cuts)
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


PING = [("PING",)]
LOST = "The connection is lost"


def sender() -> tuple[RedisSender, Transport]:
    """Return a protocol that sends commands, and its transport."""
    transport = Transport()
    return RedisSender(transport, Client()), transport


@pytest.mark.parametrize("piece", [1, 3, 100])
async def test_each_caller_waits_for_the_replies_to_its_own_commands(piece: int) -> None:
    protocol, transport = sender()
    publishing = asyncio.create_task(
        protocol.send([("PUBLISH", "a", b"1\r\n"), ("PUBLISH", "b", b"2")])
    )
    pinging = asyncio.create_task(protocol.send(PING))
    await asyncio.sleep(0)
    assert transport.written == (
        b"*3\r\n$7\r\nPUBLISH\r\n$1\r\na\r\n$3\r\n1\r\n\r\n"
        b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nb\r\n$1\r\n2\r\n*1\r\n$4\r\nPING\r\n"
    )
    replies = b":1\r\n:0\r\n"
    for start in range(0, len(replies), piece):
        assert not publishing.done()
        protocol.data_received(replies[start : start + piece])
    await publishing
    assert not pinging.done()
    protocol.data_received(b"+PONG\r\n")
    await pinging
    assert not transport.is_aborted


async def test_refused_command_raises_after_all_replies() -> None:
    protocol, _ = sender()
    sending = asyncio.create_task(protocol.send([("PUBLISH", "a", b""), ("PUBLISH", "b", b"")]))
    await asyncio.sleep(0)
    protocol.data_received(b"-NOPERM no access to the channel\r\n")
    assert not sending.done()
    protocol.data_received(b":1\r\n")
    with pytest.raises(BusError, match="NOPERM no access"):
        await sending


async def test_lost_connection_ends_all_callers() -> None:
    protocol, transport = sender()
    waiting = [asyncio.create_task(protocol.send(PING)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    protocol.connection_lost(None)
    for task in (waiting[0], waiting[2]):
        with pytest.raises(BusError, match=LOST):
            await task
    transport.is_ended = True
    with pytest.raises(BusError, match=LOST):
        await protocol.send(PING)


@pytest.mark.parametrize("data", [b":1\r\n", b"HTTP/1.1 400 Bad Request\r\n"])
async def test_sender_aborts_at_a_reply_that_it_does_not_wait_for(data: bytes) -> None:
    protocol, transport = sender()
    protocol.data_received(data)
    assert transport.is_aborted

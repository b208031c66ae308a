"""The connection to a message bus: real servers that are killed and stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from antiphon.errors import SetupError
from antiphon.store import open_store
from antiphon.store.postgres import bus as bus_module
from antiphon.store.postgres.bus import BusConnection, MessageSigner, redis_connector
from tests.real.bus import BusServer, bus_server

_SECRET = b"s" * 32


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, answers may take long: a bus may drop messages, but not in these tests."""
    monkeypatch.setattr(bus_module, "_ANSWER_S", 60.0)
    monkeypatch.setattr(bus_module, "_SEND_S", 60.0)


@pytest.fixture
def bus() -> Iterator[BusServer]:
    """A running bus."""
    with bus_server() as running:
        if running is None:
            pytest.skip("no Redis or Valkey is installed")
        yield running


class Listener:
    """A connection with what it received on channel "a"."""

    def __init__(self, url: str, secret: bytes = _SECRET) -> None:
        self.connection = BusConnection(redis_connector(url), MessageSigner(secret))
        self.received: list[bytes] = []
        self.connections = 0
        self.changed = asyncio.Event()

    def start(self) -> None:
        """Listen."""
        self.connection.listen({"a": self._on_message}, self._on_connected)

    def _on_message(self, message: bytes) -> None:
        self.received.append(message)
        self.changed.set()

    def _on_connected(self) -> None:
        self.connections += 1
        self.changed.set()

    async def until(self, condition: str) -> None:
        """Wait until an expression over this listener, ``it``, is true."""
        async with asyncio.timeout(60):
            while not eval(condition, {"it": self}):
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def listening(url: str, secret: bytes = _SECRET) -> AsyncIterator[Listener]:
    """A listener that is connected."""
    listener = Listener(url, secret)
    listener.start()
    try:
        await listener.until("it.connections")
        yield listener
    finally:
        await listener.connection.close()


async def test_messages_arrive_in_order(bus: BusServer) -> None:
    async with listening(bus.url) as one, listening(bus.url) as other:
        messages = [b"%d" % n * (n + 1) for n in range(300)]
        assert await one.connection.publish([("a", each) for each in messages])
        assert await one.connection.publish([("b", b"for others")])
        await other.until("len(it.received) == 300")
        assert other.received == messages


async def test_messages_with_another_signature_are_ignored(bus: BusServer) -> None:
    async with listening(bus.url) as one, listening(bus.url, b"x" * 32) as stranger:
        assert await stranger.connection.publish([("a", b"forged")])
        assert await one.connection.publish([("a", b"true")])
        await one.until("it.received")
        assert one.received == [b"true"]


async def test_connection_is_opened_again_after_a_kill(bus: BusServer) -> None:
    async with listening(bus.url) as listener:
        await asyncio.to_thread(bus.kill)
        async with asyncio.timeout(60):
            while listener.connection.is_connected:
                await asyncio.sleep(0.01)
        assert not await listener.connection.publish([("a", b"lost")])
        await asyncio.to_thread(bus.start)
        await listener.until("it.connections == 2")
        assert await listener.connection.publish([("a", b"again")])
        await listener.until("it.received == [b'again']")


async def test_stopped_bus_counts_as_lost(bus: BusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_module, "_PING_S", 0.05)
    monkeypatch.setattr(bus_module, "_ANSWER_S", 0.5)
    async with listening(bus.url) as listener:
        bus.signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                while listener.connection.is_connected:
                    await asyncio.sleep(0.01)
        finally:
            bus.signal(signal.SIGCONT)
        await listener.until("it.connections >= 2")


async def test_missing_bus_is_no_error() -> None:
    listener = Listener("redis://127.0.0.1:9")
    listener.start()
    await asyncio.sleep(0)
    assert not await listener.connection.publish([("a", b"x")])
    await listener.connection.close()


@pytest.mark.parametrize("url", ["amqp://u:secret@h", "nats://u:secret@h", "redis", ""])
async def test_unknown_bus_is_refused(url: str) -> None:
    with pytest.raises(SetupError, match=r"^bus: use redis://") as refused:
        await open_store("postgresql://127.0.0.1:9/x", bus=url)
    assert "secret" not in str(refused.value)


async def test_bus_needs_postgresql() -> None:
    with pytest.raises(SetupError, match=r"^bus: needs a store postgresql://"):
        await open_store("memory:", bus="redis://127.0.0.1:9")


def test_signature_holds_for_one_channel() -> None:
    signer = MessageSigner(_SECRET)
    signed = signer.sign("a", b"message")
    assert signer.verify("a", signed) == b"message"
    assert signer.verify("b", signed) is None
    assert signer.verify("a", signed[:-1]) is None
    assert signer.verify("a", b"") is None

"""Large messages of WebSockets wait for the memory that large bodies share, for a short time."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import io
import json
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.server import ServerProtocol

from antiphon.http import app as http_app
from antiphon.http.app import create_app
from antiphon.http.middleware.auth import AuthConfig
from antiphon.http.requests import body as bodies
from antiphon.http.routes import websocket as route
from antiphon.http.server import websocket_protocol
from antiphon.http.server.connections import ConnectionLimits
from antiphon.limits.key_ring import AuthKey
from antiphon.limits.requests import RequestLimits
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.fair_threads import default_threads
from antiphon.support.logs import open_log
from antiphon.testing.memory_store.store import MemoryStore
from tests.conformance.server import Server
from tests.conformance.stepped_backend import SteppedBackend
from tests.conformance.test_socket import listen

SIZE = 2**20
FRAME = {"type": "response.create", "model": "tiny", "store": False, "input": "x" * (SIZE - 200)}
WHOLE = json.dumps(FRAME)
#: A message that is refused after it was read.
REFUSED = json.dumps({**FRAME, "background": True})
INVALID = "x" * (SIZE - 1)
KEYS = tuple(
    AuthKey(name=name, tenant=name, sha256=hashlib.sha256(name.encode()).hexdigest())
    for name in ("flood", "other", "victim")
)


class Sockets:
    """The WebSockets of tenants to a server with memory for four large messages, of which a tenant
    may hold three. Its model answers when ``answers`` is set."""

    def __init__(self, url: str, memory: FairLimiter, answers: asyncio.Event) -> None:
        self.memory, self.answers = memory, answers
        self._url = url
        self._opened = AsyncExitStack()

    async def open(self, tenant: str, **options: Any) -> ClientConnection:
        headers = {"authorization": f"Bearer {tenant}"}
        wire = connect(
            self._url, additional_headers=headers, max_size=None, close_timeout=0.1, **options
        )
        return await self._opened.enter_async_context(wire)

    async def fill(self) -> None:
        """Take all of the memory, by messages that do not end."""
        tenants = ("flood", "flood", "other", "other")
        self._holders = [await self.open(tenant) for tenant in tenants]
        await asyncio.gather(*map(send_unfinished_frame, self._holders))
        await self.until(lambda: self.memory.running == 4 * SIZE)

    def stop_holders(self) -> None:
        for each in self._holders:
            each.transport.abort()

    async def close(self) -> None:
        await self._opened.aclose()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.001)


@pytest.fixture
def limit() -> int:
    return SIZE


@pytest.fixture
async def sockets(monkeypatch: pytest.MonkeyPatch, limit: int) -> AsyncIterator[Sockets]:
    memory = FairLimiter(4 * SIZE, max_per_tenant=3 * SIZE)
    monkeypatch.setattr(websocket_protocol, "_CLOSE_S", 0.05)
    monkeypatch.setattr(http_app, "FairLimiter", lambda *limits, **more: memory)
    answers = asyncio.Event()
    server = Server(SteppedBackend([answers]), MemoryStore())
    server.app = create_app(
        server.service,
        AuthConfig(keys=KEYS),
        RequestLimits(max_body_bytes=limit),
        ids=lambda prefix: prefix,
        log=open_log(io.StringIO()),
    )
    rate = ConnectionLimits(body_bytes_per_s=SIZE)
    async with listen(server, max_frame_bytes=limit, limits=rate) as url:
        opened = Sockets(url, memory, answers)
        yield opened
        await opened.close()
        await opened.until(lambda: (memory.running, memory.waiting) == (0, 0))
    await server.close()


async def send_unfinished_frame(wire: ClientConnection) -> None:
    wire.transport.write(b"\x81\xff" + struct.pack("!Q", SIZE) + bytes(4) + b"x" * (SIZE // 2))


async def send_unfinished_fragments(wire: ClientConnection) -> None:
    piece = b"x" * 2**16
    for number in range(8):
        head = b"\x00" if number else b"\x01"
        wire.transport.write(head + b"\xff" + struct.pack("!Q", len(piece)) + bytes(4) + piece)


async def send_whole(wire: ClientConnection) -> None:
    await wire.send(WHOLE)


async def send_small_frames(wire: ClientConnection) -> None:
    for _ in range(8):
        await wire.send(json.dumps({**FRAME, "input": "x" * (SIZE // 8)}))


async def refusal_of(wire: ClientConnection) -> tuple[int, str]:
    """Return the code and the reason with which the server closes the connection."""
    async with asyncio.timeout(30):
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await wire.recv()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


@pytest.mark.parametrize(
    ("send", "compression", "waiting"),
    [
        (send_unfinished_frame, None, 5),
        (send_unfinished_fragments, None, 5),
        (send_whole, None, 5),
        (send_whole, "deflate", 5),
        (send_small_frames, None, 8),  # each holds memory for some of its frames
    ],
    ids=["one frame", "fragments", "running", "compressed", "many"],
)
async def test_flood_of_messages_leaves_memory_to_others(
    sockets: Sockets, send: Any, compression: Any, waiting: int
) -> None:
    flood = [await sockets.open("flood", compression=compression) for _ in range(8)]
    await asyncio.gather(*map(send, flood))
    await sockets.until(lambda: sockets.memory.waiting_of("flood") == waiting)
    assert 2 * SIZE < sockets.memory.running_of("flood") <= 3 * SIZE
    victim = await sockets.open("victim")
    async with asyncio.timeout(30):
        await victim.send(REFUSED)
        assert json.loads(await victim.recv())["error"]["param"] == "background"
        await victim.send('{"type": "bogus"}')
        assert json.loads(await victim.recv())["error"]["param"] == "type"
    assert sockets.memory.running_of("victim") == 0
    sockets.answers.set()


async def test_message_holds_its_memory_until_it_was_answered(sockets: Sockets) -> None:
    wire = await sockets.open("flood")
    await wire.send(WHOLE)
    await sockets.until(lambda: sockets.memory.running == len(WHOLE))
    await wire.send(WHOLE)
    await sockets.until(lambda: sockets.memory.running == 2 * len(WHOLE))
    sockets.answers.set()
    await sockets.until(lambda: sockets.memory.running == 0)


async def test_steering_holds_its_memory_until_it_was_answered(sockets: Sockets) -> None:
    wire = await sockets.open("flood")
    await wire.send(json.dumps({**FRAME, "input": "hi"}))
    target = json.loads(await wire.recv())["response"]["id"]
    steer = {"type": "response.steer", "previous_response_id": target, "input": FRAME["input"]}
    for number in range(1, 4):
        await wire.send(json.dumps(steer))
        await sockets.until(lambda count=number: sockets.memory.running > (count - 0.1) * SIZE)
    await wire.send(json.dumps(steer))
    await sockets.until(lambda: sockets.memory.waiting_of("flood") == 1)
    sockets.answers.set()
    await sockets.until(lambda: (sockets.memory.running, sockets.memory.waiting) == (0, 0))


@pytest.mark.parametrize("send", [send_unfinished_frame, send_unfinished_fragments])
async def test_message_for_which_no_memory_becomes_free_is_refused_by_name(
    sockets: Sockets, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sockets.fill()
    monkeypatch.setattr(route, "_MEMORY_WAIT_S", 0.05)
    victim = await sockets.open("victim")
    await send(victim)
    async with asyncio.timeout(30):
        refusal = json.loads(await victim.recv())
    assert refusal["status"] == 429
    assert "memory for large messages is in use" in refusal["error"]["message"]
    assert (await refusal_of(victim))[0] == 1013


async def test_waiting_message_survives_pings_until_memory_is_free(
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sockets.fill()
    pings: list[bytes] = []
    send_ping = ServerProtocol.send_ping
    monkeypatch.setattr(
        ServerProtocol,
        "send_ping",
        lambda protocol, data: pings.append(data) or send_ping(protocol, data),
    )
    monkeypatch.setattr(websocket_protocol, "_PING_S", 0.02)
    victim = await sockets.open("victim")
    await victim.send(REFUSED)
    pong = await victim.ping()
    await sockets.until(lambda: len(pings) > 3 and sockets.memory.waiting_of("victim") == 1)
    monkeypatch.setattr(websocket_protocol, "_PING_S", 20.0)
    sockets.stop_holders()
    async with asyncio.timeout(30):
        assert json.loads(await victim.recv())["error"]["param"] == "background"
        await pong


async def stop_reading(wire: ClientConnection) -> None:
    wire.transport.pause_reading()


@pytest.mark.parametrize(
    ("stall", "reason"),
    [
        (stop_reading, "keepalive ping timeout"),
        (send_unfinished_frame, "the message arrives too slowly"),
        (send_unfinished_fragments, "the message arrives too slowly"),
    ],
)
async def test_client_that_stalls_is_disconnected(
    sockets: Sockets, stall: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_protocol, "_PING_S", 0.05)
    ends: list[tuple[int, str]] = []
    fail = ServerProtocol.fail
    monkeypatch.setattr(
        ServerProtocol,
        "fail",
        lambda protocol, *end: ends.append(end) or fail(protocol, *end),
    )
    wire = await sockets.open("flood")
    await stall(wire)
    await sockets.until(lambda: bool(ends))
    assert ends == [(1011, reason)]
    wire.transport.abort()


@pytest.mark.parametrize("limit", [1000, bodies.SMALL_BYTES, SIZE])
async def test_message_that_decompresses_to_too_much_is_refused(
    sockets: Sockets, limit: int
) -> None:
    wire = await sockets.open("flood", compression="deflate")
    await wire.send("x" * (limit + 1))
    assert (await refusal_of(wire))[0] == 1009


async def test_compressed_message_may_be_as_large_as_the_limit(sockets: Sockets) -> None:
    wire = await sockets.open("flood", compression="deflate")
    for _ in range(2):  # the second one refers to the first
        await wire.send(REFUSED.ljust(SIZE))
        assert json.loads(await wire.recv())["error"]["param"] == "background"


async def test_invalid_compression_ends_the_connection(sockets: Sockets) -> None:
    wire = await sockets.open("flood", compression="deflate")
    wire.transport.write(b"\xc1\x84" + bytes(4) + b"\xff" * 4)
    assert (await refusal_of(wire))[0] == 1002


async def test_message_of_tiny_fragments_is_read_in_small_steps(
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    received = websocket_protocol.WebSocketProtocol.data_received

    def data_received(protocol: websocket_protocol.WebSocketProtocol, data: bytes) -> None:
        sizes.append(len(data))
        received(protocol, data)

    monkeypatch.setattr(websocket_protocol.WebSocketProtocol, "data_received", data_received)
    wire = await sockets.open("flood")
    empty, ping = b"\x00\x80" + bytes(4), b"\x89\x80" + bytes(4)
    wire.transport.write(b"\x01\x81" + bytes(4) + b"{" + (empty + ping) * 10_000)
    wire.transport.write(b"\x80\x81" + bytes(4) + b"}")
    assert "'type'" in json.loads(await wire.recv())["error"]["message"]
    assert len(sizes) > 7 and max(sizes) <= 2**14


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_idle_connection_keeps_no_message(sockets: Sockets, compression: str | None) -> None:
    """Nothing refers to a message that was processed, even before a garbage collection."""
    asyncio.get_running_loop().set_default_executor(default_threads())
    wires = [await sockets.open("victim", compression=compression) for _ in range(3)]
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for wire in wires:
            await wire.send(json.dumps({"type": "response.create"}))  # loads what is needed once
            await wire.recv()
        before = tracemalloc.get_traced_memory()[0]
        for wire in wires:
            for message in (REFUSED, INVALID):
                await wire.send(message)
                assert json.loads(await wire.recv())["type"] == "error"
        await sockets.until(lambda: tracemalloc.get_traced_memory()[0] - before < SIZE // 2)
    finally:
        tracemalloc.stop()
        gc.enable()

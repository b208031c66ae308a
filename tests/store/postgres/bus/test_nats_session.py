"""How a connection to NATS begins."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("nats")

from antiphon.store.postgres.bus.nats_session import connector

INFO = b'INFO {"server_id":"a","version":"2.12.0","max_payload":1048576,"proto":1}\r\n'


async def test_subscriptions_are_processed_when_the_connection_is_ready() -> None:
    """Otherwise the first messages would be lost. A server processes commands in their order."""
    commands: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        while line := await reader.readline():
            commands.append(line.split()[0])
            if commands[-1] == b"PING":
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(60):
        port = server.sockets[0].getsockname()[1]
        handlers = {name: lambda message: None for name in ("a", "b")}
        session = await connector()(f"nats://127.0.0.1:{port}", handlers)
        assert commands.count(b"SUB") == 2
        assert commands[-1] == b"PING"
        await session.close()

"""A TCP proxy in front of PostgreSQL whose connections can be cut or stopped."""

from __future__ import annotations

import asyncio
from contextlib import suppress

_CHUNK = 65536


class Proxy:
    """Forwards connections to ``port`` on loopback. ``port`` may be changed while it runs."""

    def __init__(self, port: int) -> None:
        self.target_port = port
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Close all connections. New ones are accepted."""
        for writer in list(self._writers):
            writer.transport.abort()

    def stop_flow(self) -> None:
        """Forward nothing, but keep the connections open."""
        self._flowing.clear()

    def resume_flow(self) -> None:
        """Forward again."""
        self._flowing.set()

    async def close(self) -> None:
        """Stop listening and close all connections."""
        self.resume_flow()
        if self._server is not None:
            self._server.close()
        self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            self._forget(writer)
            return
        self._writers.add(to_writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pipe(reader, to_writer))
                group.create_task(self._pipe(to_reader, writer))
        finally:
            self._forget(writer)
            self._forget(to_writer)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()

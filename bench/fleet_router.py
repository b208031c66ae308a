"""A router in front of engines, for machines without a real one: ``python -m bench.fleet_router
PORT URL…``. Requests with the same session key go to the same engine, and others in turn, as
vllm-router's and SMG's do."""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import zlib
from collections.abc import Sequence
from urllib.parse import urlsplit

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_SESSION = re.compile(rb"\r\nx-session-id: *([^\r]+)", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\nconnection: *[^\r]+", re.IGNORECASE)


async def serve(port: int, engines: Sequence[str]) -> None:
    """Forward each request to an engine, until this task is cancelled."""
    numbers = itertools.cycle(range(len(engines)))

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the first request of a connection. The engine closes it after its response."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1])) if length else b""
        session = _SESSION.search(head)
        number = next(numbers) if session is None else zlib.crc32(session[1]) % len(engines)
        url = urlsplit(engines[number])
        answer, engine = await asyncio.open_connection(url.hostname, url.port)
        head = _CONNECTION.sub(b"", head)
        engine.write(head[:-2] + b"connection: close\r\n\r\n" + body)
        while part := await answer.read(65_536):
            writer.write(part)
            await writer.drain()
        engine.close()
        writer.close()

    async with await asyncio.start_server(forward, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2:]))

"""The load generator: connections that repeat a request over raw sockets, in its own process.

``python -m bench.load`` reads a plan as JSON from its arguments and prints the result as JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

import msgspec
from msgspec import Struct


class Plan(Struct, frozen=True, kw_only=True):
    """A load: ``requests`` in all over ``connections`` kept open. ``body``: the request as JSON."""

    port: int
    body: str
    connections: int
    requests: int


class Result(Struct, frozen=True, kw_only=True):
    """Seconds in all, number of events, and seconds to each request's first event."""

    wall_s: float
    events: int
    first_s: list[float]


def load(plan: Plan) -> Result:
    """Run the plan in a separate process."""
    command = [sys.executable, "-m", "bench.load", msgspec.json.encode(plan).decode()]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return msgspec.json.decode(output, type=Result)


async def _ask(plan: Plan) -> Result:
    head = (
        f"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1:{plan.port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(plan.body)}\r\n\r\n"
    )
    request = (head + plan.body).encode()
    left = plan.requests
    events = 0
    first: list[float] = []

    async def connection() -> None:
        nonlocal left, events
        reader, writer = await asyncio.open_connection("127.0.0.1", plan.port)
        while left > 0:
            left -= 1
            started = time.perf_counter()
            writer.write(request)
            observed = await _answer(reader, started, first)
            events += observed
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(connection() for _ in range(plan.connections)))
    return Result(wall_s=time.perf_counter() - started, events=events, first_s=first)


async def _answer(reader: asyncio.StreamReader, started: float, first: list[float]) -> int:
    """Read one response to its end; return its number of events."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(head.decode())
    if b"content-length:" in head:
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        first.append(time.perf_counter() - started)
        return 1
    events, seen = 0, False
    while size := int(await reader.readuntil(b"\r\n"), 16):
        chunk = await reader.readexactly(size + 2)
        events += chunk.count(b"data: {")
        if not seen and b".delta" in chunk:
            seen = True
            first.append(time.perf_counter() - started)
    await reader.readexactly(2)
    if not seen:  # a body without events
        first.append(time.perf_counter() - started)
    return events


if __name__ == "__main__":
    result = asyncio.run(_ask(msgspec.json.decode(sys.argv[1], type=Plan)))
    print(json.dumps(msgspec.to_builtins(result)))

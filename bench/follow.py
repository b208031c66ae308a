"""Readers of background runs over raw sockets, in their own process. They measure the age of each
event.

The model of ``bench.servers`` writes the current time. ``python -m bench.follow`` reads a plan as
JSON from its input and prints the result as JSON.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from contextlib import suppress

import msgspec
from msgspec import Struct

_TIMESTAMP = re.compile(rb'"delta":"([0-9.]+) "')


class FollowPlan(Struct, frozen=True, kw_only=True):
    """Follow these responses at this port to their end, or for ``seconds``."""

    port: int
    ids: list[str]
    seconds: float


class EventAges(Struct, frozen=True, kw_only=True):
    """Number of events received while all readers were connected, and their age in seconds."""

    events: int
    median_s: float
    p99_s: float


def follow(plan: FollowPlan) -> subprocess.Popen[bytes]:
    """Start the readers; the process prints an ``EventAges``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.follow"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(plan))
    process.stdin.close()
    return process


async def _follow(plan: FollowPlan) -> EventAges:
    received: list[tuple[float, float]] = []
    started: list[float] = []
    done: list[float] = []

    async def one(response_id: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", plan.port)
        path = f"/v1/responses/{response_id}?stream=true"
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        first = True
        while piece := await reader.read(65536):
            now = time.monotonic()
            if first:
                started.append(now)
                first = False
            received.extend((now, now - float(sent)) for sent in _TIMESTAMP.findall(piece))
            if b"data: [DONE]" in piece:
                done.append(now)
                break
        writer.close()

    with suppress(TimeoutError):
        async with asyncio.timeout(plan.seconds):
            await asyncio.gather(*(one(response_id) for response_id in plan.ids))
    # Only while all readers are connected: events from before a reader's start are old.
    since, until = max(started, default=0.0) + 0.5, min(done, default=time.monotonic())
    ages = sorted(age for at, age in received if since < at < until)
    if not ages:
        return EventAges(events=0, median_s=0.0, p99_s=0.0)
    return EventAges(
        events=len(ages), median_s=ages[len(ages) // 2], p99_s=ages[int(len(ages) * 0.99)]
    )


if __name__ == "__main__":
    result = asyncio.run(_follow(msgspec.json.decode(sys.stdin.buffer.read(), type=FollowPlan)))
    print(json.dumps(msgspec.to_builtins(result)))

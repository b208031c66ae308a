"""Readers of background runs, over raw sockets, in a process of their own: how old is what they
hear? The model of ``bench.servers`` says the time.

``python -m bench.follow`` reads a plan as JSON from its input and prints what happened as JSON.
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

__all__ = ["Heard", "Plan", "follow"]

_SAID = re.compile(rb'"delta":"([0-9.]+) "')


class Plan(Struct, frozen=True, kw_only=True):
    """Follow these responses at this port, to their end or for ``seconds``."""

    port: int
    ids: list[str]
    seconds: float


class Heard(Struct, frozen=True, kw_only=True):
    """Events heard while all readers were there, and the age in seconds at which their words came:
    median and 99th percentile."""

    events: int
    median_s: float
    p99_s: float


def follow(plan: Plan) -> subprocess.Popen[bytes]:
    """Begin; its output is a ``Heard``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.follow"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(plan))
    process.stdin.close()
    return process


async def _follow(plan: Plan) -> Heard:
    heard: list[tuple[float, float]] = []
    begun: list[float] = []
    done: list[float] = []

    async def one(response_id: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", plan.port)
        path = f"/v1/responses/{response_id}?stream=true"
        writer.write(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        first = True
        while piece := await reader.read(65536):
            now = time.monotonic()
            if first:
                begun.append(now)
                first = False
            heard.extend((now, now - float(said)) for said in _SAID.findall(piece))
            if b"data: [DONE]" in piece:
                done.append(now)
                break
        writer.close()

    with suppress(TimeoutError):
        async with asyncio.timeout(plan.seconds):
            await asyncio.gather(*(one(response_id) for response_id in plan.ids))
    # While all of them went: what was said before a reader came is old, which is no news.
    since, until = max(begun, default=0.0) + 0.5, min(done, default=time.monotonic())
    ages = sorted(age for at, age in heard if since < at < until)
    if not ages:
        return Heard(events=0, median_s=0.0, p99_s=0.0)
    return Heard(events=len(ages), median_s=ages[len(ages) // 2], p99_s=ages[int(len(ages) * 0.99)])


if __name__ == "__main__":
    heard = asyncio.run(_follow(msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)))
    print(json.dumps(msgspec.to_builtins(heard)))

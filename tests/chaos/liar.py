"""A client of the message bus that repeats messages of servers, late and in any order, and forges
others."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

_Message = tuple[str, bytes]
#: Messages to choose from.
_MEMORY = 200
_RETRY_S = 1.0


async def lie(url: str, random: Random, end: float, counts: Counter[str]) -> None:
    """Send false messages until ``end``, in seconds of ``time.monotonic``."""
    while time.monotonic() < end:
        with suppress(Exception):  # the bus is killed and stopped, too
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                await _lie_over(url, random, counts)
        await asyncio.sleep(_RETRY_S)


async def _lie_over(url: str, random: Random, counts: Counter[str]) -> None:
    import redis.asyncio

    heard: deque[_Message] = deque(maxlen=_MEMORY)
    async with redis.asyncio.Redis.from_url(url) as client, client.pubsub() as listener:
        await listener.psubscribe("*")

        async def listen() -> None:
            async for message in listener.listen():
                if message["type"] == "pmessage":
                    heard.append((message["channel"].decode(), message["data"]))

        listening = asyncio.create_task(listen())
        try:
            await _repeat_and_forge(heard, client.publish, random, counts)
        finally:
            listening.cancel()


async def _repeat_and_forge(
    heard: deque[_Message],
    publish: Callable[[str, bytes], Awaitable[Any]],
    random: Random,
    counts: Counter[str],
) -> None:
    while True:
        await asyncio.sleep(random.uniform(0, 0.05))
        if not heard:
            continue
        channel, message = random.choice(heard)
        if random.random() < 0.5:
            at = random.randrange(len(message) + 1)
            message = message[:at] + bytes([random.randrange(256)]) + message[at + 1 :]
            counts["forged messages"] += 1
        else:
            channel = random.choice(heard)[0]
            counts["repeated messages"] += 1
        await publish(channel, message)

"""Measure sandboxes: time to the first answer, and overhead of a call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from antiphon.errors import SetupError
from antiphon.sandbox.base import Limits
from antiphon.sandbox.bubblewrap import BoxSetup, Bubblewrap

from .table import Line, median

_BOXES, _CALLS = 10, 50


def kernel() -> Iterator[Line]:
    """Measure cold and pooled sandboxes. Skipped where sandboxing is unavailable."""
    try:
        built = BoxSetup.detect()
        yield from asyncio.run(_measure(built))
    except SetupError as error:
        yield Line(what="kernel: not here", value=0, unit="", note=str(error))


async def _measure(built: BoxSetup) -> list[Line]:
    cold, first, later, warm = [], [], [], []
    plain, pooled = Bubblewrap(built), Bubblewrap(built, pool_size=1)
    await pooled.check()
    for _ in range(_BOXES):
        started = time.perf_counter()
        box = await plain.open(Limits())
        cold.append(time.perf_counter() - started)
        for remaining, count in ((first, 1), (later, _CALLS)):
            for _ in range(count):
                started = time.perf_counter()
                await box.python("1", timeout_s=5, max_chars=100)
                remaining.append(time.perf_counter() - started)
        await box.close()
        started = time.perf_counter()
        box = await pooled.open(Limits())
        warm.append(time.perf_counter() - started)
        await box.close()
        await asyncio.sleep(0.2)  # the pool is filled again
    await pooled.close()
    return [
        Line(what="kernel: a box, cold", value=median(cold) * 1000, unit="ms", at_most=200),
        Line(what="kernel: a box, from the pool", value=median(warm) * 1000, unit="ms", at_most=1),
        Line(what="kernel: its first call", value=median(first) * 1000, unit="ms", at_most=50),
        Line(what="kernel: a later call", value=median(later) * 1000, unit="ms", at_most=2),
    ]

"""Claims of background runs by several processes over one PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tests.real.postgres import Postgres, postgres

from .table import Line

#: Servers, seconds of each measurement, and runs a second.
_SERVERS, _SECONDS, _RATES = 8, 20.0, (2, 20)


def claims() -> Iterator[Line]:
    """Measure the number of claims and heartbeats per run, including the ones of idle servers. All
    servers are in this process, and each has its own connections."""
    with postgres(max_connections="200") as server:
        for rate in _RATES:
            yield from asyncio.run(_claims(server, rate))


class _Counter:
    """``StoreObserver`` that counts operations."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def on_operation(self, operation: str, seconds: float, *, failed: bool) -> None:
        self.counts[operation] += 1

    def on_append(self, batches: int, events: int) -> None: ...

    def on_usage(self, records: Sequence[Any]) -> None: ...

    def on_follower(self, subscription: Any) -> None: ...


async def _claims(server: Postgres, rate: int) -> list[Line]:
    from antiphon.store import open_store
    from antiphon.store.upkeep.store_observer import observe_store
    from antiphon.wire.parsing.requests import parse_create_response

    url, counter = await server.create_database(), _Counter()
    stores = [await open_store(url, connections=4) for _ in range(_SERVERS)]
    services = [_service(observe_store(store, counter, time.monotonic)) for store in stores]
    for service in services:
        service.start()
    await asyncio.sleep(1)  # they listen
    counter.counts.clear()
    body = {"model": "scripted", "input": "hi", "background": True}
    request = parse_create_response(json.dumps(body).encode())
    runs, start = int(rate * _SECONDS), time.monotonic()
    for number in range(runs):
        await asyncio.sleep(max(0.0, start + number / rate - time.monotonic()))
        await services[number % _SERVERS].enqueue("t", request)
    await asyncio.sleep(1)
    counts = dict(counter.counts)
    for service in services:
        await service.drain(5)
    for store in stores:
        await store.close()
    if counts["runs.end"] != runs:
        raise RuntimeError(f"{counts['runs.end']} of {runs} runs ended")
    return [
        Line(
            what=f"{_SERVERS} servers, {rate} runs/s: claims a run",
            value=counts["runs.claim"] / runs,
            unit="",
            at_most=1.2,
            note=f"{counts['runs.heartbeat'] / runs:.2f} heartbeats a run",
        )
    ]


def _service(store: Any) -> Any:
    from antiphon.backends.scripted_backend import ScriptedBackend
    from antiphon.models.catalog import Catalog, ServedModel
    from antiphon.runs.dependencies import RunDependencies
    from antiphon.runs.policy import Policy
    from antiphon.runs.service import Service
    from antiphon.wire.object_ids import new_id

    backend = ScriptedBackend([" ".join(["word"] * 20)], wait_s=0.01)
    return Service(
        RunDependencies(
            models=Catalog((ServedModel(name="scripted", backend=backend, created=0),)),
            store=store,
            clock=time.time,
            ids=lambda prefix: new_id(prefix, time.time()),
            policy=Policy(),
        )
    )

"""Costs of durable state: event logs in each store, readers on another process, many runs at a
time, and the loss of a run's owner."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.real.postgres import Postgres, postgres

from .follow import EventAges, FollowPlan, follow
from .process import Process, running
from .table import Line, median


@contextmanager
def _stores() -> Iterator[tuple[dict[str, str], Postgres]]:
    """Yield a fresh store's URL for each kind."""
    with tempfile.TemporaryDirectory() as folder, postgres() as server:
        yield (
            {
                "SQLite": f"sqlite:{Path(folder) / 'bench.db'}",
                "PostgreSQL": asyncio.run(server.create_database()),
            },
            server,
        )


def appends() -> Iterator[Line]:
    """Events per second into each store: 256 runs, a few events of each per flush."""
    with _stores() as (urls, _):
        for kind, url in urls.items():
            rate, cpu = asyncio.run(_append(url))
            note = f"{cpu:.1f} µs of this process each"
            what = f"{kind}: events appended a second, 256 runs"
            yield Line(what=what, value=rate, unit="/s", note=note)


async def _append(url: str) -> tuple[float, float]:
    from antiphon.store import open_store
    from antiphon.store.records import Append, EventBatch
    from antiphon.testing.store_checks.runs import begin_run

    store = await open_store(url)
    claims = [await begin_run(store, str(n)) for n in range(256)]
    line = b'{"type":"response.output_text.delta","sequence_number":7,"delta":"hello "}\n'
    flushes, each, at = 60, 3, 2
    clock, cpu = time.perf_counter(), time.process_time()
    for _ in range(flushes):
        batch = EventBatch(first=at, count=each, lines=line * each, tokens=b"1234" * each)
        await store.runs.append([Append(claim, batch) for claim in claims])
        at += each
    count = flushes * each * len(claims)
    rate = count / (time.perf_counter() - clock)
    spent = (time.process_time() - cpu) / count * 1e6
    await store.close()
    return rate, spent


def turns() -> Iterator[Line]:
    """A conversation of 500 turns over SQLite without a model: time and bytes of turn 500."""
    with tempfile.TemporaryDirectory() as folder:
        times, sizes = asyncio.run(_turns(f"sqlite:{Path(folder) / 'bench.db'}"))
    late, early = median(times[495:500]), median(times[3:8])
    yield Line(
        what="SQLite: time of turn 500 against turn 5",
        value=late / early,
        unit="x",
        note=f"{late * 1000:.2f} to {early * 1000:.2f} ms",
    )
    yield Line(
        what="SQLite: bytes that turn 500 adds against turn 5",
        value=sizes[499] / sizes[4],
        unit="x",
        at_most=1.05,
        note=f"{sizes[499]} to {sizes[4]}",
    )


async def _turns(url: str) -> tuple[list[float], list[int]]:
    from antiphon.backends.scripted_backend import ScriptedBackend
    from antiphon.models.catalog import Catalog, ServedModel
    from antiphon.runs.dependencies import RunDependencies
    from antiphon.runs.policy import Policy
    from antiphon.runs.service import Service
    from antiphon.store import open_store
    from antiphon.wire.object_ids import new_id
    from antiphon.wire.parsing.requests import parse_create_response

    store = await open_store(url)
    served = ServedModel(name="scripted", backend=ScriptedBackend(["a short answer"]), created=0)
    service = Service(
        RunDependencies(
            models=Catalog((served,)),
            store=store,
            clock=time.time,
            ids=lambda prefix: new_id(prefix, time.time()),
            policy=Policy(keepalive_s=0),
        )
    )
    times: list[float] = []
    sizes: list[int] = []
    previous: str | None = None
    for _ in range(505):
        body = {"model": "scripted", "input": "a short question", "previous_response_id": previous}
        started = time.perf_counter()
        run = await service.create("t", parse_create_response(json.dumps(body).encode()))
        previous = (await run.drive()).id
        times.append(time.perf_counter() - started)
        stored = await store.load("t", previous)
        sizes.append(len(msgspec.json.encode(stored)))
    await store.close()
    return times, sizes


def followers() -> Iterator[Line]:
    """256 background runs of 50 events a second in one process, read in it and in another."""
    streams, words = 256, 600
    with _stores() as (urls, _), ExitStack() as stack:
        url = urls["PostgreSQL"]
        owner = stack.enter_context(running("replica", url, str(streams), str(words), "0.02"))
        other = stack.enter_context(running("replica", url, "0", str(words), "0.02"))
        ages: dict[str, EventAges] = {}
        for name, at in (("its own", owner), ("another", other)):
            ids = [_begin(owner) for _ in range(streams)]
            spent = owner.cpu_s, other.cpu_s
            ages[name] = received = _read_ages(
                follow(FollowPlan(port=at.port, ids=ids, seconds=30))
            )
            cpu = owner.cpu_s - spent[0], other.cpu_s - spent[1]
            yield Line(
                what=f"PostgreSQL: age of an event read at {name} process, p99",
                value=received.p99_s * 1000,
                unit="ms",
                note=f"median {received.median_s * 1000:.1f} ms of {received.events} events;"
                f" CPU {cpu[0]:.1f} s and {cpu[1]:.1f} s",
            )
        own, far = ages["its own"], ages["another"]
        for what, added, limit in (
            ("median", far.median_s - own.median_s, None),
            ("p99", far.p99_s - own.p99_s, 60),
        ):
            yield Line(
                what=f"PostgreSQL: added by the other process, {what}",
                value=added * 1000,
                unit="ms",
                at_most=limit,
            )


def many() -> Iterator[Line]:
    """A thousand concurrent background runs in one process, over SQLite."""
    streams, words = 1_000, 100
    with _stores() as (urls, _):
        with running("replica", urls["SQLite"], str(streams), str(words), "0.1") as server:
            before, started = server.rss_bytes, time.perf_counter()
            ids = [_begin(server) for _ in range(streams)]
            peak = before
            while any(_status(server, name) != "completed" for name in (ids[0], ids[-1])):
                peak = max(peak, server.rss_bytes)
                time.sleep(0.2)
            took = time.perf_counter() - started
            grown = (peak - before) / 2**20
            note = f"{streams} runs of {words} words in {took:.1f} s, {server.cpu_s:.1f} s of CPU"
            yield Line(
                what="SQLite: 1000 background runs at a time, events a second",
                value=streams * words / took,
                unit="/s",
                note=note,
            )
            yield Line(what="SQLite: memory for them", value=grown, unit="MB")


def takeover() -> Iterator[Line]:
    """Time from the death of a run's owner to the next event at a reader of another process."""
    with _stores() as (urls, _):
        url = urls["PostgreSQL"]
        gaps: list[float] = []
        with running("replica", url, "8", "1000", "0.02") as owner:
            name = _begin(owner)
            while _status(owner, name) == "queued":
                time.sleep(0.05)
            # Started after the run, so it does not own the run.
            with running("replica", url, "8", "1000", "0.02") as other:
                asyncio.run(_kill(owner, other, name, gaps))
        yield Line(
            what="PostgreSQL: kill to next event, lease of 1 s",
            value=max(gaps) * 1000,
            unit="ms",
        )


async def _kill(owner: Process, other: Process, name: str, gaps: list[float]) -> None:
    import os
    import signal

    reader, writer = await asyncio.open_connection("127.0.0.1", other.port)
    writer.write(
        f"GET /v1/responses/{name}?stream=true HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
    )
    pieces, killed, last = 0, False, time.perf_counter()
    while (piece := await reader.read(65536)) and b"[DONE]" not in piece:
        now = time.perf_counter()
        if killed:
            gaps.append(now - last)
        last, pieces = now, pieces + 1
        if pieces == 50:
            killed = True
            os.kill(owner.pid, signal.SIGKILL)
    writer.close()


def _begin(server: Process) -> str:
    body = json.dumps({"model": "scripted", "input": "hi", "background": True}).encode()
    found: str = _json(server, "/v1/responses", body)["id"]
    return found


def _status(server: Process, name: str) -> str:
    found: str = _json(server, f"/v1/responses/{name}")["status"]
    return found


def _json(server: Process, path: str, body: bytes | None = None) -> Any:
    url = f"http://127.0.0.1:{server.port}{path}"
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
        return json.load(answer)


def _read_ages(process: Any) -> EventAges:
    output = process.stdout.read()
    process.wait(timeout=30)
    return msgspec.json.decode(output, type=EventAges)

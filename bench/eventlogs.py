"""Event logs over PostgreSQL as many processes use them: one that writes, others that follow.

``python -m bench.eventlogs URL BUS FOLDER ID…`` follows runs to their end and prints the ages of
their events. BUS: the URL of a bus, or "-". FOLDER: the folder with the sockets of this host, or
"-".
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from antiphon.http.server.serve import frozen_gc, run
from tests.real.bus import BusServer, bus_server
from tests.real.postgres import Postgres, postgres

from .process import Process, family_cpu_s
from .table import Line, median

#: Runs, events a second of each, seconds, and bytes of each event.
_RUNS, _RATE, _SECONDS, _BYTES = 256, 20, 5.0, 400
_CONNECTIONS = 16


def listeners() -> Iterator[Line]:
    """Measure 256 runs with 20 events a second each: CPU time for each batch, and age of the events
    when other processes read them. With "sockets", they use one folder for sockets."""
    for count in (8, 30, 100):
        for kind in ("sockets", "notifications", "redis"):
            with ExitStack() as stack:
                bus = stack.enter_context(bus_server()) if kind == "redis" else None
                if bus is not None or kind in ("sockets", "notifications"):
                    server = stack.enter_context(postgres(max_connections="400"))
                    folder = stack.enter_context(TemporaryDirectory())
                    peers = Path(folder) if kind == "sockets" else None
                    yield from run(_listeners(server, count, bus, peers, kind))


async def _listeners(
    server: Postgres, processes: int, bus: BusServer | None, peers: Path | None, kind: str
) -> list[Line]:
    from antiphon.store import open_store
    from antiphon.store.records import RunEnd
    from antiphon.testing.store_checks.runs import batch, begin_run, ended_response

    url = await server.create_database()
    bus_url = None if bus is None else bus.url
    store = await open_store(url, bus=bus_url, peers=peers)
    with store.runs.subscribe("t", "resp_none"):
        pass  # it listens
    claims = [await begin_run(store, str(n)) for n in range(_RUNS)]
    ids = [claim.job.id for claim in claims]
    followed = ids[: 4 * processes]
    readers = [_reader(url, bus_url, peers, followed[n::processes]) for n in range(processes)]
    for reader in readers:
        assert reader.stdout is not None
        await asyncio.to_thread(reader.stdout.readline)
    await asyncio.sleep(1)  # they listen
    before = _cpu(server, bus, readers)
    flushes, written = await _write(store, claims)
    used = [after - at for after, at in zip(_cpu(server, bus, readers), before, strict=True)]
    for n, claim in enumerate(claims):
        await store.runs.end(claim, RunEnd(stored=ended_response(str(n)), batch=batch(10**6, 0)))
    ages: list[float] = []
    for reader in readers:
        found, _ = await asyncio.to_thread(reader.communicate)
        ages += msgspec.json.decode(found, type=list[float])
    await store.close()
    ages.sort()
    what = f"{processes} listening processes, {kind}"
    note = f"{written / _SECONDS:.0f} batches/s, {written / flushes:.0f} in a transaction"
    writer, database, followers, messages = (each / written * 1e6 for each in used)
    return [
        Line(what=f"{what}: CPU of the writer a batch", value=writer, unit="µs"),
        Line(what=f"{what}: of the database", value=database, unit="µs", note=note),
        Line(what=f"{what}: of the bus", value=messages, unit="µs"),
        Line(what=f"{what}: of all followers", value=followers, unit="µs"),
        Line(
            what=f"{what}: age of an event, median",
            value=ages[len(ages) // 2] * 1000,
            unit="ms",
            note=f"p95 {ages[int(len(ages) * 0.95)] * 1000:.1f} ms of {len(ages)} events",
        ),
    ]


def _cpu(
    server: Postgres, bus: BusServer | None, readers: Sequence[subprocess.Popen[bytes]]
) -> tuple[float, float, float, float]:
    """CPU time of this process, the database, the readers and the bus, in seconds."""
    return (
        time.process_time(),
        family_cpu_s(server.pid),
        sum(Process(port=0, pid=reader.pid).cpu_s for reader in readers),
        0.0 if bus is None else Process(port=0, pid=bus.pid).cpu_s,
    )


async def _write(store: object, claims: Sequence[object]) -> tuple[int, int]:
    """Write events of all runs evenly; return the number of transactions and of batches."""
    from antiphon.runs.background.event_log_writer import EventLogWriter, LogSink
    from antiphon.runs.background.worker import LeaseConfig
    from antiphon.wire.events import OutputTextDelta

    counts = [0, 0]

    class Counted:
        async def append(self, appends: Sequence[object]) -> frozenset[str]:
            counts[0] += 1
            counts[1] += len(appends)
            return await store.runs.append(appends)  # type: ignore[attr-defined, no-any-return]

    runs = Counted()
    writer = EventLogWriter(runs, flush_s=LeaseConfig().flush_s)  # type: ignore[arg-type]
    sinks = [
        LogSink(
            writer, runs, claim, array("I"), conversation=None,  # type: ignore[arg-type]
            expires_at=lambda: None, webhook=lambda response: None, usage=lambda response: None,
            clock=time.time,
        )
        for claim in claims
    ]  # fmt: skip

    async def produce(sink: LogSink, start: float) -> None:
        for n in range(int(_RATE * _SECONDS)):
            await asyncio.sleep(max(0.0, start + n / _RATE - time.monotonic()))
            delta = f"{time.monotonic():.6f} ".ljust(_BYTES)
            event = OutputTextDelta(
                item_id="msg", output_index=0, content_index=0, delta=delta, sequence_number=2 + n
            )
            sink.write((event,))

    now = time.monotonic()
    tasks = (produce(sink, now + n / len(sinks) / _RATE) for n, sink in enumerate(sinks))
    await asyncio.gather(*tasks)
    await writer.wait_until_idle()
    return counts[0], counts[1]


def commits() -> Iterator[Line]:
    """Measure commits per second of 16 connections, with fsync. Plain inserts and appends to runs
    with readers alternate. With "sockets", the readers are on the same host."""
    for kind in ("sockets", "notifications"):
        with postgres(fsync="on") as server, TemporaryDirectory() as folder:
            yield from run(_commits(server, Path(folder) if kind == "sockets" else None, kind))


async def _commits(server: Postgres, peers: Path | None, kind: str) -> list[Line]:
    import asyncpg

    from antiphon.store import open_store
    from antiphon.store.records import Append
    from antiphon.testing.store_checks.runs import batch, begin_run

    url = await server.create_database()
    stores = [await open_store(url, peers=peers) for _ in range(_CONNECTIONS)]
    pool = await asyncpg.create_pool(url, min_size=_CONNECTIONS, max_size=_CONNECTIONS)
    await pool.execute("CREATE TABLE plain (n BIGINT, b BYTEA)")
    names = [f"{kind}{n}" for kind in "ab" for n in range(_CONNECTIONS)]
    claims = [await begin_run(stores[n % _CONNECTIONS], name) for n, name in enumerate(names)]
    reader = _reader(url, None, peers, [claim.job.id for claim in claims[_CONNECTIONS:]])
    assert reader.stdout is not None
    await asyncio.to_thread(reader.stdout.readline)
    await asyncio.sleep(1)
    at = [2] * len(claims)
    data = b"x" * 200

    async def insert(n: int) -> None:
        await pool.execute("INSERT INTO plain VALUES ($1, $2)", n, data)

    async def append(n: int) -> None:
        await stores[n % _CONNECTIONS].runs.append((Append(claims[n], batch(at[n], 10)),))
        at[n] += 10

    async def append_followed(n: int) -> None:
        await append(n + _CONNECTIONS)

    async def repeat(step: Callable[[int], Awaitable[None]], n: int, until: float) -> int:
        count = 0
        while time.monotonic() < until:
            await step(n)
            count += 1
        return count

    steps = {
        "plain inserts": insert,
        "appends": append,
        "appends to followed runs": append_followed,
    }
    rates: dict[str, list[float]] = {what: [] for what in steps}
    for what, step in tuple(steps.items()) * 3:
        until = time.monotonic() + 2
        done = await asyncio.gather(*(repeat(step, n, until) for n in range(_CONNECTIONS)))
        rates[what].append(sum(done) / 2)
    reader.kill()
    reader.wait()
    await pool.close()
    for store in stores:
        await store.close()
    return [
        Line(what=f"PostgreSQL, {kind}: commits a second, {what}", value=median(found), unit="/s")
        for what, found in rates.items()
    ]


def _reader(
    url: str, bus: str | None, peers: Path | None, ids: Sequence[str]
) -> subprocess.Popen[bytes]:
    options = [bus or "-", "-" if peers is None else str(peers)]
    program = [sys.executable, "-m", "bench.eventlogs", url, *options, *ids]
    return subprocess.Popen(program, stdout=subprocess.PIPE, env=os.environ)


async def _follow(url: str, bus: str, peers: str, ids: Sequence[str]) -> list[float]:
    from antiphon.runs.background.event_log_reader import EventLogReader
    from antiphon.store import open_store

    store = await open_store(
        url,
        bus=None if bus == "-" else bus,
        peers=None if peers == "-" else Path(peers),
        connections=2,
    )
    reader = EventLogReader(store)
    ages: list[float] = []

    async def one(response_id: str) -> None:
        async for lines in reader.follow("t", response_id, 1):
            now = time.monotonic()
            for line in lines:
                event = msgspec.json.decode(line)
                ages.append(now - float(event["delta"])) if "delta" in event else None

    tasks = [asyncio.create_task(one(each)) for each in ids]
    await asyncio.sleep(0.5)
    with frozen_gc():
        print("ready", flush=True)
        await asyncio.gather(*tasks)
    await store.close()
    return ages


if __name__ == "__main__":
    _url, _bus, _peers, *_ids = sys.argv[1:]
    print(msgspec.json.encode(run(_follow(_url, _bus, _peers, _ids))).decode())

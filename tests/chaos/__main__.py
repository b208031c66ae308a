"""Break real servers, their PostgreSQL and their message bus while clients use them.

``python -m tests.chaos MINUTES [SEED] [--bus KIND] [--workers N]``: three servers of N workers over
one PostgreSQL behind a proxy, with a model of their own, an upstream and a bus (``redis`` or
``none``). Servers and workers are killed and stopped, PostgreSQL is killed and stopped, its
connections are cut or hang, its disk is full, the clocks of servers are wrong, the upstream hangs,
resets, refuses and lies, the bus is killed and stopped, and messages on it are repeated and forged.
A fourth server with SQLite on a small disk of its own is killed, and its disk is filled. The disk
of a fifth one becomes read-only, and the engine of a sixth one is killed during answers. At the end
everything is repaired: every run has to end. The exit status is 1 if an invariant is broken. SEED
is that of the faults.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

from tests.real.bus import BusServer, bus_server
from tests.real.embedded_model import smollm2
from tests.real.postgres import Postgres, postgres

from .clients import Clients
from .clock import ServerClock, faketime_library
from .disk import Disk, small_disk
from .engines import EngineServer
from .liar import lie
from .place import Place, print_counts, process_family, send_signal, wait_for_runs
from .proxy import Proxy
from .read_only import FailingDisk, ReadOnlyServer, failing_disk
from .upstream import UPSTREAM_TEXT, Upstream

_SERVERS, _CLIENTS = 3, 12
_STORY = " ".join(f"word{number}" for number in range(60))
_REST_S = 240.0
#: Wrong clocks: an hour and a year ahead and behind.
_CLOCKS_S = (3_600, -3_600, 31_536_000, -31_536_000)


class _Chaos:
    """The faults of one run."""

    def __init__(
        self,
        random: Random,
        places: list[Place],
        database: Postgres,
        proxy: Proxy,
        disk: Disk | None,
        bus: BusServer | None,
    ) -> None:
        self._random = random
        self._bus = bus
        self._places = places
        self._database = database
        self._proxy = proxy
        self._disk = disk
        self.counts = Counter[str]()
        #: When the database last became available again; infinite while it is not.
        self.database_ok_since = 0.0

    async def run(self, end: float) -> None:
        """Break something every few seconds until ``end``, in seconds of ``time.monotonic``."""
        kinds = [
            self._kill_server, self._kill_server, self._restart_server, self._stop_server,
            self._kill_database, self._stop_database, self._cut_connections, self._hang_connections,
        ]  # fmt: skip
        if self._disk is not None:
            kinds.append(self._fill_disk)
        if self._bus is not None:
            kinds += [self._kill_bus, self._stop_bus]
        if any(place.workers() for place in self._places):
            kinds += [self._kill_worker, self._kill_worker, self._stop_worker]
        database = [
            self._kill_database, self._stop_database, self._cut_connections,
            self._hang_connections, self._fill_disk,
        ]  # fmt: skip
        if any(place.clock is not None for place in self._places):
            kinds += [self._move_clock, self._move_clock]
        while time.monotonic() < end:
            await asyncio.sleep(self._random.uniform(0.5, 5))
            fault = self._random.choice(kinds)
            self.counts[fault.__name__.strip("_")] += 1
            if fault in database:
                self.database_ok_since = float("inf")
            await fault(self._random.choice(self._places))
            if fault in database:
                self.database_ok_since = time.monotonic()

    async def _some_time(self) -> None:
        await asyncio.sleep(self._random.choice((0.3, 1.5, 5.0)))

    async def _kill_server(self, place: Place) -> None:
        await asyncio.to_thread(place.kill)
        await self._some_time()
        await asyncio.to_thread(place.start)

    async def _restart_server(self, place: Place) -> None:
        await asyncio.to_thread(place.stop)
        await asyncio.to_thread(place.start)

    async def _stop_server(self, place: Place) -> None:
        place.signal(signal.SIGSTOP)
        await self._some_time()
        place.signal(signal.SIGCONT)

    async def _kill_worker(self, place: Place) -> None:
        if workers := place.workers():
            send_signal(self._random.choice(workers), signal.SIGKILL)

    async def _stop_worker(self, place: Place) -> None:
        if workers := place.workers():
            pid = self._random.choice(workers)
            send_signal(pid, signal.SIGSTOP)
            await self._some_time()
            send_signal(pid, signal.SIGCONT)

    async def _kill_bus(self, place: Place) -> None:
        assert self._bus is not None
        await asyncio.to_thread(self._bus.kill)
        await self._some_time()
        await asyncio.to_thread(self._bus.start)

    async def _stop_bus(self, place: Place) -> None:
        assert self._bus is not None
        self._bus.signal(signal.SIGSTOP)
        await self._some_time()
        self._bus.signal(signal.SIGCONT)

    async def _kill_database(self, place: Place) -> None:
        await asyncio.to_thread(self._database.stop)
        await self._some_time()
        await asyncio.to_thread(self._database.start)

    async def _stop_database(self, place: Place) -> None:
        processes = process_family(self._database.pid)
        for pid in processes:
            send_signal(pid, signal.SIGSTOP)
        await self._some_time()
        for pid in processes:
            send_signal(pid, signal.SIGCONT)

    async def _cut_connections(self, place: Place) -> None:
        self._proxy.cut()

    async def _hang_connections(self, place: Place) -> None:
        self._proxy.stop_flow()
        await self._some_time()
        self._proxy.resume_flow()

    async def _fill_disk(self, place: Place) -> None:
        """Fill the disk of the database, completely or almost. The database ends if it cannot
        write."""
        assert self._disk is not None
        await asyncio.to_thread(self._disk.fill, self._random.choice((0, 0, 4 << 20)))
        await self._some_time()
        self._disk.empty()
        if not self._database.is_running():
            self.counts["database ended by a full disk"] += 1
            await asyncio.to_thread(self._database.start)

    async def _move_clock(self, place: Place) -> None:
        if place.clock is not None:
            place.clock.move(self._random.choice(_CLOCKS_S))
            await self._some_time()
            if self._random.random() < 0.7:  # otherwise it stays wrong until it is moved again
                place.clock.move(0)


class _SmallServer:
    """A server with SQLite on a small disk, its clients, and the faults of both."""

    def __init__(self, random: Random, disk: Disk, folder: Path, models: str) -> None:
        self._random = random
        self._disk = disk
        store = f"sqlite:{disk.folder}/a.db"
        self._place = Place(folder, store, models, folder.with_suffix(".log"))
        self._clients = Clients(lambda: [self._place.url], {"story": _STORY}, random)
        self.counts = Counter[str]()

    async def run(self, end: float) -> None:
        """Use the server and break it until ``end``, in seconds of ``time.monotonic``."""
        await asyncio.to_thread(self._place.start)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(2):
                    group.create_task(_use(self._clients, self._random, end))
                group.create_task(self._break(end))
        finally:
            await asyncio.to_thread(self._place.kill)
            await self._clients.close()
            self.counts += self._clients.counts

    async def _break(self, end: float) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(self._random.uniform(1, 8))
            if self._random.random() < 0.3:
                self.counts["kill server"] += 1
                await asyncio.to_thread(self._place.kill)
            else:
                self.counts["fill disk"] += 1
                await asyncio.to_thread(self._disk.fill, self._random.choice((0, 0, 1 << 18)))
                await asyncio.sleep(self._random.choice((0.3, 1.5, 5.0)))
                self._disk.empty()
            await asyncio.to_thread(self._place.start)


async def _use(clients: Clients, random: Random, end: float) -> None:
    """Send requests until ``end``."""
    while time.monotonic() < end:
        await (clients.background() if random.random() < 0.7 else clients.foreground())


class _Broken(Protocol):
    """A server of its own that is used and broken. ``counts``: what happened to it."""

    counts: Counter[str]

    async def run(self, end: float) -> None:
        """Use it and break it until ``end``, in seconds of ``time.monotonic``."""


class _Parts(NamedTuple):
    """The other parts of the test besides the servers: the database, the message bus if there is
    one, the disks, and a model for llama.cpp."""

    database: Postgres
    bus: BusServer | None
    disks: _Disks
    gguf: Path


class _Disks(NamedTuple):
    """The disks that the test fills. A disk is None if it cannot be mounted on this machine."""

    database: Disk | None
    sqlite: Disk | None
    failing: FailingDisk | None


def _clock(file: Path) -> ServerClock | None:
    library = faketime_library()
    return None if library is None else ServerClock(library, file)


async def _run(minutes: float, seed: int, workers: int, parts: _Parts, folder: Path) -> None:
    random = Random(seed)
    database, bus, disks = parts[:3]
    upstream = Upstream(random)
    await upstream.start()
    url = await database.create_database()
    proxy = Proxy(int(url.rpartition(":")[2].partition("/")[0]))
    await proxy.start()
    store = url.replace(f":{proxy.target_port}/", f":{proxy.port}/")
    models = (
        f'[models.story]\nengine = "scripted"\nsource = "{_STORY}"\n'
        "template_kwargs = {wait_s = 0.03}\n"
        '[models.up]\nengine = "chat_completions"\n'
        f'source = "http://127.0.0.1:{upstream.port}/v1"\n'
        'context_size = 4096\nupstream_model = "up"\n'
    )
    settings = f"workers = {workers}\n" + ("" if bus is None else f'bus = "{bus.url}"\n')
    places = [
        Place(
            folder / f"s{n}", store, models, folder / f"s{n}.log", _clock(folder / f"s{n}.clock"),
            settings, folder / f"host{n // 2}",  # the first two servers are on one host
        )
        for n in range(_SERVERS)
    ]  # fmt: skip
    texts = {"story": _STORY, "up": UPSTREAM_TEXT}
    chaos = _Chaos(random, places, database, proxy, disks.database, bus)
    clients = Clients(
        lambda: [place.url for place in places],
        texts,
        random,
        database_ok_since=lambda: chaos.database_ok_since,
    )
    story = models.partition("[models.up]")[0]
    engine = EngineServer(folder / "engine", parts.gguf, story, _STORY)
    others: dict[str, _Broken] = {"engine": engine}
    if disks.sqlite is not None:
        others["small_server"] = _SmallServer(random, disks.sqlite, folder / "small", models)
    if disks.failing is not None:
        others["read_only"] = ReadOnlyServer(disks.failing, story)
    try:
        for place in places:
            await asyncio.to_thread(place.start)
        end = time.monotonic() + 60 * minutes
        async with asyncio.timeout(60 * minutes + _REST_S), asyncio.TaskGroup() as group:
            for _ in range(_CLIENTS):
                group.create_task(_use(clients, random, end))
            group.create_task(chaos.run(end))
            if bus is not None:
                group.create_task(lie(bus.url, random, end, chaos.counts))
            for other in others.values():
                group.create_task(other.run(end))
        upstream.is_kind = True
        await wait_for_runs(url, _REST_S)
    finally:
        for place in places:
            place.signal(signal.SIGCONT)
            await asyncio.to_thread(place.kill)
        await clients.close()
        await proxy.close()
        await upstream.close()
        print_counts(faults=chaos.counts, upstream=upstream.counts, clients=clients.counts)
        print_counts(**{name: other.counts for name, other in others.items()})


def main(arguments: list[str]) -> int:
    """Run the command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("minutes", nargs="?", type=float, default=5.0)
    parser.add_argument("seed", nargs="?", type=int, default=int(time.time()))
    parser.add_argument("--bus", choices=("redis", "none"), default="redis")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, bus {options.bus}, {options.workers} workers", flush=True)
    if faketime_library() is None:
        print("no clock is moved: libfaketime is not installed (Debian: apt install faketime)")
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-chaos-")))
        folder.chmod(0o755)  # PostgreSQL has a user of its own
        parts = _open_parts(opened, folder, options.bus)
        try:
            asyncio.run(_run(options.minutes, options.seed, options.workers, parts, folder))
        except BaseExceptionGroup as group:
            for error in group.exceptions:
                print(f"{type(error).__name__}: {error}")
            return 1
    print("all invariants hold")
    return 0


def _open_parts(opened: ExitStack, folder: Path, bus: str) -> _Parts:
    """Start the database, the message bus and the disks."""
    disks = _Disks(
        opened.enter_context(small_disk(folder / "database", "512m")),
        opened.enter_context(small_disk(folder / "sqlite", "64m")),
        opened.enter_context(failing_disk(folder / "failing")),
    )
    if disks.database is None:
        print("no disk is filled: mounting one is not permitted (root can)")
    data = disks.database.folder if disks.database is not None else None
    database = opened.enter_context(postgres(data, max_wal_size="64MB", min_wal_size="32MB"))
    server = None if bus == "none" else opened.enter_context(bus_server())
    if server is None and bus != "none":
        print(f"there is no bus: {bus} is not installed")
    return _Parts(database, server, disks, smollm2())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Servers that are killed, stopped and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from tests.e2e.server import Server, serving

from .clock import ServerClock

_SETTINGS = "lease_s = 1.0\ndrain_s = 5\nmax_connections_per_address = 0"


class Place:
    """A server that can be killed and started again, over the same folder and store. ``host``: the
    folder for the sockets of the servers that are on one host."""

    def __init__(
        self,
        folder: Path,
        store: str,
        models: str,
        log: Path,
        clock: ServerClock | None = None,
        settings: str = "",
        host: Path | None = None,
    ) -> None:
        self._arguments = (folder, store, models)
        self._settings = f"{_SETTINGS}\n{settings}"
        self._log = log
        self.clock = clock
        self._host = host
        self._context: AbstractContextManager[Server] | None = None
        self.server: Server | None = None
        self.url = "http://127.0.0.1:9"

    def start(self) -> None:
        """Start the server unless it runs."""
        if self.server is None:
            folder, store, models = self._arguments
            environment = {} if self.clock is None else dict(self.clock.environment)
            if self._host is not None:
                environment["XDG_RUNTIME_DIR"] = str(self._host)
            self._context = serving(
                folder, self._settings, store=store, model=models, environment=environment
            )
            self.server = self._context.__enter__()
            self.url = self.server.url
            threading.Thread(target=self._drain, args=(self.server,), daemon=True).start()

    def _drain(self, server: Server) -> None:
        """Read the output of the server. Without a reader, the server would block."""
        assert server.process.stdout is not None
        with suppress(ValueError, OSError), self._log.open("a") as log:
            for line in server.process.stdout:
                log.write(line)

    def kill(self) -> None:
        """Kill the server."""
        if self.server is not None:
            self.server.kill()
            self.stop()

    def stop(self) -> None:
        """Terminate the server as on SIGTERM."""
        context, self._context, self.server = self._context, None, None
        if context is not None:
            context.__exit__(None, None, None)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and its workers."""
        if self.server is not None:
            for pid in process_family(self.server.process.pid):
                send_signal(pid, number)

    def workers(self) -> list[int]:
        """The processes of its workers."""
        return [] if self.server is None else process_family(self.server.process.pid)[1:]


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def process_family(parent: int) -> list[int]:
    """Return a process and its children."""
    children = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                stat = (folder / "stat").read_text()
                if int(stat.rpartition(")")[2].split()[1]) == parent:
                    children.append(int(folder.name))
    return [parent, *children]


async def wait_for_runs(url: str, seconds: float) -> None:
    """Wait until all runs in a PostgreSQL database have ended. Raises ``TimeoutError``."""
    async with asyncio.timeout(seconds):
        while count := await _unfinished_runs(url):
            print(f"{count} runs are unfinished", flush=True)
            await asyncio.sleep(2)


def print_counts(**counts: Counter[str]) -> None:
    """Print what was counted, a line for each kind."""
    for name, each in counts.items():
        print(name, ", ".join(f"{key}: {value}" for key, value in sorted(each.items())))


async def _unfinished_runs(url: str) -> int:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        return int(
            await connection.fetchval("SELECT count(*) FROM antiphon.runs WHERE ended_at IS NULL")
        )
    finally:
        await connection.close()

"""CPU time of streams in one, two and three servers over one PostgreSQL, against a linear model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.real.postgres import postgres

from .load import Plan, load
from .process import Process
from .table import Line, median

_STREAMS, _ROUNDS, _WAIT_S = 60, 3, 300
#: Words of an answer and streams in all, of each round: short answers and long ones.
_LOADS = ((10, 600), (200, 120))
#: Seconds between two words: 25 events a second, as a model writes.
_PACE_S = 0.04
_SETTINGS = """port = 0
host = "127.0.0.1"
store = "{store}"
prompts_dir = "{folder}/prompts"
log_level = "error"
stall_log_ms = 0
sandbox.kind = "off"
ui = "off"
max_concurrent_requests = 1024
"""
_MODEL = """[models.words{words}]
engine = "scripted"
source = "{text}"
template_kwargs = {{wait_s = {pace}}}
"""


@contextmanager
def _serving(folder: Path, store: str) -> Iterator[Process]:
    folder.mkdir()
    models = "".join(
        _MODEL.format(words=words, text=" ".join(["word"] * words), pace=_PACE_S)
        for words, _ in _LOADS
    )
    (folder / "antiphon.toml").write_text(_SETTINGS.format(store=store, folder=folder) + models)
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "antiphon", "serve"],
            cwd=folder,
            env={**os.environ, "HOME": str(folder), "PYTHONPATH": str(Path(__file__).parents[1])},
            stderr=log,
        )
        try:
            yield Process(port=_announced_port(folder / "log"), pid=process.pid)
        finally:
            process.terminate()
            process.wait(_WAIT_S)


def _announced_port(log: Path) -> int:
    until = time.monotonic() + _WAIT_S
    while time.monotonic() < until:
        if (found := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())) is not None:
            return int(found[1])
        time.sleep(0.05)
    raise RuntimeError("the server did not start")


def _database_cpu_s() -> float:
    """CPU time of all PostgreSQL processes that this process has started, in seconds."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, total = list(children.get(os.getpid(), ())), 0.0
    for pid in found:
        try:
            if "postgres" in Path(f"/proc/{pid}/comm").read_text():
                total += Process(port=0, pid=pid).cpu_s
                found += children.get(pid, ())
        except OSError:
            continue
    return total


def sizing() -> Iterator[Line]:
    """Fit the model with one server, and predict two and three."""
    with postgres() as database:
        costs = {
            count: _costs(asyncio.run(database.create_database()), count) for count in (1, 2, 3)
        }
    (short, _), (long, _) = _LOADS
    one = costs[1]
    event = {kind: (one[long][kind] - one[short][kind]) / (long - short) for kind in (0, 1)}
    reply = {kind: one[short][kind] - short * event[kind] for kind in (0, 1)}
    for kind, name in enumerate(("server", "database")):
        yield Line(what=f"sizing: CPU of an event, {name}", value=event[kind], unit="µs")
        yield Line(what=f"sizing: CPU of a reply, {name}", value=reply[kind], unit="µs")
    for count in (2, 3):
        for words, _ in _LOADS:
            expected = sum(reply[kind] + words * event[kind] for kind in (0, 1))
            yield Line(
                what=f"sizing: {count} servers, {words} words, measured to predicted",
                value=sum(costs[count][words]) / expected,
                unit="x",
                note=f"{costs[count][words][0]:.0f} + {costs[count][words][1]:.0f} µs a reply",
            )


def _costs(store: str, count: int) -> dict[int, tuple[float, float]]:
    """CPU of a reply in microseconds, of the servers and of the database, by the words."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        servers = [
            stack.enter_context(_serving(Path(name) / str(number), store))
            for number in range(count)
        ]
        return {words: _measure(servers, words, replies) for words, replies in _LOADS}


def _measure(servers: list[Process], words: int, replies: int) -> tuple[float, float]:
    body = json.dumps({"model": f"words{words}", "input": "hi", "stream": True})
    plans = [
        Plan(
            port=server.port,
            body=body,
            connections=_STREAMS // len(servers),
            requests=replies // len(servers),
        )
        for server in servers
    ]
    spent: list[tuple[float, float]] = []
    for _ in range(_ROUNDS + 1):
        before = sum(server.cpu_s for server in servers), _database_cpu_s()
        with ThreadPoolExecutor(len(plans)) as pool:
            list(pool.map(load, plans))
        after = sum(server.cpu_s for server in servers), _database_cpu_s()
        spent.append(
            (1e6 * (after[0] - before[0]) / replies, 1e6 * (after[1] - before[1]) / replies)
        )
    servers_us, database_us = zip(*spent[1:], strict=True)  # the first round warms up
    return median(servers_us), median(database_us)

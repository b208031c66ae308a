"""Requests per second and CPU per request of ``antiphon serve`` with one and with two workers."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .load import Plan, load
from .process import FEW, Process
from .table import Line, median

_REQUESTS, _CONNECTIONS, _ROUNDS = 1000, 32, 5
_SETTINGS = """port = 0
host = "127.0.0.1"
log_level = "error"
stall_log_ms = 0
sandbox.kind = "off"
ui = "off"
max_concurrent_requests = 1024
[models.scripted]
engine = "scripted"
source = "{text}"
"""


class _Server:
    """A server with all its processes."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.port = port
        self._pid = process.pid

    @property
    def cpu_s(self) -> float:
        """User and system CPU time of all processes so far, in seconds."""
        return sum(Process(port=0, pid=pid).cpu_s for pid in (self._pid, *_children(self._pid)))


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in text.split()]


@contextmanager
def _serving(folder: Path, count: int) -> Iterator[_Server]:
    folder.mkdir()
    text = " ".join(["word"] * FEW)
    (folder / "antiphon.toml").write_text(
        f'workers = {count}\nstore = "sqlite:{folder}/bench.db"\n'
        f'prompts_dir = "{folder}/prompts"\n{_SETTINGS.format(text=text)}'
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "antiphon", "serve"],
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "PYTHONPATH": str(Path(__file__).parents[1])},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)) is not None:
                yield _Server(process, int(found[1]))
                return
        raise RuntimeError("the server did not start")
    finally:
        process.terminate()
        process.wait(timeout=60)
        process.stderr.close()


def _own_children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def workers() -> Iterator[Line]:
    """Compare two workers with one worker, in alternating rounds."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        servers = {
            count: stack.enter_context(_serving(Path(name) / str(count), count)) for count in (1, 2)
        }
        for kind, stream in (("plain", False), ("streamed", True)):
            body = json.dumps({"model": "scripted", "input": "hi", "stream": stream})
            rates: dict[int, list[float]] = {1: [], 2: []}
            spent: dict[int, list[float]] = {1: [], 2: []}
            generator: list[float] = []
            for round_ in range(_ROUNDS + 1):
                for count, server in servers.items():
                    before, own = server.cpu_s, _own_children_cpu_s()
                    plan = Plan(
                        port=server.port,
                        body=body,
                        connections=_CONNECTIONS,
                        requests=_REQUESTS,
                    )
                    rate = _REQUESTS / load(plan).wall_s
                    if round_:  # the first one warms up
                        rates[count].append(rate)
                        spent[count].append((server.cpu_s - before) / _REQUESTS * 1e6)
                        generator.append((_own_children_cpu_s() - own) / _REQUESTS * 1e6)
            one, two = median(rates[1]), median(rates[2])
            yield Line(
                what=f"workers: {kind} requests a second, two against one",
                value=two / one,
                unit="x",
                at_least=1.7,
                note=f"{two:.0f} to {one:.0f}/s on {os.cpu_count()} cores,"
                f" of which the load takes {median(generator):.0f} µs a request",
            )
            one, two = median(spent[1]), median(spent[2])
            yield Line(
                what=f"workers: CPU of a {kind} request, two against one",
                value=two / one,
                unit="x",
                at_most=1.15,
                note=f"{two:.0f} to {one:.0f} µs",
            )

"""CPU time of a streamed event and of a plain request: Antiphon alone, on Ray Serve with Serve's
own proxy, and on Ray Serve with HAProxy.

``python -m bench.ray KIND`` runs one of them in its network namespace and measures a round for each
line that it reads.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import msgspec
from msgspec import Struct

from tests.e2e.server import serving

from .load import Plan, load
from .process import FEW, Process
from .ray_cluster import running_cluster
from .table import Line, median

_KINDS = {"alone": "alone", "proxy": "Ray Serve's own proxy", "haproxy": "Ray Serve with HAProxy"}
_ROUNDS = 3
_STREAMS, _PACE_S, _LENGTH = 30, 0.04, 250
_CONNECTIONS, _REQUESTS = 16, 400
_IDLE_S = 5.0
_WAIT_S = 300
_MODELS = f"""[models.paced]
engine = "scripted"
source = "{" ".join(["word"] * _LENGTH)}"
template_kwargs = {{ wait_s = {_PACE_S} }}
[models.short]
engine = "scripted"
source = "{" ".join(["word"] * FEW)}"
"""

#: Returns the processes of the proxies and those of the servers behind them.
_Processes = Callable[[], tuple[list[int], list[int]]]


class _Spent(Struct, frozen=True):
    """CPU time of proxies and of servers: in seconds, or in µs for each event."""

    proxy: float
    server: float


class _Round(Struct, frozen=True):
    """CPU time of an event and of a plain request in µs, less what the same processes use when
    they are idle."""

    event: _Spent
    request: _Spent


def ray() -> Iterator[Line]:
    """Interleaved rounds over all kinds. Left out where Ray is not installed."""
    if find_spec("ray") is None:
        return
    with ExitStack() as stack:
        measured = {kind: stack.enter_context(_measured(kind)) for kind in _KINDS}
        rounds: dict[str, list[_Round]] = {kind: [] for kind in _KINDS}
        for _ in range(_ROUNDS):
            for kind, measure in measured.items():
                rounds[kind].append(measure())
    for what, name in (("event", "event"), ("plain request", "request")):
        for kind, label in _KINDS.items():
            spent: list[_Spent] = [getattr(each, name) for each in rounds[kind]]
            proxy = median(each.proxy for each in spent)
            server = median(each.server for each in spent)
            yield Line(
                what=f"ray: CPU of a{'n' * (name == 'event')} {what}, {label}",
                value=median(each.proxy + each.server for each in spent),
                unit="µs",
                note=f"proxy {proxy:.0f}, server {server:.0f} µs",
            )


@contextmanager
def _measured(kind: str) -> Iterator[Callable[[], _Round]]:
    """Start one of the servers in its own network namespace. Yield the function that measures a
    round of requests to it."""
    program = [sys.executable, "-m"]
    command = [*program, "tests.offline", *program, "bench.ray", kind]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_root()
    )
    assert process.stdin is not None and process.stdout is not None
    pipes = process.stdin, process.stdout

    def measure() -> _Round:
        print(file=pipes[0], flush=True)
        return msgspec.json.decode(pipes[1].readline(), type=_Round)

    try:
        measure()  # warms up
        yield measure
    finally:
        process.communicate(timeout=_WAIT_S)


def _root() -> Path:
    return Path(__file__).parents[1]


# --- in the network namespace --------------------------------------------------------------------


def main(kind: str) -> None:
    """Measure a round for each line of the standard input, and print it as JSON."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if kind == "alone":
            port, processes = stack.enter_context(_alone(Path(folder)))
        else:
            port, processes = stack.enter_context(_on_ray(Path(folder), haproxy=kind == "haproxy"))
        for _ in sys.stdin:
            print(msgspec.json.encode(_round(port, processes)).decode(), flush=True)


@contextmanager
def _alone(folder: Path) -> Iterator[tuple[int, _Processes]]:
    with serving(folder, store="memory:", model=_MODELS) as server:
        pid = server.process.pid
        yield int(server.root.rpartition(":")[2]), lambda: ([], [pid])


@contextmanager
def _on_ray(folder: Path, *, haproxy: bool) -> Iterator[tuple[int, _Processes]]:
    settings = folder / "antiphon.toml"
    settings.write_text(f'store = "memory:"\nsandbox.kind = "off"\nlog_level = "error"\n{_MODELS}')
    with running_cluster(haproxy=haproxy) as cluster:
        cluster.deploy({"config": str(settings)})
        until = time.monotonic() + _WAIT_S
        while not _answers(f"{cluster.url}/v1/models") and time.monotonic() < until:
            time.sleep(0.2)
        port = int(cluster.url.rpartition(":")[2])
        yield port, lambda: (cluster.proxies(), cluster.replicas())


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.HTTPError:
        return False


def _round(port: int, processes: _Processes) -> _Round:
    before = _cpu(processes)
    time.sleep(_IDLE_S)
    after = _cpu(processes)
    idle = _Spent((after.proxy - before.proxy) / _IDLE_S, (after.server - before.server) / _IDLE_S)
    paced = _plan(port, "paced", _STREAMS, _STREAMS, stream=True)
    short = _plan(port, "short", _CONNECTIONS, _REQUESTS, stream=False)
    return _Round(_spent(paced, processes, idle), _spent(short, processes, idle))


def _plan(port: int, model: str, connections: int, requests: int, *, stream: bool) -> Plan:
    body = {"model": model, "input": "hi", "stream": stream, "store": False}
    return Plan(port=port, body=json.dumps(body), connections=connections, requests=requests)


def _spent(plan: Plan, processes: _Processes, idle: _Spent) -> _Spent:
    """Run a load and return the CPU time of each event. A plain response counts as one event.
    ``idle``: CPU seconds a second without load."""
    before, started = _cpu(processes), time.monotonic()
    count = load(plan).events / 1e6
    after, wall_s = _cpu(processes), time.monotonic() - started
    return _Spent(
        (after.proxy - before.proxy - idle.proxy * wall_s) / count,
        (after.server - before.server - idle.server * wall_s) / count,
    )


def _cpu(processes: _Processes) -> _Spent:
    """Return the CPU seconds of the processes so far."""
    return _Spent(*(sum(Process(port=0, pid=pid).cpu_s for pid in each) for each in processes()))


if __name__ == "__main__":
    main(sys.argv[1])

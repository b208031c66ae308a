"""Instructions that a request costs, counted by callgrind. Unlike times, they do not depend on what
else the machine does.

``python -m bench.instructions`` compares the counts with ``instructions.json``. It fails if one of
them rises by more than 3 % in each of several measurements, or falls by so much that the file is
out of date. After a change that explains the difference, ``--update`` writes the file; the
explanation belongs in the message of the commit. The counts in the file hold for one version of
Python: with another one, nothing is compared.

The upstream sends each answer in one write, except in the slow stream, so that the work is the same
each time. The work of an idle server during a measurement is subtracted.
"""

from __future__ import annotations

import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from .callgrind import MeasuredServer, is_installed, measured_server
from .table import Line

_FILE = Path(__file__).with_name("instructions.json")
#: Largest relative rise and fall from the kept count that need no explanation, and the differences
#: that are within the noise, in millions. On a quiet machine, counts are a few percent lower than
#: on a busy one: requests take less time, so that less of what the server does every second falls
#: into them.
_RISE, _FALL, _NOISE = 0.03, 0.08, 0.02
#: Largest number of measurements of a case whose count has risen. Other work of the server can only
#: add to a count, so the least of several counts is the best one.
_ATTEMPTS = 4
#: Cases with large bodies, which arrive in one or several pieces, and their largest rise.
_LARGE = frozenset({"plain, 25 tools", "plain, 64 tools", "turn of a chain of 20, 25 tools"})
_LARGE_RISE = 0.1
#: Cases whose counts depend on the load of the machine: they are printed, but not compared.
_TIMED = frozenset({"streamed slowly, 20 deltas", "plain, with a key and quotas", "idle second"})
_CHAT, _RESPONSES = "chat", "responses"
_IDLE_S = 4.0
_KEY = "sk-bench"
#: Targets, in millions of instructions.
_TARGETS = {
    "plain": 1.2,
    "streamed, 8 deltas": 1.4,
    "turns 20 to 32 of an agent": 5.0,
    "turns 20 to 32 of an agent, responses": 5.0,
    "idle second": 1.5,
}
_CONTEXT = 262_144
#: Characters that a turn of an agent adds.
_TURN_CHARS = 13_000

#: Sends the requests of one measurement, and returns their number.
_Case = Callable[[MeasuredServer], int]
#: Millions of instructions by the name of the case.
_Counts = Mapping[str, float]


def _config(upstream: str, keys: str = "") -> str:
    models = "".join(
        f'[models.{name}]\nsource = "{upstream}/v1"\nengine = "{engine}"\n'
        f'upstream_model = "scripted"\ncontext_size = {_CONTEXT}\n'
        for name, engine in ((_CHAT, "chat_completions"), (_RESPONSES, "responses"))
    )
    return models + keys


_KEYS = f"""
[[keys]]
name = "bench"
tenant = "bench"
sha256 = "{sha256(_KEY.encode()).hexdigest()}"
requests_per_minute = 1000000
tokens_per_minute = 1000000000
concurrent_requests = 1000

[tenants.bench]
max_responses = 1000000
"""


# --- the requests --------------------------------------------------------------------------------


def _body(model: str = _CHAT, text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": model, "input": text, **fields}


def _repeated(body: dict[str, Any], count: int) -> _Case:
    def case(server: MeasuredServer) -> int:
        for _ in range(count):
            server.request("/v1/responses", body)
        return count

    return case


def _turns(model: str, count: int, chars: int, first: int = 0, **fields: Any) -> _Case:
    """Turns of a chain. Those before turn ``first`` are not counted. Each adds ``chars``
    characters of words. ``fields``: more fields of each request."""

    def case(server: MeasuredServer) -> int:
        chance, previous = random.Random(1), None
        words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(4000)]
        for turn in range(count):
            if turn == first:
                server.take_count()
            text = f"turn {turn}: " + " ".join(chance.choices(words, k=chars // 6))
            body = _body(model, text, previous_response_id=previous, **fields)
            previous = json.loads(server.request("/v1/responses", body))["id"]
        return count - first

    return case


def _tools(count: int) -> dict[str, Any]:
    """Instructions of 9 KB and tools of 1.1 KB each, as coding agents send them."""
    properties = {
        f"argument_{number}": {"type": "string", "description": "What to look at. " * 12}
        for number in range(4)
    }
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    tools = [
        {
            "type": "function",
            "name": f"tool_{number}",
            "description": "Look. ",
            "parameters": schema,
        }
        for number in range(count)
    ]
    return {"instructions": "Make no call of a tool. " * 375, "tools": tools}


def _retrieval(server: MeasuredServer) -> int:
    name = json.loads(server.request("/v1/responses", _body()))["id"]
    server.take_count()
    for _ in range(20):
        server.request(f"/v1/responses/{name}")
    return 20


#: The measured requests by name.
CASES: dict[str, _Case] = {
    "plain": _repeated(_body(), 20),
    "plain, responses": _repeated(_body(_RESPONSES), 20),
    "streamed, 8 deltas": _repeated(_body(stream=True), 20),
    "streamed, 300 deltas": _repeated(_body(stream=True, max_output_tokens=300), 5),
    "streamed slowly, 20 deltas": _repeated(_body(text="slowly", stream=True), 2),
    "turn of a chain of 20": _turns(_CHAT, 20, 960),
    "turn of a chain of 20, 25 tools": _turns(_CHAT, 20, 960, **_tools(25)),
    "turns 20 to 32 of an agent": _turns(_CHAT, 32, _TURN_CHARS, 19),
    "turns 20 to 32 of an agent, responses": _turns(_RESPONSES, 32, _TURN_CHARS, 19),
    "plain, 9 KB of instructions": _repeated(_body(**_tools(0)), 20),
    "plain, 25 tools": _repeated(_body(**_tools(25)), 20),
    "plain, 64 tools": _repeated(_body(**_tools(64)), 20),
    "GET by id": _retrieval,
}


# --- the measurement -----------------------------------------------------------------------------


@contextmanager
def _upstream() -> Iterator[str]:
    command = [sys.executable, "-m", "bench.peers.upstream", "--at-once"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def _idle_rate(server: MeasuredServer) -> float:
    """Return the instructions of an idle server a second."""
    server.take_count()
    started = time.perf_counter()
    time.sleep(_IDLE_S)
    count = server.take_count()
    return count / (time.perf_counter() - started)


def _measure(case: _Case, server: MeasuredServer, idle: float) -> float:
    """Return the millions of instructions that a request of the case costs."""
    case(server)  # fills caches
    server.shorten_log()
    server.take_count()
    started = time.perf_counter()
    count = case(server)
    spent = server.take_count()
    return (spent - idle * (time.perf_counter() - started)) / count / 1e6


def _least(name: str, case: _Case, server: MeasuredServer, idle: float, kept: _Counts) -> float:
    """Return the millions of instructions that a request of the case costs. A count that has risen
    is measured again."""
    least = _measure(case, server, idle)
    for _ in range(_ATTEMPTS - 1):
        if not _has_risen(name, least, kept):
            break
        least = min(least, _measure(case, server, idle))
    return least


def _counts(kept: _Counts) -> Iterator[tuple[str, float]]:
    """Yield the names of the cases and the millions of instructions of a request."""
    with _upstream() as url:
        # Under callgrind, every request would count as a stall of the event loop.
        with _started(_config(url), "--stall-log-ms", "0") as server:
            idle = _idle_rate(server)
            for name, case in CASES.items():
                yield name, _least(name, case, server, idle, kept)
        with _started(_config(url, _KEYS), "--stall-log-ms", "0", key=_KEY) as server:
            idle = _idle_rate(server)
            yield "plain, with a key and quotas", _measure(CASES["plain"], server, idle)
        with _started(_config(url)) as server:
            yield "idle second", _idle_rate(server) / 1e6


@contextmanager
def started(*python_options: str) -> Iterator[MeasuredServer]:
    """Start a server over the scripted upstream, and count its instructions."""
    with (
        _upstream() as url,
        _started(_config(url), "--stall-log-ms", "0", python_options=python_options) as server,
    ):
        yield server


@contextmanager
def _started(
    config: str, *flags: str, key: str | None = None, python_options: Sequence[str] = ()
) -> Iterator[MeasuredServer]:
    with (
        tempfile.TemporaryDirectory() as folder,
        measured_server(
            config, Path(folder), *flags, key=key, python_options=python_options
        ) as server,
    ):
        for _ in range(3):
            server.request("/v1/responses", _body())
        server.start_counting()
        yield server


def _kept() -> dict[str, float]:
    """Return the counts of the file, or nothing if they are those of another version of Python."""
    kept: dict[str, Any] = json.loads(_FILE.read_text()) if _FILE.exists() else {}
    counts: dict[str, float] = kept.get("millions", {})
    return counts if kept.get("platform") == _platform() else {}


def _platform() -> str:
    return f"Python {'.'.join(platform.python_version_tuple()[:2])}, {platform.machine()}"


def instructions() -> Iterator[Line]:
    """Count the instructions of requests, and compare them with the kept counts."""
    if not is_installed():
        print("instructions: valgrind is not installed (apt-get install valgrind)", file=sys.stderr)
        return
    kept = _kept()
    for name, value in _counts(kept):
        note = f"{value / kept[name] - 1:+.1%} of {kept[name]:.3f}" if name in kept else "new"
        yield Line(
            what=f"instructions: {name}",
            value=value,
            unit="M",
            at_most=_TARGETS.get(name),
            note=note,
        )


def _has_risen(name: str, value: float, kept: _Counts) -> bool:
    before = kept.get(name, value)
    rise = _LARGE_RISE if name in _LARGE else _RISE
    return name not in _TIMED and value - before > max(_NOISE, rise * before)


def _changed(name: str, value: float, kept: _Counts) -> bool:
    before = kept.get(name, value)
    has_fallen = name not in _TIMED and before - value > _FALL * before
    return has_fallen or _has_risen(name, value, kept)


def main(*, update: bool) -> None:
    kept, found = _kept(), dict[str, float]()
    for line in instructions():
        print(line.render().rstrip(), flush=True)
        found[line.what.removeprefix("instructions: ")] = round(line.value, 3)
    if found and update:
        content = {"platform": _platform(), "millions": found}
        _FILE.write_text(json.dumps(content, indent=2) + "\n")
    elif changed := [name for name, value in found.items() if _changed(name, value, kept)]:
        raise SystemExit(
            f"changed by more than {_RISE:.0%}: {', '.join(changed)}. If this is intended, run"
            " `python -m bench.instructions --update` and explain the change in the commit."
        )


if __name__ == "__main__":
    main(update="--update" in sys.argv)

"""``python -m bench.compare FOLDER [ROUNDS]``: the CPU of a request, against another source tree.

The servers of both trees run at the same time and are measured in turns: on a shared machine the
CPU time of unchanged code varies by a factor of two, and only ratios of neighbouring measurements
mean something. The CPU time of one process differs by 5 % from that of the next with the same code,
so each measurement is repeated with new processes. ``FOLDER``: the root of the other tree, for
example a ``git worktree``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from .load import Plan, load
from .process import FEW, Process, running
from .table import Line, median, show

#: Requests of a measurement.
_REQUESTS = 400
#: Processes of each tree, one after the other.
_STARTS = 6


def compare(base: Path, rounds: int) -> Iterator[Line]:
    """Measure plain and streamed requests, over a script in the server and over an upstream.
    ``rounds``: measurements of each process."""
    with running("upstream") as upstream:
        for name, *arguments in (
            ("scripted", str(FEW), "0"),
            ("chat", f"http://127.0.0.1:{upstream.port}"),
        ):
            costs: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            for _ in range(_STARTS):
                with (
                    running(name, *arguments) as ours,
                    running(name, *arguments, source=base) as theirs,
                ):
                    for stream, pairs in costs.items():
                        pairs += _compare(name, stream, ours, theirs, rounds)
            for stream, pairs in costs.items():
                yield _line(f"{name}: CPU of a {'streamed' if stream else 'plain'} request", pairs)


def _compare(
    model: str, stream: bool, ours: Process, theirs: Process, rounds: int
) -> list[tuple[float, float]]:
    """Return the CPU of a request in both processes for each round, in ms."""
    body = json.dumps({"model": model, "input": "hi", "stream": stream, "store": True})
    costs: dict[int, list[float]] = {ours.pid: [], theirs.pid: []}
    for turn in range(rounds + 1):
        for server in (ours, theirs) if turn % 2 else (theirs, ours):
            before = server.cpu_s
            load(Plan(port=server.port, body=body, connections=16, requests=_REQUESTS))
            if turn:  # the first round warms up
                costs[server.pid].append((server.cpu_s - before) / _REQUESTS * 1000)
    return list(zip(costs[ours.pid], costs[theirs.pid], strict=True))


def _line(what: str, pairs: list[tuple[float, float]]) -> Line:
    ours, theirs = zip(*pairs, strict=True)
    return Line(
        what=f"{what}, against the other",
        value=median(a / b for a, b in pairs),
        unit="x",
        at_most=1.0,
        note=f"{median(ours):.3f} to {median(theirs):.3f} ms",
    )


if __name__ == "__main__":
    show(compare(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if sys.argv[2:] else 6))

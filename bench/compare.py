"""``python -m bench.compare FOLDER [ROUNDS]``: the CPU of a request, against another source tree.

The servers of both trees run at the same time and are measured in turns: on a shared machine the
CPU time of unchanged code varies by a factor of two, and only ratios of neighbouring measurements
mean something. ``FOLDER``: the root of the other tree, for example a ``git worktree``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from .load import Plan, load
from .process import FEW, Process, running
from .table import Line, median, show

__all__ = ["compare"]

#: Requests of a measurement.
_REQUESTS = 400


def compare(base: Path, rounds: int) -> Iterator[Line]:
    """Measure plain and streamed requests, over a script in the server and over an upstream."""
    with ExitStack() as stack:
        upstream = stack.enter_context(running("upstream"))
        for name, kind, *arguments in (
            ("scripted", "scripted", str(FEW), "0"),
            ("chat", "chat", f"http://127.0.0.1:{upstream.port}"),
        ):
            ours = stack.enter_context(running(kind, *arguments))
            theirs = stack.enter_context(running(kind, *arguments, source=base))
            for stream in (False, True):
                yield _compare(name, stream, ours, theirs, rounds)


def _compare(model: str, stream: bool, ours: Process, theirs: Process, rounds: int) -> Line:
    body = json.dumps({"model": model, "input": "hi", "stream": stream, "store": True})
    costs: dict[int, list[float]] = {ours.pid: [], theirs.pid: []}
    for turn in range(rounds + 1):
        for server in (ours, theirs) if turn % 2 else (theirs, ours):
            before = server.cpu_s
            load(Plan(port=server.port, body=body, connections=16, requests=_REQUESTS))
            if turn:  # the first round warms up
                costs[server.pid].append((server.cpu_s - before) / _REQUESTS * 1000)
    new, old = costs[ours.pid], costs[theirs.pid]
    return Line(
        what=f"{model}: CPU of a {'streamed' if stream else 'plain'} request, against the other",
        value=median(a / b for a, b in zip(new, old, strict=True)),
        unit="x",
        at_most=1.0,
        note=f"{median(new):.3f} to {median(old):.3f} ms; least {min(new):.3f} to {min(old):.3f}",
    )


if __name__ == "__main__":
    show(compare(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if sys.argv[2:] else 20))

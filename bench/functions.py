"""Instructions of each Python function while the server answers a request.

``python -m bench.functions [CASE]`` prints the calls of each function and its thousands of
instructions per request, including those of the functions that it calls. ``CASE`` is a name of
``instructions.json``, by default ``plain``.

The command needs CPython 3.12 or newer. With its support for perf, each Python function has machine
code of its own, which callgrind counts like a function of C. Functions then cost about a third more
than without it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from .instructions import CASES, started

#: Functions below this many thousands of instructions are not printed.
_LEAST = 2.0
_NAME = re.compile(r"c?fn=\((\d+)\)(?: (.*))?")


def _calls(profile: str) -> Iterator[tuple[str, int, int]]:
    """Yield the name of a called function, the number of calls and their instructions, for each
    pair of caller and called function. ``profile``: a file of callgrind."""
    names, called, count = dict[str, str](), "", 0
    for line in profile.splitlines():
        if match := _NAME.match(line):
            number, name = match.groups()
            names.setdefault(number, name)
            if line.startswith("cfn="):
                called = names[number]
        elif line.startswith("calls="):
            count = int(line[6:].split()[0])
        elif count:
            yield called, count, int(line.split()[-1])
            count = 0


def _functions(perf_map: str) -> dict[int, str]:
    """Return the name of each Python function by the address of its machine code."""
    lines = (line.split(" ", 2) for line in perf_map.splitlines())
    return {int(address, 16): name for address, _, name in lines}


def main(case: str = "plain") -> None:
    """Print the table."""
    with started("-X", "perf") as server:
        CASES[case](server)  # fills caches
        server.take_profile()
        requests = CASES[case](server)
        profile = server.take_profile()
    perf_map = Path(f"/tmp/perf-{server.pid}.map")
    functions = _functions(perf_map.read_text())
    perf_map.unlink()
    calls, spent = Counter[str](), Counter[str]()
    for called, count, instructions in _calls(profile):
        # Callgrind appends '2 to the name of a function that is called by itself.
        address, _, depth = called.partition("'")
        name = functions.get(int(address, 16)) if address.startswith("0x") else None
        if name is not None and not depth:
            calls[name] += count
            spent[name] += instructions
    for name, instructions in spent.most_common():
        if (thousands := instructions / requests / 1000) < _LEAST:
            break
        print(f"{thousands:9.1f} {calls[name] / requests:5.1f}  {name.removeprefix('py::')}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

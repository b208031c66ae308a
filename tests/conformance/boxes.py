"""Containers over a sandbox that isolates nothing: what is run is a line of the test's own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from antiphon.errors import NotFound
from antiphon.resources.skills import Skills
from antiphon.sandbox.base import Outcome
from antiphon.store.memory.store import MemoryStore
from antiphon.testing.sandbox import FakeSandbox
from antiphon.tools.code_interpreter import CodeInterpreter
from antiphon.tools.containers.container import Rules
from antiphon.tools.containers.registry import Containers

__all__ = ["Clock", "Uploads", "containers", "play", "with_code"]

#: What clients have uploaded: by tenant and file id.
UPLOADS = {("", "file-1"): ("numbers.csv", b"1,2,3")}


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def play(line: str, files: dict[str, bytes]) -> Outcome:
    """``say TEXT``, ``save NAME TEXT``, ``show NAME``, ``fail``, ``hang``, ``die``, ``list``."""
    verb, _, rest = line.partition(" ")
    if verb == "save":
        name, _, text = rest.partition(" ")
        files[name] = text.encode()
        return Outcome(output="", ended="done")
    if verb == "show":
        files[rest] = b"\x89PNG"
        return Outcome(output="", ended="done", images=(rest,))
    if verb == "list":
        return Outcome(output=" ".join(sorted(files)) + "\n", ended="done")
    if verb == "fail":
        return Outcome(output="Traceback: no\n", ended="raised", errors="no\n", exit_code=1)
    if verb == "hang":
        return Outcome(output="so far\n", ended="timeout", exit_code=137)
    if verb == "die":
        return Outcome(output="", ended="died", kept=False)
    return Outcome(output=f"{rest}\n", ended="done", exit_code=0)


class Uploads:
    """What clients have uploaded; under the tenant "", to everybody."""

    def __init__(self, known: Mapping[tuple[str, str], tuple[str, bytes]]) -> None:
        self.known = dict(known)

    async def name(self, tenant: str, file_id: str) -> str | None:
        found = self.known.get((tenant, file_id)) or self.known.get(("", file_id))
        return None if found is None else found[0]

    async def read(self, tenant: str, file_id: str) -> tuple[str, bytes]:
        found = self.known.get((tenant, file_id)) or self.known.get(("", file_id))
        if found is None:
            raise NotFound(f"No such File object: {file_id}", param="id")
        return found


def containers(
    sandbox: Any = None,
    *,
    clock: Clock | None = None,
    uploads: Any = None,
    library: Any = None,
    **rules: Any,
) -> Containers:
    numbers = itertools.count(1)
    return Containers(
        sandbox or FakeSandbox(play),
        Rules(**rules),
        uploads=uploads or Uploads(UPLOADS),
        library=library or Skills(MemoryStore(), clock=clock or Clock(), ids=lambda prefix: prefix),
        clock=clock or Clock(),
        ids=lambda prefix: f"{prefix}_{next(numbers)}",
    )


def with_code(held: Containers) -> dict[str, Any]:
    """What a server that runs code is made with."""
    return {"providers": {"code_interpreter": CodeInterpreter(held)}, "containers": held}

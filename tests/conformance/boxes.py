"""Containers over a sandbox that isolates nothing: what is run is a line of the test's own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from antiphon.errors import NotFound
from antiphon.resources.skills import Skills
from antiphon.sandbox.base import ExecutionResult
from antiphon.store.memory.store import MemoryStore
from antiphon.testing.sandbox import FakeSandbox
from antiphon.tools.code_interpreter import CodeInterpreterProvider
from antiphon.tools.containers.container import ContainerPolicy
from antiphon.tools.containers.registry import ContainerRegistry

__all__ = ["Clock", "Uploads", "containers", "play", "with_code"]

#: What clients have uploaded: by tenant and file id.
UPLOADS = {("", "file-1"): ("numbers.csv", b"1,2,3")}


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def play(line: str, files: dict[str, bytes]) -> ExecutionResult:
    """``say TEXT``, ``save NAME TEXT``, ``show NAME``, ``fail``, ``hang``, ``die``, ``list``."""
    verb, _, rest = line.partition(" ")
    if verb == "save":
        name, _, text = rest.partition(" ")
        files[name] = text.encode()
        return ExecutionResult(output="", end_reason="done")
    if verb == "show":
        files[rest] = b"\x89PNG"
        return ExecutionResult(output="", end_reason="done", images=(rest,))
    if verb == "list":
        return ExecutionResult(output=" ".join(sorted(files)) + "\n", end_reason="done")
    if verb == "fail":
        return ExecutionResult(
            output="Traceback: no\n", end_reason="raised", stderr="no\n", exit_code=1
        )
    if verb == "hang":
        return ExecutionResult(output="so far\n", end_reason="timeout", exit_code=137)
    if verb == "die":
        return ExecutionResult(output="", end_reason="died", variables_kept=False)
    return ExecutionResult(output=f"{rest}\n", end_reason="done", exit_code=0)


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
) -> ContainerRegistry:
    numbers = itertools.count(1)
    return ContainerRegistry(
        sandbox or FakeSandbox(play),
        ContainerPolicy(**rules),
        uploads=uploads or Uploads(UPLOADS),
        library=library or Skills(MemoryStore(), clock=clock or Clock(), ids=lambda prefix: prefix),
        clock=clock or Clock(),
        ids=lambda prefix: f"{prefix}_{next(numbers)}",
    )


def with_code(held: ContainerRegistry) -> dict[str, Any]:
    """What a server that runs code is made with."""
    return {"providers": {"code_interpreter": CodeInterpreterProvider(held)}, "containers": held}

"""Containers over a fake sandbox without isolation: the code is a command of the test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from antiphon.errors import NotFound
from antiphon.ipc.calls import Calls, NoCalls
from antiphon.limits.quotas import Quotas, TenantQuotas
from antiphon.resources.skills import Skills
from antiphon.sandbox.base import ExecutionResult
from antiphon.sandbox.egress.proxy import Dialer
from antiphon.store.containers import ContainerDirectory
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.sandbox import FakeSandbox
from antiphon.tools.code_interpreter import CodeInterpreterProvider
from antiphon.tools.containers.container import ContainerPolicy, ContainerServices
from antiphon.tools.containers.local import ContainerOwner, LocalContainers
from antiphon.tools.containers.network import open_egress
from antiphon.tools.containers.registry import ContainerRegistry
from antiphon.tools.containers.remote import RemoteContainers

#: Uploaded files by tenant and file id.
UPLOADS = {("", "file-1"): ("numbers.csv", b"1,2,3")}


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def run_command(line: str, files: dict[str, bytes]) -> ExecutionResult:
    """Run a command: ``say TEXT``, ``save NAME TEXT``, ``show NAME``, ``fail``, ``hang``, ``die``,
    ``list``.
    """
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
    """Uploaded files. Those of the tenant "" belong to everybody."""

    def __init__(self, files: Mapping[tuple[str, str], tuple[str, bytes]]) -> None:
        self.files = dict(files)

    async def get_name(self, tenant: str, file_id: str) -> str | None:
        file = self.files.get((tenant, file_id)) or self.files.get(("", file_id))
        return None if file is None else file[0]

    async def read(self, tenant: str, file_id: str) -> tuple[str, bytes]:
        file = self.files.get((tenant, file_id)) or self.files.get(("", file_id))
        if file is None:
            raise NotFound(f"No such File object: {file_id}", param="id")
        return file


class OwnRegistry(ContainerRegistry):
    """A registry whose process owns the containers that it makes."""

    def __init__(self, local: LocalContainers, *arguments: Any, **more: Any) -> None:
        super().__init__(local, *arguments, **more)
        self.local = local

    async def __aenter__(self) -> OwnRegistry:
        await self.local.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.local.__aexit__(*exc)


def containers(
    sandbox: Any = None,
    *,
    clock: Clock | None = None,
    uploads: Any = None,
    library: Any = None,
    max_containers: int | None = None,
    directory: ContainerDirectory | None = None,
    owner: ContainerOwner | None = None,
    connect: Callable[[str, str], Calls] = lambda owner, url: NoCalls(),
    prefix: str = "",
    predecessors: Collection[str] = (),
    **rules: Any,
) -> OwnRegistry:
    numbers = itertools.count(1)
    clock = clock or Clock()
    policy = ContainerPolicy(**rules)
    directory = directory or MemoryStore().containers
    services = ContainerServices(
        uploads=uploads or Uploads(UPLOADS),
        library=library or Skills(MemoryStore(), clock=clock, ids=lambda prefix: prefix),
        clock=clock,
        ids=lambda kind: f"{kind}_{prefix}{next(numbers)}",
        directory=directory,
        quotas=TenantQuotas(Quotas(max_containers=max_containers)),
    )
    remote = RemoteContainers(directory, connect)
    local = LocalContainers(
        sandbox or FakeSandbox(run_command),
        policy,
        services,
        remote,
        owner=owner or ContainerOwner(id="here"),
        egress=partial(
            open_egress, dialer=Dialer(), clock=clock, ids=lambda kind: f"{kind}_hidden"
        ),
        lease_s=3600,
        predecessors=predecessors,
    )
    return OwnRegistry(local, policy, services, remote)


def code_interpreter_options(registry: ContainerRegistry) -> dict[str, Any]:
    """Return the options of a server that runs code."""
    return {
        "providers": {"code_interpreter": CodeInterpreterProvider(registry)},
        "containers": registry,
    }

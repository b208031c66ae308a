"""Containers that a separate process, the host, owns for all workers of a server. These containers
still exist after a worker has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeAlias

from antiphon.errors import Overloaded, ToolError
from antiphon.ipc.calls import Calls
from antiphon.ipc.client import CallClient
from antiphon.store.containers import ContainerRecord
from antiphon.wire.resources import containers as wc

from .local import LocalContainers
from .remote import RemoteContainer, RemoteContainers

#: ``_HOST_WAIT_S``: seconds that a call waits for the host to start again. ``_RETRY_S``: seconds
#: between the attempts of a starting worker to reach the host.
_HOST_WAIT_S, _RETRY_S = 30.0, 0.2

#: The containers of a host. If the host cannot run containers: a text with the reason.
_Opened: TypeAlias = LocalContainers | str


class ContainerHostSession:
    """The RPC methods of the container host, the process that owns the containers of all workers.
    Workers call these methods, and those of ``ContainerSession``.

    ``opened``: a future that gets its result when the host has tested its sandboxes. The result is
    the containers, or the reason why the host cannot run containers.
    """

    def __init__(self, opened: asyncio.Future[_Opened]) -> None:
        self._opened = opened

    async def unavailable_reason(self) -> str | None:
        """Return the reason why the host cannot run containers. Return None if it can run them."""
        opened = await asyncio.shield(self._opened)
        return opened if isinstance(opened, str) else None

    async def create(self, tenant: str, request: wc.CreateContainer) -> wc.ContainerResource:
        """Create a container for a client. See ``LocalContainers.create``."""
        return await (await self._local()).create(tenant, request)

    async def reserve(self, tenant: str, request: wc.CreateContainer) -> ContainerRecord:
        """Create a container for a response. See ``LocalContainers.reserve``."""
        local = await self._local()
        return local.record(await local.reserve(tenant, request))

    async def _local(self) -> LocalContainers:
        opened = await asyncio.shield(self._opened)
        if isinstance(opened, str):
            raise ToolError(opened)
        return opened


class HostedContainers:
    """The ``ContainerMaker`` of a worker process. The worker itself owns no containers. ``calls``:
    the RPC client that calls the ``ContainerHostSession`` in the host process, which owns the
    containers."""

    def __init__(self, calls: Calls, remote: RemoteContainers) -> None:
        self._calls = calls
        self._remote = remote

    async def unavailable_reason(self) -> str | None:
        """Wait until the host process has started. Return the reason why the host cannot run
        containers. Return None if it can run them."""
        while True:
            try:
                reason: str | None = await self._calls.call(
                    "unavailable_reason", returns=str | None
                )
            except Overloaded:
                await asyncio.sleep(_RETRY_S)
            else:
                return reason

    def find(self, tenant: str, container_id: str) -> None:
        return None

    def resources(self, tenant: str) -> dict[str, wc.ContainerResource]:
        return {}

    async def delete(self, tenant: str, container_id: str) -> bool:
        return False

    async def create(self, tenant: str, request: wc.CreateContainer) -> wc.ContainerResource:
        created: wc.ContainerResource = await self._calls.call(
            "create", tenant, request, returns=wc.ContainerResource
        )
        return created

    async def reserve(self, tenant: str, request: wc.CreateContainer) -> RemoteContainer:
        record = await self._calls.call("reserve", tenant, request, returns=ContainerRecord)
        return self._remote.handle_for(record)


def connect_to_host(path: Path) -> CallClient:
    """Return the RPC client for calls to the ``ContainerHostSession`` that listens at the socket
    ``path``."""
    return CallClient(path, on_lost=_host_is_gone, wait_s=_HOST_WAIT_S)


def _host_is_gone() -> Overloaded:
    return Overloaded(
        "The process that runs the containers has ended; it is started again.",
        status=503,
        code="container_unreachable",
    )

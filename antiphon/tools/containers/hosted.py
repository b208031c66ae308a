"""Containers that one process owns for all workers of a server. So the containers survive the end
of a worker."""

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

__all__ = ["ContainerHostSession", "HostedContainers", "connect_to_host"]

#: Seconds that a call waits for the host to start again, and between attempts of a worker that
#: starts.
_HOST_WAIT_S, _RETRY_S = 30.0, 0.2

#: The containers of a host, or why it runs none.
_Opened: TypeAlias = LocalContainers | str


class ContainerHostSession:
    """The methods of the host that a worker may call, besides ``ContainerSession``. ``opened`` is
    resolved when the host has tested its sandboxes."""

    def __init__(self, opened: asyncio.Future[_Opened]) -> None:
        self._opened = opened

    async def unavailable_reason(self) -> str | None:
        """Return the reason why the host cannot run containers. Return None if it can."""
        opened = await asyncio.shield(self._opened)
        return opened if isinstance(opened, str) else None

    async def create(self, tenant: str, request: wc.CreateContainer) -> wc.ContainerResource:
        """See ``LocalContainers.create``."""
        return await (await self._local()).create(tenant, request)

    async def reserve(self, tenant: str, request: wc.CreateContainer) -> ContainerRecord:
        """See ``LocalContainers.reserve``."""
        local = await self._local()
        return local.record(await local.reserve(tenant, request))

    async def _local(self) -> LocalContainers:
        opened = await asyncio.shield(self._opened)
        if isinstance(opened, str):
            raise ToolError(opened)
        return opened


class HostedContainers:
    """``ContainerMaker`` of a worker: it calls a ``ContainerHostSession`` through ``calls``. The
    worker itself owns no containers."""

    def __init__(self, calls: Calls, remote: RemoteContainers) -> None:
        self._calls = calls
        self._remote = remote

    async def unavailable_reason(self) -> str | None:
        """Wait until the host has started. Return the reason why it cannot run containers, or None
        if it can."""
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
        return self._remote.of(record)


def connect_to_host(path: Path) -> CallClient:
    """Return the client for calls to the ``ContainerHostSession`` at a socket."""
    return CallClient(path, on_lost=_host_is_gone, wait_s=_HOST_WAIT_S)


def _host_is_gone() -> Overloaded:
    return Overloaded(
        "The process that runs the containers has ended; it is started again.",
        status=503,
        code="container_unreachable",
    )

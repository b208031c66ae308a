"""The contract of a container directory, which records the owner of each container.

A container consists of processes and memory of one machine. Its owner is the Antiphon process that
runs it. Any process of the store can look up the owner in the directory, and forward requests for
the container to the owner. The directory also counts the containers of each tenant.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.wire.resources.containers import ContainerResource

__all__ = ["EXPIRED_RETENTION_S", "ContainerDirectory", "ContainerRecord", "mark_expired"]

#: Seconds for which an expired container can still be found.
EXPIRED_RETENTION_S = 3600.0


class ContainerRecord(Struct, frozen=True, kw_only=True):
    """An entry of the container directory. ``resource``: the container as its owner reported it
    last. ``owner``: the process that runs the container. ``url``: the address at which other
    servers reach this process; empty if they cannot reach it. ``is_auto``: a response created the
    container for itself."""

    tenant: str
    resource: ContainerResource
    owner: str
    url: str = ""
    is_auto: bool = False

    @property
    def is_active(self) -> bool:
        """Whether the directory lists the container as active, not as expired."""
        return self.resource.status == "active"


class ContainerDirectory(Protocol):
    """The contract of a container directory, which records the owner of each container. The owner
    is the process that runs the container.

    Each owner has a lease. An owner that does not renew its lease in time counts as dead. A
    container is active until its owner reports that it has expired, or until the owner's lease
    ends. An expired container stays expired, even if the owner renews the lease later. So an owner
    whose lease has ended has lost its containers.
    """

    async def renew(
        self, owner: str, url: str, *, lease_s: float, used: Sequence[ContainerResource] = ()
    ) -> frozenset[str]:
        """Begin or renew the lease of an owner, and return the ids of its active containers.
        ``used``: the current state of the owner's containers that were used since the last call.

        The call also expires the containers of all owners whose lease has ended, and deletes
        containers that expired ``EXPIRED_RETENTION_S`` seconds ago.
        """

    async def add(self, record: ContainerRecord, *, max_active: int | None, lease_s: float) -> bool:
        """Add an active container. If its owner has no lease, the owner gets a lease of ``lease_s``
        seconds. Returns False and adds nothing if the tenant already has ``max_active`` active
        containers."""

    async def expire(self, owner: str, ids: Collection[str]) -> None:
        """Mark these containers of an owner as expired."""

    async def find(self, tenant: str, container_id: str) -> ContainerRecord | None:
        """Return a container of a tenant. Returns None if the container is unknown."""

    async def list(self, tenant: str) -> tuple[ContainerRecord, ...]:
        """Return all containers of a tenant, oldest first."""

    async def delete(self, tenant: str, container_id: str) -> bool:
        """Delete a container from the directory. Returns False if the container is unknown."""

    async def release(self, owner: str) -> None:
        """End the lease of an owner. The containers of the owner expire."""


def mark_expired(resource: ContainerResource) -> ContainerResource:
    """Return a copy of a container's resource with the status of an expired container."""
    return replace(resource, status="expired")

"""The contract of a container directory: which process owns which container.

A container consists of processes and memory of one machine. The directory names its owner, so that
any process of the store can pass requests on to the owner. It also counts the containers of a
tenant.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.wire.resources.containers import ContainerResource

__all__ = ["EXPIRED_S", "ContainerDirectory", "ContainerRecord", "expired"]

#: Seconds for which an expired container can still be found.
EXPIRED_S = 3600.0


class ContainerRecord(Struct, frozen=True, kw_only=True):
    """A container. ``resource``: as its owner reported it last. ``owner``: the process that has it;
    ``url``: where other servers reach this process, empty if they cannot. ``is_auto``: a response
    created it for itself."""

    tenant: str
    resource: ContainerResource
    owner: str
    url: str = ""
    is_auto: bool = False

    @property
    def is_active(self) -> bool:
        """Whether the container has not expired, as far as the directory knows."""
        return self.resource.status == "active"


class ContainerDirectory(Protocol):
    """The contract of a container directory.

    A container is active until its owner reports that it has expired, or until the owner's lease
    ends. An expired container stays expired: an owner whose lease has ended has lost its
    containers.
    """

    async def renew(
        self, owner: str, url: str, *, lease_s: float, used: Sequence[ContainerResource] = ()
    ) -> frozenset[str]:
        """Begin or renew the lease of an owner, and return the ids of its active containers.
        ``used``: new reports about some of them.

        Also lets the containers of all owners whose lease has ended expire, and deletes containers
        that expired ``EXPIRED_S`` ago.
        """

    async def add(self, record: ContainerRecord, *, max_active: int | None, lease_s: float) -> bool:
        """Add an active container. Its owner gets a lease if it has none. False, and nothing is
        added, if its tenant has ``max_active`` active containers already."""

    async def expire(self, owner: str, ids: Collection[str]) -> None:
        """Let containers of an owner expire."""

    async def find(self, tenant: str, container_id: str) -> ContainerRecord | None:
        """Return a container, or None."""

    async def list(self, tenant: str) -> tuple[ContainerRecord, ...]:
        """Return all containers of a tenant, oldest first."""

    async def delete(self, tenant: str, container_id: str) -> bool:
        """Delete a container. False if there is none."""

    async def release(self, owner: str) -> None:
        """End the lease of an owner. Its containers expire."""


def expired(resource: ContainerResource) -> ContainerResource:
    """Return the resource of a container that has expired."""
    return replace(resource, status="expired")

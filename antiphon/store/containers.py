"""The container directory, which records the owner of each container.

A container consists of processes and memory of one machine. Its owner is the Antiphon process that
runs it. Any process of the store can look up the owner in the directory, and forward requests for
the container to the owner. The directory also counts the containers of each tenant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.wire.resources.containers import ContainerResource

from .values import SERVER, Document, ValueStore

__all__ = ["EXPIRED_RETENTION_S", "ContainerDirectory", "ContainerRecord", "mark_expired"]

#: Seconds for which an expired container can still be found.
EXPIRED_RETENTION_S = 3600.0
#: A lease that would last longer was made before a restart of the machine, which resets its timer.
_MAX_LEASE_S = 7200.0


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


class _Entry(Struct):
    """A container in the directory. ``expired_at``: None while the container is active."""

    record: ContainerRecord
    expired_at: float | None = None


class _Directory(Struct):
    """The content of the directory. ``leases``: the URL of each owner, and the time at which its
    lease ends. ``containers``: all containers, oldest first."""

    leases: dict[str, tuple[str, float]] = {}
    containers: list[_Entry] = []

    def end_leases(self, now: float) -> None:
        """Expire the containers of owners whose lease has ended, and delete containers that expired
        long ago."""
        latest = now + _MAX_LEASE_S
        self.leases = {
            name: lease for name, lease in self.leases.items() if now < lease[1] < latest
        }
        for entry in self.containers:
            if entry.expired_at is None and entry.record.owner not in self.leases:
                entry.expired_at = now
        self.containers = [
            entry
            for entry in self.containers
            if entry.expired_at is None or abs(now - entry.expired_at) <= EXPIRED_RETENTION_S
        ]

    def active(self, owner: str) -> list[_Entry]:
        """Return the active containers of an owner."""
        return [
            entry
            for entry in self.containers
            if entry.expired_at is None and entry.record.owner == owner
        ]


class ContainerDirectory:
    """The directory of containers, in one value of the store. It records the owner of each
    container. The owner is the process that runs the container.

    Each owner has a lease. An owner that does not renew its lease in time counts as dead. A
    container is active until its owner reports that it has expired, or until the owner's lease
    ends. An expired container stays expired, even if the owner renews the lease later. So an owner
    whose lease has ended has lost its containers.

    ``timer``: returns monotonic seconds. All processes of the store must have the same timer, so
    this class serves the processes of one machine. A store of several machines overrides its
    methods.
    """

    def __init__(self, values: ValueStore, timer: Callable[[], float] = time.monotonic) -> None:
        self._directory = Document(values, SERVER, "containers", _Directory)
        self._timer = timer

    async def renew(
        self, owner: str, url: str, *, lease_s: float, used: Sequence[ContainerResource] = ()
    ) -> frozenset[str]:
        """Begin or renew the lease of an owner, and return the ids of its active containers.
        ``used``: the current state of the owner's containers that were used since the last call.

        The call also expires the containers of all owners whose lease has ended, and deletes
        containers that expired ``EXPIRED_RETENTION_S`` seconds ago.
        """
        reports = {each.id: each for each in used}

        def change(directory: _Directory) -> frozenset[str]:
            now = self._timer()
            directory.end_leases(now)
            directory.leases[owner] = (url, now + lease_s)
            active = directory.active(owner)
            for entry in active:
                resource = reports.get(entry.record.resource.id, entry.record.resource)
                entry.record = replace(entry.record, resource=resource)
            return frozenset(entry.record.resource.id for entry in active)

        return await self._directory.update(change)

    async def add(self, record: ContainerRecord, *, max_active: int | None, lease_s: float) -> bool:
        """Add an active container. If its owner has no lease, the owner gets a lease of ``lease_s``
        seconds. Returns False and adds nothing if the tenant already has ``max_active`` active
        containers."""

        def change(directory: _Directory) -> bool:
            now = self._timer()
            directory.end_leases(now)
            active = sum(
                entry.expired_at is None and entry.record.tenant == record.tenant
                for entry in directory.containers
            )
            if max_active is not None and active >= max_active:
                return False
            directory.leases.setdefault(record.owner, (record.url, now + lease_s))
            directory.containers.append(_Entry(record))
            return True

        return await self._directory.update(change)

    async def expire(self, owner: str, ids: Collection[str]) -> None:
        """Mark these containers of an owner as expired."""

        def change(directory: _Directory) -> None:
            for entry in directory.active(owner):
                if entry.record.resource.id in ids:
                    entry.expired_at = self._timer()

        await self._directory.update(change)

    async def find(self, tenant: str, container_id: str) -> ContainerRecord | None:
        """Return a container of a tenant. Returns None if the container is unknown."""
        records = await self.list(tenant)
        return next((each for each in records if each.resource.id == container_id), None)

    async def list(self, tenant: str) -> tuple[ContainerRecord, ...]:
        """Return all containers of a tenant, oldest first."""
        directory = await self._directory.load()
        directory.end_leases(self._timer())
        return tuple(
            replace(entry.record, url=directory.leases[entry.record.owner][0])
            if entry.expired_at is None
            else replace(entry.record, resource=mark_expired(entry.record.resource), url="")
            for entry in directory.containers
            if entry.record.tenant == tenant
        )

    async def delete(self, tenant: str, container_id: str) -> bool:
        """Delete a container from the directory. Returns False if the container is unknown."""

        def change(directory: _Directory) -> bool:
            count = len(directory.containers)
            directory.containers = [
                entry
                for entry in directory.containers
                if (entry.record.tenant, entry.record.resource.id) != (tenant, container_id)
            ]
            return len(directory.containers) < count

        return await self._directory.update(change)

    async def delete_tenant(self, tenant: str) -> int:
        """Delete the containers of a tenant from the directory. Return how many they were."""

        def change(directory: _Directory) -> int:
            count = len(directory.containers)
            directory.containers = [
                entry for entry in directory.containers if entry.record.tenant != tenant
            ]
            return count - len(directory.containers)

        return await self._directory.update(change)

    async def release(self, owner: str) -> None:
        """End the lease of an owner. The containers of the owner expire."""

        def change(directory: _Directory) -> None:
            directory.leases.pop(owner, None)
            directory.end_leases(self._timer())

        await self._directory.update(change)


def mark_expired(resource: ContainerResource) -> ContainerResource:
    """Return a copy of a container's resource with the status of an expired container."""
    return replace(resource, status="expired")

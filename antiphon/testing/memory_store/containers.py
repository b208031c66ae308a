"""The in-memory container directory, the reference implementation of the contract
``ContainerDirectory``. It is used for stores that only one process opens."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from antiphon.store.containers import EXPIRED_RETENTION_S, ContainerRecord, mark_expired
from antiphon.wire.resources.containers import ContainerResource

__all__ = ["MemoryContainers"]

_Key = tuple[str, str]


class MemoryContainers:
    """Implements ``ContainerDirectory`` with dictionaries. ``check``: a function that the methods
    call first. It raises ``StoreError`` if the store is closed. ``timer``: returns monotonic
    seconds."""

    def __init__(
        self, check: Callable[[], None], timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._check = check
        self._timer = timer
        self._records: dict[_Key, ContainerRecord] = {}
        #: Time at which each expired container expired.
        self._expired_at: dict[_Key, float] = {}
        #: URL of each owner, and the time at which its lease ends.
        self._leases: dict[str, tuple[str, float]] = {}

    async def renew(
        self, owner: str, url: str, *, lease_s: float, used: Sequence[ContainerResource] = ()
    ) -> frozenset[str]:
        self._check()
        self._end_leases()
        self._leases[owner] = (url, self._timer() + lease_s)
        reports = {each.id: each for each in used}
        own = [key for key in self._active() if self._records[key].owner == owner]
        for key in own:
            record = self._records[key]
            resource = reports.get(record.resource.id, record.resource)
            self._records[key] = replace(record, resource=resource)
        return frozenset(id for _, id in own)

    async def add(self, record: ContainerRecord, *, max_active: int | None, lease_s: float) -> bool:
        self._check()
        self._end_leases()
        active = sum(tenant == record.tenant for tenant, _ in self._active())
        if max_active is not None and active >= max_active:
            return False
        self._leases.setdefault(record.owner, (record.url, self._timer() + lease_s))
        self._records[record.tenant, record.resource.id] = record
        return True

    async def expire(self, owner: str, ids: Collection[str]) -> None:
        self._check()
        for key in self._active():
            if self._records[key].owner == owner and key[1] in ids:
                self._expired_at[key] = self._timer()

    async def find(self, tenant: str, container_id: str) -> ContainerRecord | None:
        self._check()
        self._end_leases()
        key = (tenant, container_id)
        return self._shown(key) if key in self._records else None

    async def list(self, tenant: str) -> tuple[ContainerRecord, ...]:
        self._check()
        self._end_leases()
        return tuple(self._shown(key) for key in self._records if key[0] == tenant)

    async def delete(self, tenant: str, container_id: str) -> bool:
        self._check()
        self._expired_at.pop((tenant, container_id), None)
        return self._records.pop((tenant, container_id), None) is not None

    async def release(self, owner: str) -> None:
        self._check()
        self._end_lease(owner)

    def _active(self) -> tuple[_Key, ...]:
        return tuple(key for key in self._records if key not in self._expired_at)

    def _shown(self, key: _Key) -> ContainerRecord:
        record = self._records[key]
        if key in self._expired_at:
            return replace(record, resource=mark_expired(record.resource), url="")
        return replace(record, url=self._leases[record.owner][0])

    def _end_leases(self) -> None:
        now = self._timer()
        for owner in [owner for owner, (_, until) in self._leases.items() if until <= now]:
            self._end_lease(owner)
        for key in [key for key, at in self._expired_at.items() if now - at > EXPIRED_RETENTION_S]:
            del self._records[key], self._expired_at[key]

    def _end_lease(self, owner: str) -> None:
        for key in self._active():
            if self._records[key].owner == owner:
                self._expired_at[key] = self._timer()
        self._leases.pop(owner, None)

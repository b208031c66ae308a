"""The container directory in PostgreSQL. It records which process owns each container. The clock of
the database decides when the lease of an owner ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from antiphon.store.containers import EXPIRED_RETENTION_S, ContainerDirectory, ContainerRecord
from antiphon.store.sql.executor import index_key
from antiphon.store.sql.row_mapping import container_of, encode
from antiphon.wire.resources.containers import ContainerResource

from .pool import ConnectionPool, Transaction


class PostgresContainers(ContainerDirectory):
    """Implements ``ContainerDirectory`` with tables in PostgreSQL."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def renew(
        self, owner: str, url: str, *, lease_s: float, used: Sequence[ContainerResource] = ()
    ) -> frozenset[str]:
        async with self._pool.transaction() as transaction:
            await _end_leases(transaction)
            await transaction.rows("renew_container_owner", owner, url, lease_s)
            if used:
                bodies = [encode(each) for each in used]
                ids = [each.id for each in used]
                await transaction.rows("report_containers", owner, ids, bodies)
            await transaction.rows("drop_expired_containers", EXPIRED_RETENTION_S)
            rows = await transaction.rows("active_containers_of_owner", owner)
            return frozenset(row[0] for row in rows)

    async def add(self, record: ContainerRecord, *, max_active: int | None, lease_s: float) -> bool:
        tenant, resource = record.tenant, record.resource
        async with self._pool.tenant_transaction("containers", tenant) as transaction:
            if max_active is not None:
                active = await transaction.value("count_active_containers", tenant)
                if active >= max_active:
                    return False
            await transaction.rows("add_container_owner", record.owner, record.url, lease_s)
            row = (tenant, resource.id, record.owner, record.is_auto, encode(resource))
            await transaction.rows("add_container", *row)
            return True

    async def expire(self, owner: str, ids: Collection[str]) -> None:
        await self._pool.rows("expire_containers", owner, list(ids))

    async def find(self, tenant: str, container_id: str) -> ContainerRecord | None:
        key = (tenant, index_key(container_id))
        found = await self._pool.decoded_rows(container_of, "container", *key)
        return found[0] if found else None

    async def list(self, tenant: str) -> tuple[ContainerRecord, ...]:
        return tuple(await self._pool.decoded_rows(container_of, "containers", tenant))

    async def delete(self, tenant: str, container_id: str) -> bool:
        return bool(await self._pool.rows("drop_container", tenant, index_key(container_id)))

    async def delete_tenant(self, tenant: str) -> int:
        return len(await self._pool.rows("drop_containers", tenant))

    async def release(self, owner: str) -> None:
        async with self._pool.transaction() as transaction:
            await transaction.rows("drop_container_owner", owner)
            await transaction.rows("expire_containers_of_owners", [owner])


async def _end_leases(transaction: Transaction) -> None:
    """Expire the containers of owners whose lease has ended."""
    lost = await transaction.rows("drop_lost_container_owners")
    if lost:
        await transaction.rows("expire_containers_of_owners", [row[0] for row in lost])

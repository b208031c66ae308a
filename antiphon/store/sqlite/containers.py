"""The SQLite container directory. Leases are measured by the machine's monotonic clock, which is
the same for all processes that share the database."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Sequence

from antiphon.store.common.row_mapping import container_of, encode
from antiphon.store.containers import EXPIRED_RETENTION_S, ContainerDirectory, ContainerRecord
from antiphon.wire.resources.containers import ContainerResource

from .database import Database


class SqliteContainers(ContainerDirectory):
    """Records in an SQLite database which process runs each container. Implements
    ``ContainerDirectory``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = database.queries

    async def renew(
        self, owner: str, url: str, *, lease_s: float, used: Sequence[ContainerResource] = ()
    ) -> frozenset[str]:
        def work(connection: sqlite3.Connection) -> frozenset[str]:
            now = self._end_leases(connection)
            connection.execute(self._queries["renew_container_owner"], (owner, url, now + lease_s))
            reports = [(encode(each), owner, each.id) for each in used]
            connection.executemany(self._queries["report_container"], reports)
            rows = connection.execute(self._queries["active_containers_of_owner"], (owner,))
            return frozenset(id for (id,) in rows)

        return await self._database.write(work)

    async def add(self, record: ContainerRecord, *, max_active: int | None, lease_s: float) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            now = self._end_leases(connection)
            query = self._queries["count_active_containers"]
            (active,) = connection.execute(query, (record.tenant,)).fetchone()
            if max_active is not None and active >= max_active:
                return False
            lease = (record.owner, record.url, now + lease_s)
            connection.execute(self._queries["add_container_owner"], lease)
            resource = record.resource
            row = (record.tenant, resource.id, record.owner, record.is_auto, encode(resource))
            connection.execute(self._queries["add_container"], row)
            return True

        return await self._database.write(work)

    async def expire(self, owner: str, ids: Collection[str]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            now = time.monotonic()
            rows = [(now, owner, id) for id in ids]
            connection.executemany(self._queries["expire_container"], rows)

        await self._database.write(work)

    async def find(self, tenant: str, container_id: str) -> ContainerRecord | None:
        arguments = (time.monotonic(), tenant, container_id)
        found = await self._database.rows("container", arguments, container_of)
        return found[0] if found else None

    async def list(self, tenant: str) -> tuple[ContainerRecord, ...]:
        arguments = (time.monotonic(), tenant)
        return tuple(await self._database.rows("containers", arguments, container_of))

    async def delete(self, tenant: str, container_id: str) -> bool:
        query, key = self._queries["drop_container"], (tenant, container_id)
        return await self._database.write(
            lambda connection: connection.execute(query, key).rowcount > 0
        )

    async def release(self, owner: str) -> None:
        def work(connection: sqlite3.Connection) -> None:
            expire = self._queries["expire_containers_of_owner"]
            connection.execute(expire, (time.monotonic(), owner))
            connection.execute(self._queries["drop_container_owner"], (owner,))

        await self._database.write(work)

    def _end_leases(self, connection: sqlite3.Connection) -> float:
        """Expire the containers of owners whose lease has ended. Return the current time of the
        monotonic clock, which all processes on this host share."""
        now = time.monotonic()
        connection.execute(self._queries["expire_lost_containers"], (now,))
        connection.execute(self._queries["drop_lost_container_owners"], (now,))
        connection.execute(self._queries["drop_expired_containers"], (now - EXPIRED_RETENTION_S,))
        return now

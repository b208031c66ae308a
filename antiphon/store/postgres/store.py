"""The store for many processes: responses and conversations in PostgreSQL.

What SQLite keeps, in the same form. Nothing counts as it goes: a row that every writer changed
would have them all wait for each other, so a sweep counts when it comes.
"""

from __future__ import annotations

from typing import Any

from antiphon.store.base import Retention
from antiphon.store.records import StoredResponse
from antiphon.store.row_mapping import (
    conversation_of,
    encode,
    item_of,
    items_of,
    response_row,
    stored_of,
)
from antiphon.wire.conversations import Conversation
from antiphon.wire.items import Item

from .files import PostgresFiles
from .pool import ConnectionPool, Transaction, key
from .runs import PostgresRuns
from .skills import PostgresSkills
from .vectors import PostgresVectors

__all__ = ["PostgresStore"]

#: Rows looked at in one step of a sweep.
_SWEEP = 500


class PostgresStore:
    """``Store`` over one database. Made by ``open``."""

    def __init__(self, cluster: ConnectionPool) -> None:
        self._cluster = cluster
        self.runs = PostgresRuns(cluster, _keep)
        self.files = PostgresFiles(cluster)
        self.skills = PostgresSkills(cluster)
        self.vectors = PostgresVectors(cluster)

    @classmethod
    async def open(cls, url: str, *, connections: int = 10) -> PostgresStore:
        """Connect, and make or bring up to date the tables. ``connections``: at most so many at a
        time, and one that listens. Raises ``SetupError``."""
        return cls(await ConnectionPool.open(url, connections=connections))

    async def save(
        self, tenant: str, stored: StoredResponse, *, conversation: str | None = None
    ) -> None:
        async with self._cluster.transaction() as inside:
            await _keep(inside, tenant, stored, conversation)

    async def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        found = await self._cluster.shaped(stored_of, "load", tenant, key(response_id))
        return found[0] if found else None

    async def chain(self, tenant: str, response_id: str) -> tuple[StoredResponse, ...] | None:
        found = await self._cluster.shaped(stored_of, "chain", tenant, key(response_id))
        return tuple(found) or None

    async def item(self, tenant: str, item_id: str) -> Item | None:
        held = await self._cluster.shaped(items_of, "item", tenant, key(item_id))
        if not held:
            talked = await self._cluster.shaped(item_of, "conversation_item", tenant, key(item_id))
            return talked[0] if talked else None
        return next((item for item in held[0] if item.id == item_id), None)

    async def delete(self, tenant: str, response_id: str) -> bool:
        return await self._cluster.surely(self._delete(tenant, response_id))

    async def _delete(self, tenant: str, response_id: str) -> bool:
        async with self._cluster.transaction() as inside:
            await inside.rows("freeing")
            row = await inside.value("row_of", tenant, key(response_id))
            if row is None:
                return False
            await _expire(inside, row)
            await self.runs.tell(inside, over=[(tenant, response_id)])
        self.runs.touch(tenant, response_id)
        return True

    async def sweep(self, retention: Retention, now: int) -> int:
        expired = 0
        while True:  # in steps, so that no row is locked for long
            async with self._cluster.transaction() as inside:
                if not await inside.value("sweeping"):
                    return expired
                await inside.rows("freeing")
                step = await self._sweep(inside, retention, now)
            expired += step
            if step < _SWEEP:
                return expired

    async def _sweep(self, inside: Transaction, retention: Retention, now: int) -> int:
        await inside.rows("forget_owners")
        await self.files.expire(inside, now)
        await self.vectors.expire(inside, now)
        await inside.rows("see_ended", now)
        if retention.max_log_age_s is not None:
            await inside.rows("expire_runs", int(now - retention.max_log_age_s))
        lapsed = await inside.rows("lapsed", now, _SWEEP)
        for (row,) in lapsed:
            await _expire(inside, row)
        left = _SWEEP - len(lapsed)
        return len(lapsed) + (await self._bound(inside, retention, now, left) if left else 0)

    async def _bound(self, inside: Transaction, retention: Retention, now: int, most: int) -> int:
        count, size = 0, 0
        if retention.max_responses is not None or retention.max_bytes is not None:
            ((count, size),) = await inside.rows("totals")
        oldest = await inside.rows("oldest", most)
        for expired, (row, created_at) in enumerate(oldest):
            if not retention.over(age_s=now - created_at, responses=count, bytes=size):
                return expired
            count -= 1
            size -= await _expire(inside, row)
        return len(oldest)

    async def put_conversation(
        self, tenant: str, conversation: Conversation, items: tuple[Item, ...] = ()
    ) -> None:
        async with self._cluster.transaction() as inside:
            row = (tenant, key(conversation.id), encode(conversation))
            await inside.rows("put_conversation", *row)
            await _append(inside, tenant, conversation.id, items)

    async def conversation(self, tenant: str, conversation_id: str) -> Conversation | None:
        found = await self._cluster.shaped(
            conversation_of, "conversation", tenant, key(conversation_id)
        )
        return found[0] if found else None

    async def drop_conversation(self, tenant: str, conversation_id: str) -> bool:
        return bool(await self._cluster.rows("drop_conversation", tenant, key(conversation_id)))

    async def add_items(self, tenant: str, conversation_id: str, items: tuple[Item, ...]) -> bool:
        async with self._cluster.transaction() as inside:
            return await _append(inside, tenant, conversation_id, items)

    async def conversation_items(self, tenant: str, conversation_id: str) -> tuple[Item, ...]:
        return tuple(
            await self._cluster.shaped(item_of, "conversation_items", tenant, key(conversation_id))
        )

    async def remove_item(self, tenant: str, conversation_id: str, item_id: str) -> bool:
        async with self._cluster.transaction() as inside:
            row = await inside.value("conversation_row", tenant, key(conversation_id))
            return bool(row and await inside.rows("remove_item", row, key(item_id)))

    async def secret(self, name: str, fresh: bytes) -> bytes:
        await self._cluster.rows("put_secret", name, fresh)
        ((value,),) = await self._cluster.rows("secret", name)
        return bytes(value)

    async def close(self) -> None:
        await self.runs.close()
        await self._cluster.close()


async def _keep(
    inside: Transaction,
    tenant: str,
    stored: StoredResponse,
    conversation: str | None = None,
    *,
    expires_at: int | None = None,
    listed: bool = True,
) -> None:
    """Keep a response. ``listed``: its items can be referred to."""
    values: list[Any] = list(response_row(tenant, stored, expires_at))
    row = await inside.value("save", *values)
    added = (*stored.input, *stored.response.output)
    await inside.rows("forget_items", row)
    if listed and added:
        await inside.rows("save_items", tenant, [key(item.id) for item in added], row)
    if conversation is not None:
        await _append(inside, tenant, conversation, added)


async def _append(
    inside: Transaction, tenant: str, conversation: str, items: tuple[Item, ...]
) -> bool:
    row = await inside.value("conversation_row", tenant, key(conversation))
    if row is not None and items:
        ids, bodies = [key(item.id) for item in items], [encode(item) for item in items]
        await inside.rows("add_items", row, tenant, ids, bodies)
    return row is not None


async def _expire(inside: Transaction, row: int) -> int:
    """Forget a response with its run; and, of it and of those it builds on, what nobody can name
    and nobody builds on. Returns the bytes that this freed."""
    await inside.rows("drop_run_of", row)  # first, as whoever ends a run begins with it
    return int(await inside.value("expire", row))

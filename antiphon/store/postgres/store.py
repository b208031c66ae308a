"""The PostgreSQL store, which many processes can use together. This module stores responses and
conversations.

The rows contain values in the same format as in the SQLite store (see
``sql/row_mapping.py``).
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Literal

from antiphon.store.base import Retention
from antiphon.store.common.row_cipher import RowCipher
from antiphon.store.common.saving import Saving
from antiphon.store.files import BlobStorage
from antiphon.store.postgres.bus import BusConnection, redis_connector
from antiphon.store.postgres.vectors import Pgvector, PostgresVectorIndex
from antiphon.store.records import (
    Reservation,
    ResponseQuery,
    StoredResponse,
)
from antiphon.store.sql.deletion_steps import TENANT_STEPS
from antiphon.store.sql.executor import index_key
from antiphon.store.sql.row_mapping import (
    Columns,
    items_of,
    response_row,
    summary_filters,
    summary_of,
    summary_row,
)
from antiphon.store.sql.runs import SaveStep
from antiphon.store.sql.store import SqlStore
from antiphon.store.sql.values import SqlValues
from antiphon.store.values import SERVER
from antiphon.wire.items import Item
from antiphon.wire.response_list import ResponseSummary

from .bus import MessageSigner
from .containers import PostgresContainers
from .large_responses import LargeResponses, encode_reference, put_contents, read_contents
from .pool import ConnectionPool, Transaction
from .rates import PostgresRates
from .rewriting import rewrite_rows
from .runs import PostgresRuns
from .save_queue import ResponseRow, SaveQueue
from .sweep import PostgresSweep, delete_responses

#: Number of large responses that one query reads in order to move them.
_MOVED_ROWS = 20
#: The name of the secret with which processes sign the messages that they send over the bus.
_BUS_SECRET = "secret bus"
#: Number of summaries that one statement of a filtered search reads.
_LOOKED_ROWS = 2000
#: The filters of a search without restrictions.
_ANY = summary_filters(ResponseQuery())


class PostgresStore(SqlStore[Transaction]):
    """Implements ``Store`` with a PostgreSQL database. Made by ``open``."""

    runs: PostgresRuns

    def __init__(
        self,
        pool: ConnectionPool,
        pgvector: Pgvector | None = None,
        bus: BusConnection | None = None,
    ) -> None:
        super().__init__(pool)
        self._pool = pool
        self._saves = SaveQueue(pool)
        self._large = LargeResponses()
        self.runs = PostgresRuns(pool, self.prepare_save, bus)
        self.vectors = PostgresVectorIndex(pool, pgvector)
        self.rates = PostgresRates(pool)
        self.containers = PostgresContainers(pool)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        connections: int = 10,
        listen_url: str | None = None,
        vectors: Literal["exact", "pgvector"] = "exact",
        bus: str | None = None,
        peers: Path | None = None,
        cipher: RowCipher | None = None,
    ) -> PostgresStore:
        """Connect and apply migrations. Raises ``SetupError``.

        - ``connections``: the maximum number of connections in the pool. One more connection
          listens for notifications.
        - ``listen_url``: the URL for the connection that listens. It is needed if ``url`` leads to
          a connection pooler.
        - ``vectors``: how the nearest vectors are found: callers load all vectors and compare them,
          or the extension pgvector searches them.
        - ``bus``: the URL of a message bus. The bus need not be available yet.
        - ``peers``: a folder for sockets. Processes of one host with the same folder send each
          other the events of background runs directly. If the folder cannot be used, the processes
          send these events over the bus or the database.
        - ``cipher``: encrypts and decrypts the rows; None if they are not encrypted.
        """
        connector = None if bus is None else redis_connector(bus)
        pool = await ConnectionPool.open(
            url, connections=connections, listen_url=listen_url, cipher=cipher
        )
        try:
            pgvector = await Pgvector.open(pool) if vectors == "pgvector" else None
            connection = None
            if connector is not None:
                values = SqlValues(pool)
                secret = await values.set_default(SERVER, _BUS_SECRET, secrets.token_bytes(32))
                connection = BusConnection(connector, MessageSigner(secret))
            store = cls(pool, pgvector, connection)
            if peers is not None:
                await store.runs.notifications.open_sockets(peers)
        except BaseException:
            await pool.close()
            raise
        return store

    async def _save(self, saving: Saving) -> None:
        await self._saves.save(await self._saved_row(saving))

    async def _prepare_save(self, saving: Saving) -> SaveStep[Transaction]:
        row = await self._saved_row(saving)

        async def save(transaction: Transaction) -> None:
            await transaction.rows("save", *row.arguments)

        return save

    async def _stored(self, name: str, *key: str) -> list[StoredResponse]:
        rows = await self._pool.rows(name, *key)
        return await self._pool.decode(
            self._stored_of, [await self._large.restore_stored(row) for row in rows]
        )

    async def _items(self, *key: str) -> list[tuple[Item, ...]]:
        rows = await self._pool.rows("item", *key)
        return await self._pool.decode(
            items_of, [await self._large.restore_items(row) for row in rows]
        )

    async def _summaries(
        self, tenant: str, query: ResponseQuery, filters: Columns, after: int | None
    ) -> list[ResponseSummary]:
        name = "summaries_newest" if query.newest_first else "summaries_oldest"
        looked = query.limit if filters == _ANY else max(query.limit, _LOOKED_ROWS)
        found: list[bytes] = []
        while (missing := query.limit - len(found)) > 0:
            ((after, bodies),) = await self._pool.rows(
                name, tenant, *filters, after, missing, looked
            )
            found += bodies
            if after is None:
                break
        return await self._pool.decode(summary_of, [(body,) for body in found])

    async def delete(self, tenant: str, response_id: str) -> bool:
        return await self._pool.run_to_completion(self._delete(tenant, response_id))

    async def _delete(self, tenant: str, response_id: str) -> bool:
        async with self._pool.transaction() as transaction:
            await transaction.rows("lock_deletions")
            row = await transaction.value("loadable_row", tenant, index_key(response_id))
            if row is None:
                return False
            await delete_responses(transaction, [row])
            await self.runs.announce_end(transaction, tenant, response_id)
        self.runs.mark_stale(tenant, response_id)
        return True

    async def delete_tenant(self, tenant: str) -> int:
        total = await self.containers.delete_tenant(tenant)
        for name, rows in TENANT_STEPS.items():
            while name in self._pool.queries:
                async with self._pool.transaction() as transaction:
                    await transaction.rows("lock_deletions")
                    count = await transaction.change(name, tenant, rows)
                if not count:
                    break
                total += count
        return total

    async def rewrite_rows(self) -> int:
        return await rewrite_rows(self._pool, is_searchable=not self.is_encrypted)

    async def reserve_response(self, reservation: Reservation) -> bool:
        tenant, max_bytes = reservation.tenant, reservation.max_bytes
        key = index_key(reservation.response_id)
        row = (tenant, key, reservation.owner, reservation.lease_s)
        async with self._pool.tenant_transaction("responses", tenant) as transaction:
            if reservation.max_responses is not None:
                ((stored, reserved),) = await transaction.rows("count_reserved", *row)
                if stored + reserved > reservation.max_responses:
                    return False
            if max_bytes is not None:
                ((_, stored_bytes),) = await transaction.rows("stored_totals", tenant)
                if stored_bytes >= max_bytes:
                    return False
            await transaction.rows("reserve_response", *row)
            return True

    async def clock(self, now: float) -> float:
        ((seconds,),) = await self._pool.rows("clock")
        return float(seconds)

    async def sweep(self, retention: Retention, now: int) -> int:
        return await PostgresSweep(self._pool, retention, now).run()

    def use_blobs(self, blobs: BlobStorage, min_bytes: int) -> None:
        self._large.use(blobs, min_bytes)

    async def has_blobs(self) -> bool:
        return bool(await self._pool.rows("responses_in_blobs", "", 1))

    async def move_blobs(self, source: BlobStorage | None, target: BlobStorage | None) -> int:
        if source is None:  # responses in the store stay there: only new ones go to blobs
            return 0
        total, after = 0, ""
        while rows := await self._pool.rows("responses_in_blobs", after, _MOVED_ROWS):
            for row, key, reference in rows:
                contents = await read_contents(source, reference)
                columns: Columns = (
                    None, contents.input, contents.output, contents.tokens,
                )  # fmt: skip
                if target is not None:
                    blob = await put_contents(target, contents)
                    columns = (blob.key, encode_reference(blob), b"", None)
                if await self._pool.rows("move_response_blob", row, key, *columns):
                    await source.delete(key)
                    total += 1
            after = rows[-1][1]
        return total

    async def _saved_row(self, saving: Saving) -> ResponseRow:
        stored = saving.stored
        items = (*stored.input, *stored.response.output) if saving.listed else ()
        row = response_row(saving.tenant, stored, saving.expires_at)
        columns, blob = await self._large.put(row)
        size = sum(len(column) for column in columns if isinstance(column, bytes))
        ids = [index_key(item.id) for item in items]
        summary = summary_row(stored, is_searchable=not self.is_encrypted)
        return ResponseRow((*columns, *summary), ids, saving.usage, size, blob)

    async def close(self) -> None:
        await self._saves.close()
        await self.runs.close()
        await self._pool.close()

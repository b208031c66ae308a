"""The PostgreSQL store, which many processes can use together. This module stores responses and
conversations.

The rows contain values in the same format as in the SQLite store (see
``common/row_mapping.py``).
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from antiphon.errors import StoreError
from antiphon.store.base import Retention, Store
from antiphon.store.common.row_cipher import RowCipher
from antiphon.store.common.row_mapping import (
    Columns,
    conversation_of,
    encode,
    item_kind,
    item_of,
    items_of,
    response_row,
    stored_of,
    summary_filters,
    summary_of,
    summary_row,
)
from antiphon.store.common.saving import Saving
from antiphon.store.common.tenant_steps import TENANT_STEPS
from antiphon.store.files import BlobStorage
from antiphon.store.keys import KeyStore
from antiphon.store.postgres.vectors.index import PostgresVectorIndex
from antiphon.store.postgres.vectors.pgvector import Pgvector
from antiphon.store.records import (
    ConversationLock,
    ItemQuery,
    Reservation,
    ResponseQuery,
    StoredResponse,
    TenantUsage,
)
from antiphon.store.response_lists import search_summaries
from antiphon.store.skills import SkillStore
from antiphon.store.sql.audit import SqlAudit
from antiphon.store.sql.executor import index_key
from antiphon.store.sql.files import SqlFiles
from antiphon.store.sql.journal import SqlJournal
from antiphon.store.sql.usage import SqlUsage
from antiphon.store.sql.values import SqlValues
from antiphon.store.usage import UsageRecord
from antiphon.store.values import SERVER
from antiphon.wire.items import Item
from antiphon.wire.resources.conversations import ConversationResource
from antiphon.wire.response_list import ResponseSummary

from .bus.base import MessageSigner
from .bus.connection import BusConnection
from .bus.redis_session import redis_connector
from .containers import PostgresContainers
from .large_responses import LargeResponses, encode_reference, put_contents, read_contents
from .pool import ConnectionPool, Transaction
from .rates import PostgresRates
from .rewriting import rewrite_rows
from .runs import PostgresRuns, SaveStep, has_lock
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


class PostgresStore(Store):
    """Implements ``Store`` with a PostgreSQL database. Made by ``open``."""

    def __init__(
        self,
        pool: ConnectionPool,
        pgvector: Pgvector | None = None,
        bus: BusConnection | None = None,
    ) -> None:
        self._pool = pool
        self.is_encrypted = pool.is_encrypted
        self._saves = SaveQueue(pool)
        self._large = LargeResponses()
        self.runs = PostgresRuns(pool, self._prepare_save, bus)
        self.files = SqlFiles(pool)
        self.vectors = PostgresVectorIndex(pool, pgvector)
        self.values = SqlValues(pool)
        self.journal = SqlJournal(pool)
        self.keys = KeyStore(self.values)
        self.skills = SkillStore(self.values)
        self.audit = SqlAudit(pool)
        self.rates = PostgresRates(pool)
        self.containers = PostgresContainers(pool)
        self.usage_log = SqlUsage(pool)

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
                await store.runs.open_sockets(peers)
        except BaseException:
            await pool.close()
            raise
        return store

    async def save(
        self,
        tenant: str,
        stored: StoredResponse,
        *,
        lock: ConversationLock | None = None,
        usage: UsageRecord | None = None,
    ) -> bool:
        name = stored.response.id
        saving = Saving(tenant=tenant, stored=stored, usage=usage)
        if lock is None:
            await self._saves.save(await self._saved_row(saving))
            return True
        save = await self._prepare_save(replace(saving, conversation=lock.conversation))
        async with self._pool.transaction() as transaction:
            is_locked = await has_lock(transaction, tenant, name, lock)
            if await transaction.value("is_stored", tenant, name):
                return True
            if is_locked:
                await save(transaction)
            return is_locked

    async def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        found = await self._stored("load", tenant, index_key(response_id))
        return found[0] if found else None

    async def has_response(self, tenant: str, response_id: str) -> bool:
        return bool(await self._pool.rows("row_of", tenant, index_key(response_id)))

    async def load_chain(self, tenant: str, response_id: str) -> tuple[StoredResponse, ...] | None:
        return tuple(await self._stored("chain", tenant, index_key(response_id))) or None

    async def _stored(self, name: str, *arguments: object) -> list[StoredResponse]:
        rows = await self._pool.rows(name, *arguments)
        restored = [await self._large.restore_stored(row) for row in rows]
        return await self._pool.decode(stored_of, restored)

    async def list_responses(
        self, tenant: str, query: ResponseQuery
    ) -> tuple[ResponseSummary, ...] | None:
        if self.is_encrypted and query.text:
            return await search_summaries(self.list_responses, tenant, query)
        after = None
        if query.after is not None:
            rows = await self._pool.rows("row_of", tenant, index_key(query.after))
            if not rows:
                return None
            after = rows[0][0]
        name = "summaries_newest" if query.newest_first else "summaries_oldest"
        filters = summary_filters(query)
        looked = query.limit if filters == _ANY else max(query.limit, _LOOKED_ROWS)
        found: list[bytes] = []
        while (missing := query.limit - len(found)) > 0:
            ((after, bodies),) = await self._pool.rows(
                name, tenant, *filters, after, missing, looked
            )
            found += bodies
            if after is None:
                break
        try:
            return tuple(summary_of((body,)) for body in found)
        except msgspec.MsgspecError as error:
            raise StoreError("The store could not be read.") from error

    async def load_item(self, tenant: str, item_id: str) -> Item | None:
        found = await self._pool.rows("item", tenant, index_key(item_id))
        rows = await self._pool.decode(
            items_of, [await self._large.restore_items(row) for row in found]
        )
        if not rows:
            items = await self._pool.decoded_rows(
                item_of, "conversation_item", tenant, index_key(item_id)
            )
            return items[0] if items else None
        return next((item for item in rows[0] if item.id == item_id), None)

    async def delete(self, tenant: str, response_id: str) -> bool:
        return await self._pool.run_to_completion(self._delete(tenant, response_id))

    async def _delete(self, tenant: str, response_id: str) -> bool:
        async with self._pool.transaction() as transaction:
            await transaction.rows("lock_deletions")
            row = await transaction.value("row_of", tenant, index_key(response_id))
            if row is None:
                return False
            await delete_responses(transaction, [row])
            await self.runs.notify_ended(transaction, ended=[(tenant, response_id)])
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

    async def usage(self, tenant: str) -> TenantUsage:
        return TenantUsage(*(await self._pool.rows("usage", tenant))[0])

    async def reserve_response(self, reservation: Reservation) -> bool:
        tenant, max_bytes = reservation.tenant, reservation.max_bytes
        key = index_key(reservation.response_id)
        row = (tenant, key, reservation.owner, reservation.lease_s)
        async with self._pool.tenant_transaction("responses", tenant) as transaction:
            if reservation.max_responses is not None:
                ((stored, reserved),) = await transaction.rows("response_totals", *row)
                if stored + reserved >= reservation.max_responses:
                    return False
            if max_bytes is not None:
                if await transaction.value("response_bytes", tenant) >= max_bytes:
                    return False
            await transaction.rows("reserve_response", *row)
            return True

    async def release_reservation(self, tenant: str, response_id: str, owner: str) -> None:
        await self._pool.rows("release_reservation", tenant, index_key(response_id), owner)

    async def clock(self, now: float) -> float:
        ((seconds,),) = await self._pool.rows("clock")
        return float(seconds)

    async def sweep(self, retention: Retention, now: int) -> int:
        return await PostgresSweep(self._pool, retention, now).run()

    async def save_conversation(
        self, tenant: str, conversation: ConversationResource, items: tuple[Item, ...] = ()
    ) -> None:
        async with self._pool.transaction() as transaction:
            row = (tenant, index_key(conversation.id), encode(conversation))
            await transaction.rows("put_conversation", *row)
            await _append(transaction, tenant, conversation.id, items)

    async def list_conversations(
        self, tenant: str, *, after: str | None = None, limit: int
    ) -> tuple[ConversationResource, ...]:
        key = None if after is None else index_key(after)
        return tuple(
            await self._pool.decoded_rows(conversation_of, "conversations", tenant, key, limit)
        )

    async def load_conversation(
        self, tenant: str, conversation_id: str
    ) -> ConversationResource | None:
        found = await self._pool.decoded_rows(
            conversation_of, "conversation", tenant, index_key(conversation_id)
        )
        return found[0] if found else None

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        return bool(await self._pool.rows("drop_conversation", tenant, index_key(conversation_id)))

    async def add_conversation_items(
        self, tenant: str, conversation_id: str, items: tuple[Item, ...]
    ) -> bool:
        async with self._pool.transaction() as transaction:
            return await _append(transaction, tenant, conversation_id, items)

    async def load_conversation_items(self, tenant: str, conversation_id: str) -> tuple[Item, ...]:
        return tuple(
            await self._pool.decoded_rows(
                item_of, "conversation_items", tenant, index_key(conversation_id)
            )
        )

    async def list_conversation_items(
        self, tenant: str, conversation_id: str, query: ItemQuery
    ) -> tuple[Item, ...] | None:
        name = "newest_items" if query.newest_first else "oldest_items"
        key = (tenant, index_key(conversation_id))
        after, until = (None if id is None else index_key(id) for id in (query.after, query.until))
        kinds = () if query.kinds is None else (sorted(query.kinds),)
        if kinds:
            name = f"{name}_of_kinds"
        items = await self._pool.decoded_rows(
            item_of, name, *key, after, until, query.limit, *kinds
        )
        if not items and query.cursors:
            found = await self.find_conversation_items(tenant, conversation_id, query.cursors)
            return () if len(found) == len(query.cursors) else None
        return tuple(items)

    async def find_conversation_items(
        self, tenant: str, conversation_id: str, item_ids: Collection[str]
    ) -> tuple[Item, ...]:
        key = (tenant, index_key(conversation_id), [index_key(id) for id in item_ids])
        return tuple(await self._pool.decoded_rows(item_of, "items_by_id", *key))

    async def remove_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> bool:
        async with self._pool.transaction() as transaction:
            row = await transaction.value("conversation_row", tenant, index_key(conversation_id))
            return bool(row and await transaction.rows("remove_item", row, index_key(item_id)))

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

    async def _prepare_save(self, saving: Saving) -> SaveStep:
        """Return a function that saves a response within a transaction."""
        row, stored = await self._saved_row(saving), saving.stored

        async def save(transaction: Transaction) -> None:
            await transaction.rows("save", *row.arguments)
            if saving.conversation is not None:
                added = (*stored.input, *stored.response.output)
                await _append(transaction, saving.tenant, saving.conversation, added)

        return save

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


async def _append(
    transaction: Transaction, tenant: str, conversation: str, items: tuple[Item, ...]
) -> bool:
    row = await transaction.value("conversation_row", tenant, index_key(conversation))
    if row is not None and items:
        columns = zip(
            *((index_key(item.id), item_kind(item), encode(item)) for item in items), strict=True
        )
        await transaction.rows("add_items", row, tenant, *map(list, columns))
    return row is not None

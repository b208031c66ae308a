"""Search for nearest vectors with a Qdrant server. The vectors are stored in the database, and
Qdrant holds a copy of them.

When a file gets vectors or is deleted, a database trigger records this change in the same
transaction. Recorded changes are then applied to Qdrant:

- by the process that made the change, immediately after the transaction,
- by any process before it searches the vector store,
- by every process regularly, for changes that other processes have not applied.

So if Qdrant does not answer or a process dies, changes are delayed but not lost. A search never
finds deleted files: it excludes files whose deletion is not applied to Qdrant yet.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress

import structlog

from antiphon.errors import StoreError
from antiphon.store.postgres.pool import ConnectionPool, Transaction
from antiphon.store.vectors import ChunkHit

from .nearest_vectors import VectorRow
from .qdrant_client import QdrantClient, SearchScope

__all__ = ["Qdrant"]

_log = structlog.get_logger(__name__)

#: Number of changes that one transaction applies, and number of points in one request.
_CHANGES, _POINTS = 8, 256
#: Seconds between two searches for changes that other processes have not applied.
_INTERVAL_S = 15.0
_FLOAT_BYTES = 4
#: Number of the advisory lock for the creation of tables. The number is arbitrary.
_LOCK = 1634628617
#: The name of the secret that distinguishes this database from others on a Qdrant server.
_SECRET = "qdrant"

_SETUP = """
CREATE TABLE IF NOT EXISTS qdrant_collections (
    model TEXT NOT NULL, dimensions BIGINT NOT NULL, PRIMARY KEY (model, dimensions)
);
CREATE TABLE qdrant_changes (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store BIGINT NOT NULL,
    file BIGINT NOT NULL,
    is_deletion BOOLEAN NOT NULL
);
CREATE INDEX qdrant_changes_by_store ON qdrant_changes (store, is_deletion);
CREATE OR REPLACE FUNCTION note_qdrant_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO antiphon.qdrant_changes (store, file, is_deletion)
    VALUES (old.store, old.seq, tg_op = 'DELETE');
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER qdrant_change_noted AFTER UPDATE OF status OR DELETE ON vector_files
FOR EACH ROW EXECUTE FUNCTION note_qdrant_change();
INSERT INTO qdrant_changes (store, file, is_deletion)
SELECT DISTINCT store, file, false FROM chunk_vectors;
"""
_IS_SET_UP = "SELECT to_regclass('qdrant_changes') IS NOT NULL"
_NOTE_ALL = """
INSERT INTO qdrant_changes (store, file, is_deletion)
SELECT DISTINCT store, file, false FROM chunk_vectors
WHERE model = $1 AND octet_length(vector) = $2
"""
_CLAIM = """
SELECT id, file, is_deletion FROM qdrant_changes WHERE $1::bigint IS NULL OR store = $1
ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED
"""
_VECTORS = """
SELECT v.chunk, v.file, v.vector, v.model, s.tenant, s.id
FROM chunk_vectors AS v JOIN vector_stores AS s ON s.seq = v.store
WHERE v.file = $1 AND v.chunk > $2 ORDER BY v.chunk LIMIT $3
"""
_REMOVED = "SELECT file FROM qdrant_changes WHERE store = $1 AND is_deletion"
_EXISTING = "SELECT seq FROM vector_files WHERE seq = ANY($1::bigint[])"
_APPLIED = "DELETE FROM qdrant_changes WHERE id = ANY($1::bigint[])"
_CREATED = "INSERT INTO qdrant_collections VALUES ($1, $2) ON CONFLICT DO NOTHING"
_FILE_IDS = "SELECT seq, id FROM vector_files WHERE store = $1 AND seq = ANY($2::bigint[])"


class Qdrant:
    """Implements ``NearestVectors`` with a Qdrant server, which holds a copy of the database's
    vectors. Made by ``open``."""

    def __init__(self, pool: ConnectionPool, client: QdrantClient) -> None:
        self._pool = pool
        self._client = client
        self._applying = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, pool: ConnectionPool, url: str, *, key: str | None) -> Qdrant:
        """Connect, create the tables that are missing, and start the task that copies changed
        vectors from the database to Qdrant. ``url``: as in the setting ``vectors``. Raises
        ``SetupError``."""
        await pool.rows("put_secret", _SECRET, secrets.token_bytes(4))
        ((database,),) = await pool.rows("secret", _SECRET)
        client = QdrantClient.connect(url, key=key, database=bytes(database).hex())
        opened = cls(pool, client)
        try:
            await client.check_at_start()
            await opened._set_up()
        except BaseException:
            await client.close()
            raise
        opened._task = asyncio.create_task(opened._run(), name="changes of vectors")
        return opened

    async def add(
        self, transaction: Transaction, store: int, model: str, rows: Sequence[VectorRow]
    ) -> None:
        """Do nothing: a database trigger has recorded that the file has new vectors. They are
        copied to Qdrant later."""

    async def settle(self, tenant: str, store_id: str, model: str) -> None:
        """Apply all recorded changes to Qdrant, also those of other vector stores than
        ``store_id``. If Qdrant does not answer, the changes are applied later."""
        await self._apply_all()

    async def search(
        self,
        tenant: str,
        store_id: str,
        model: str,
        vector: bytes,
        files: Collection[str] | None,
        limit: int,
    ) -> tuple[ChunkHit, ...]:
        """Return the chunks with the nearest vectors, nearest first. The parameters are those of
        ``VectorIndex.search_vectors``."""
        found = await self._pool.rows("vector_store_row", tenant, store_id)
        if not found:
            return ()
        store = found[0][0]
        await self._apply_some(store)
        async with self._transaction() as transaction:
            collections = await _collections(transaction)
            numbers: list[int] | None = None
            if files is not None:
                rows = await transaction.rows("vector_file_rows", store, sorted(files))
                numbers = [row[0] for row in rows]
            removed = [row[0] for row in await transaction.fetch(_REMOVED, store)]
        if numbers == [] or (model, len(vector) // _FLOAT_BYTES) not in collections:
            return ()
        scope = SearchScope(tenant=tenant, store_id=store_id, files=numbers, removed_files=removed)
        hits = await self._client.search(model, vector, scope, limit)
        async with self._transaction() as transaction:
            rows = await transaction.fetch(_FILE_IDS, store, [hit.file for hit in hits])
        ids = {row[0]: row[1] for row in rows}
        return tuple(
            ChunkHit(chunk=hit.chunk, file_id=ids[hit.file], score=hit.score)
            for hit in hits
            if hit.file in ids
        )

    async def check(self) -> None:
        """Raise ``StoreError`` if Qdrant does not answer."""
        await self._client.check()

    async def close(self) -> None:
        """Stop the task that applies the recorded changes of vectors, and close the connections."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._client.close()

    async def _set_up(self) -> None:
        """Create the tables if they are missing. If Qdrant has lost a collection, record a change
        for each file whose vectors were in this collection. When the changes are applied, the
        vectors of these files are copied to Qdrant again."""
        async with self._transaction() as transaction:
            await transaction.fetch("SELECT pg_advisory_xact_lock($1)", _LOCK)
            ((is_set_up,),) = await transaction.fetch(_IS_SET_UP)
            if not is_set_up:
                await transaction.execute(_SETUP)
            for model, dimensions in await _collections(transaction):
                if await self._client.create(model, dimensions):
                    _log.warning("Qdrant lost a collection: its vectors are copied", model=model)
                    await transaction.fetch(_NOTE_ALL, model, dimensions * _FLOAT_BYTES)

    async def _run(self) -> None:
        """Every few seconds, apply to Qdrant all recorded changes of vectors that no process has
        applied yet."""
        while True:
            await self._apply_all()
            await asyncio.sleep(_INTERVAL_S)

    async def _apply_all(self) -> None:
        try:
            while await self._apply_some(None) == _CHANGES:
                pass
        except StoreError as error:
            _log.warning("vectors are not in Qdrant yet", error=error.message)

    async def _apply_some(self, store: int | None) -> int:
        """Apply the first few recorded changes that no other process is applying. Return the number
        of applied changes. ``store``: the row number of the vector store; None means all vector
        stores.

        While this process sends the vectors of a file, the file may be deleted, and another process
        may apply the deletion before all vectors have arrived. So this process checks afterwards
        whether the file still exists. If the file is gone, its vectors are deleted from Qdrant
        again.
        """
        async with self._applying, self._transaction() as transaction:
            changes = await transaction.fetch(_CLAIM, store, _CHANGES)
            if not changes:
                return 0
            removed = {file for _, file, is_deletion in changes if is_deletion}
            added = {file for _, file, is_deletion in changes if not is_deletion} - removed
            for file in sorted(added):
                await self._copy(transaction, file)
            remaining = await transaction.fetch(_EXISTING, sorted(added))
            removed |= added - {row[0] for row in remaining}
            if removed:
                for model, dimensions in await _collections(transaction):
                    await self._client.remove(model, dimensions, removed)
            await transaction.fetch(_APPLIED, [change[0] for change in changes])
        return len(changes)

    async def _copy(self, transaction: Transaction, file: int) -> None:
        """Send the vectors of a file to Qdrant."""
        last = 0
        while rows := await transaction.fetch(_VECTORS, file, last, _POINTS):
            is_first = not last
            last, _, vector, model, tenant, store_id = rows[-1]
            if is_first:  # all vectors of a file come from one model
                await self._create_collection(transaction, model, len(vector) // _FLOAT_BYTES)
            points = [VectorRow(chunk, file, packed) for chunk, file, packed, *_ in rows]
            await self._client.add(tenant, store_id, model, points)

    async def _create_collection(
        self, transaction: Transaction, model: str, dimensions: int
    ) -> None:
        """Create the Qdrant collection for the vectors of an embedding model, if the collection
        does not exist. ``dimensions``: the number of dimensions of these vectors. Only one process
        at a time creates a collection."""
        if (model, dimensions) not in await _collections(transaction):
            await transaction.fetch("SELECT pg_advisory_xact_lock($1)", _LOCK)
            await self._client.create(model, dimensions)
            await transaction.fetch(_CREATED, model, dimensions)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Transaction]:
        """Context manager for a transaction with the search path that the SQL statements of this
        module need."""
        async with self._pool.transaction() as transaction:
            await transaction.use_schema()
            yield transaction


async def _collections(transaction: Transaction) -> set[tuple[str, int]]:
    """Return the embedding model and the vector dimensions of each Qdrant collection. The
    collections are recorded in the PostgreSQL database."""
    rows = await transaction.fetch("SELECT model, dimensions FROM qdrant_collections")
    return {(model, dimensions) for model, dimensions in rows}

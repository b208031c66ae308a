"""The vector index in PostgreSQL. Words are searched by PostgreSQL's text search. Nearest vectors
are found by the extension pgvector, or callers load all vectors and compare them.

pgvector is used in one of two ways:

- Exact search: the query is compared with every vector. Used for small vector stores, and for
  searches that a filter restricts to a small part of a large one.
- Search in an HNSW index. Used for large vector stores.

Small vector stores share a table without an index. Each large vector store has a table and an index
of its own. They do not share an index, because it would find too few results: an HNSW index returns
the nearest rows of its whole table, and a filter drops rows of other vector stores only afterwards.
For a vector store with 2 % of the rows of its table, such a search finds only a fifth of the right
results.

The tables of this module contain vectors of 16-bit floats. The vectors are copied from the table
``chunk_vectors``, which contains them as 32-bit floats.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

import structlog
from msgspec import Struct

from antiphon.errors import SetupError
from antiphon.store.postgres.pool import ConnectionPool, Transaction
from antiphon.store.sql.executor import index_key
from antiphon.store.sql.row_mapping import Columns, Row
from antiphon.store.sql.vectors import SqlVectorIndex
from antiphon.store.vectors import ChunkHit, IndexedChunk, IndexedFile, VectorQuery

_log = structlog.get_logger(__name__)

#: A vector store with at most this many rows is searched row by row, in about 10 ms. A larger one
#: gets an index.
SMALL_ROWS = 10_000
#: If a search covers at most this many rows of a large vector store, they are compared one by one,
#: in about 40 ms.
EXACT_ROWS = 50_000
#: A search uses the index only if its filter leaves at least this share of the files. For smaller
#: shares, the index finds far too few of the right rows, even with many candidates.
INDEX_SHARE = 0.5
#: Number of chunks that are copied from ``chunk_vectors`` at a time.
_COPIED_ROWS = 2_000
#: Smallest and largest number of candidates of a search in the index (hnsw.ef_search), and the
#: number of candidates per result that a filter should leave.
_CANDIDATES, _MAX_CANDIDATES, _CANDIDATES_PER_RESULT = 200, 1_000, 2
#: Largest number of rows that a search with a filter reads from the index.
_MAX_SCANNED = 200_000
#: Timeout for the creation of an index, in seconds. For a million vectors it takes minutes.
_INDEX_S = 6 * 3600
#: Memory for the creation of an index: bytes of a row besides its vector, and maximum in megabytes.
_INDEX_ROW_BYTES, _INDEX_MAX_MB = 600, 4096
_FLOAT_BYTES = 4
#: Number of the advisory lock for the creation of tables. The number is arbitrary.
_LOCK = 1634628615
#: Largest number of dimensions for which the type halfvec has an index.
_MAX_DIMENSIONS = 4_000

_SETUP = """
CREATE TABLE IF NOT EXISTS small_vectors (
    chunk BIGINT PRIMARY KEY,
    store BIGINT NOT NULL,
    model TEXT NOT NULL,
    file BIGINT NOT NULL,
    vector {schema}halfvec NOT NULL
);
CREATE INDEX IF NOT EXISTS small_vectors_by_store ON small_vectors (store, model, file);
CREATE TABLE IF NOT EXISTS large_vector_stores (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    store BIGINT NOT NULL,
    model TEXT NOT NULL,
    UNIQUE (store, model)
);
CREATE OR REPLACE FUNCTION drop_vectors() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE found BIGINT;
BEGIN
    DELETE FROM antiphon.small_vectors WHERE store = old.store AND file = old.seq;
    FOR found IN SELECT id FROM antiphon.large_vector_stores WHERE store = old.store LOOP
        EXECUTE format('DELETE FROM antiphon.large_vectors_%s WHERE file = $1', found)
        USING old.seq;
    END LOOP;
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER vectors_dropped AFTER DELETE ON vector_files
FOR EACH ROW EXECUTE FUNCTION drop_vectors();
"""
_CREATE_TABLE = """
CREATE TABLE large_vectors_{id} (
    chunk BIGINT PRIMARY KEY, file BIGINT NOT NULL, vector {schema}halfvec({dimensions}) NOT NULL
)
"""
_CREATE_INDEXES = """
CREATE INDEX large_vectors_{id}_by_file ON large_vectors_{id} (file, chunk);
CREATE INDEX large_vectors_{id}_nearest ON large_vectors_{id}
USING hnsw (vector {schema}halfvec_cosine_ops) WITH (m = 16, ef_construction = 64);
"""
#: Settings of a search. All its statements use one snapshot, because vectors may be moved to their
#: own table meanwhile. Each plan is made for its arguments, because a generic plan would convert
#: the vector of the query again for each row.
_SEARCHES = """
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET LOCAL plan_cache_mode = force_custom_plan
"""
_SEARCH_SMALL = """
SELECT v.chunk, f.id, 1 - (v.vector OPERATOR({schema}<=>) $3::real[]::{schema}halfvec) AS score
FROM small_vectors AS v JOIN vector_files AS f ON f.seq = v.file
WHERE v.store = $1 AND v.model = $2 AND ($4::text[] IS NULL OR f.id = ANY($4))
ORDER BY score DESC LIMIT $5
"""
_COUNT_SMALL = """
SELECT count(*), max({schema}vector_dims(vector)) FROM small_vectors
WHERE store = $1 AND model = $2
"""
_TOO_LARGE = "SELECT store, model FROM small_vectors GROUP BY 1, 2 HAVING count(*) > $1"
_MOVE = """
WITH moved AS (
    DELETE FROM small_vectors WHERE store = $1 AND model = $2 RETURNING chunk, file, vector
)
INSERT INTO large_vectors_{id} SELECT chunk, file, vector FROM moved
"""
_ORPHANS = """
SELECT l.id FROM large_vector_stores AS l
WHERE NOT EXISTS (SELECT FROM vector_stores AS s WHERE s.seq = l.store)
"""
_DROP_ORPHANS = f"DELETE FROM large_vector_stores WHERE id IN ({_ORPHANS})"
_STORED = "SELECT store, model, count(*), max(chunk) FROM chunk_vectors GROUP BY store, model"
_COPIED_SMALL = "SELECT store, model, count(*), max(chunk) FROM small_vectors GROUP BY store, model"
_UNCOPIED = """
SELECT chunk, file, vector FROM chunk_vectors
WHERE store = $1 AND model = $2 AND chunk > $3 ORDER BY chunk LIMIT $4
"""
_COUNT = "SELECT count(*) FROM (SELECT FROM large_vectors_{id} {condition} LIMIT $1) AS part"
#: With ``exact`` set to "+ 0", the planner cannot use the HNSW index, so all rows are compared.
_SEARCH_LARGE = """
WITH nearest AS MATERIALIZED (
    SELECT chunk, file,
        (vector OPERATOR({schema}<=>) $2::real[]::{schema}halfvec) {exact} AS distance
    FROM large_vectors_{id} {condition} ORDER BY distance LIMIT $1
)
SELECT n.chunk, f.id, 1 - n.distance FROM nearest AS n JOIN vector_files AS f ON f.seq = n.file
ORDER BY n.distance
"""


class VectorRow(Struct, frozen=True):
    """A vector, as packed 32-bit floats, with the number of its chunk and the row number of its
    file."""

    chunk: int
    file: int
    vector: bytes


class Pgvector:
    """The search for nearest vectors in a PostgreSQL store. Made by ``open``. ``schema``: the name
    of the schema of the extension pgvector, quoted and followed by a period."""

    def __init__(self, pool: ConnectionPool, schema: str) -> None:
        self._pool = pool
        self._schema = schema

    @classmethod
    async def open(cls, pool: ConnectionPool) -> Pgvector:
        """Create the tables that are missing. Copy into these tables the vectors that were stored
        while pgvector was not in use. Raises ``SetupError``."""
        async with pool.transaction() as transaction:
            await transaction.use_schema()
            await transaction.fetch("SELECT pg_advisory_xact_lock($1)", _LOCK)
            schema = await _extension_schema(transaction)
            await transaction.execute(_SETUP.format(schema=schema))
        opened = cls(pool, schema)
        await opened._copy_missing()
        await opened._separate_missing()
        return opened

    async def add(
        self, transaction: Transaction, store: int, model: str, rows: Sequence[VectorRow]
    ) -> None:
        """Add vectors to one vector store. ``store``: the row number of the vector store; the
        transaction has locked this row. ``model``: the model that computed the vectors."""
        if not rows:
            return
        await transaction.use_schema()
        columns = [(row.chunk, row.file, _floats(row.vector)) for row in rows]
        if (id := await self._large_id(transaction, store, model)) is not None:
            await self._put(transaction, f"large_vectors_{id} (chunk, file, vector)", columns)
            return
        table = "small_vectors (chunk, file, vector, store, model)"
        await self._put(transaction, table, [(*row, store, model) for row in columns])

    async def settle(self, tenant: str, store_id: str, model: str) -> None:
        """Move the vectors of a vector store to a table of its own if the vector store has become
        large. Called after the transaction of ``add`` has committed, because the creation of an
        index would keep the transaction open for too long."""
        async with self._pool.transaction() as transaction:
            await transaction.use_schema()
            found = await transaction.rows("lock_vector_store_alone", tenant, store_id)
            if found:
                await self._separate(transaction, found[0][0], model)

    async def search(self, tenant: str, store_id: str, query: VectorQuery) -> tuple[ChunkHit, ...]:
        """Return the chunks with the nearest vectors, nearest first."""
        files, limit = query.files, query.limit
        async with self._pool.transaction() as transaction:
            await transaction.execute(_SEARCHES)
            await transaction.use_schema()
            found = await transaction.rows("vector_store_row", tenant, store_id)
            if not found:
                return ()
            store, floats = found[0][0], _floats(query.vector)
            id = await self._large_id(transaction, store, query.model)
            if id is None:
                listed = None if files is None else sorted(files)
                rows = await transaction.fetch(
                    self._sql(_SEARCH_SMALL), store, query.model, floats, listed, limit
                )
            else:
                rows = await self._search_large(transaction, store, id, floats, files, limit)
        return tuple(ChunkHit(chunk=chunk, file_id=id, score=score) for chunk, id, score in rows)

    async def _search_large(
        self,
        transaction: Transaction,
        store: int,
        id: int,
        floats: list[float],
        files: Collection[str] | None,
        limit: int,
    ) -> list[Row]:
        """Search a large vector store, or only ``files`` in it. The index is searched if the search
        covers more than ``EXACT_ROWS`` vectors and at least the share ``INDEX_SHARE`` of the vector
        store's files. Otherwise, or if the index finds too few results, the query is compared with
        every vector."""
        if files is None:
            part, share = None, 1.0
        else:
            found = await transaction.rows("vector_file_rows", store, sorted(files))
            part = [row[0] for row in found]
            share = len(part) / max(1, await transaction.value("vector_file_count", store))
        if share >= INDEX_SHARE and await self._count_rows(transaction, id, part) > EXACT_ROWS:
            rows = await self._search_index(transaction, id, floats, limit, part, share)
            if len(rows) == limit:
                return rows
        return await self._nearest(transaction, id, floats, limit, part, exact="+ 0")

    async def _count_rows(self, transaction: Transaction, id: int, files: list[int] | None) -> int:
        """Return the number of chunks of these files, or of all files. If it is larger than
        ``EXACT_ROWS``, return ``EXACT_ROWS + 1``."""
        condition = "" if files is None else "WHERE file = ANY($2::bigint[])"
        arguments = () if files is None else (files,)
        sql = _COUNT.format(id=id, condition=condition)
        ((count,),) = await transaction.fetch(sql, EXACT_ROWS + 1, *arguments)
        return int(count)

    async def _search_index(
        self,
        transaction: Transaction,
        id: int,
        floats: list[float],
        limit: int,
        files: list[int] | None,
        share: float,
    ) -> list[Row]:
        wanted = round(_CANDIDATES_PER_RESULT * limit / share)
        candidates = min(max(wanted, _CANDIDATES), _MAX_CANDIDATES)
        await transaction.execute(
            f"SET LOCAL hnsw.ef_search = {candidates};"
            " SET LOCAL hnsw.iterative_scan = relaxed_order;"
            f" SET LOCAL hnsw.max_scan_tuples = {_MAX_SCANNED}"
        )
        if files is not None:
            # To sort the rows of a large part by distance would take longer than to use the index.
            await transaction.execute(
                "SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = off;"
                " SET LOCAL enable_sort = off"
            )
        return await self._nearest(transaction, id, floats, limit, files)

    async def _nearest(
        self,
        transaction: Transaction,
        id: int,
        floats: list[float],
        limit: int,
        files: list[int] | None,
        exact: str = "",
    ) -> list[Row]:
        condition = "" if files is None else "WHERE file = ANY($3::bigint[])"
        sql = self._sql(_SEARCH_LARGE, id=id, condition=condition, exact=exact)
        return await transaction.fetch(sql, limit, floats, *(() if files is None else (files,)))

    async def _separate(self, transaction: Transaction, store: int, model: str) -> None:
        """Move the vectors of a vector store to a table of its own if the vector store has become
        large. The transaction has locked the vector store."""
        if await self._large_id(transaction, store, model) is not None:
            return
        ((rows, dimensions),) = await transaction.fetch(self._sql(_COUNT_SMALL), store, model)
        if rows > SMALL_ROWS and dimensions <= _MAX_DIMENSIONS:
            id = await self._create_table(transaction, store, model, dimensions)
            await transaction.fetch(_MOVE.format(id=id), store, model)
            await self._create_index(transaction, id, rows, dimensions)

    async def _create_table(
        self, transaction: Transaction, store: int, model: str, dimensions: int
    ) -> int:
        created = await transaction.fetch(
            "INSERT INTO large_vector_stores (store, model) VALUES ($1, $2) RETURNING id",
            store,
            model,
        )
        id = int(created[0][0])
        await transaction.execute(self._sql(_CREATE_TABLE, id=id, dimensions=dimensions))
        return id

    async def _create_index(
        self, transaction: Transaction, id: int, rows: int, dimensions: int
    ) -> None:
        # The creation takes many times longer if the index does not fit into this memory.
        megabytes = rows * (2 * dimensions + _INDEX_ROW_BYTES) >> 20
        memory = min(max(64, megabytes), _INDEX_MAX_MB)
        await transaction.execute(f"SET LOCAL maintenance_work_mem = '{memory}MB'")
        await transaction.execute(self._sql(_CREATE_INDEXES, id=id), timeout_s=_INDEX_S)

    async def _copy_missing(self) -> None:
        """Copy vectors from the table ``chunk_vectors`` to the tables of pgvector, for each vector
        store that changed while pgvector was not in use. Also drop the tables of vector stores that
        were deleted meanwhile."""
        async with self._pool.transaction() as transaction:
            await transaction.use_schema()
            for (id,) in await transaction.fetch(_ORPHANS):
                await transaction.execute(f"DROP TABLE IF EXISTS large_vectors_{id}")
            await transaction.fetch(_DROP_ORPHANS)
            stored = await transaction.fetch(_STORED)
            copied = {tuple(row) for row in await transaction.fetch(_COPIED_SMALL)}
            for store, model, id in await transaction.fetch(
                "SELECT store, model, id FROM large_vector_stores"
            ):
                ((count, last),) = await transaction.fetch(
                    f"SELECT count(*), max(chunk) FROM large_vectors_{id}"
                )
                copied.add((store, model, count, last))
        for row in stored:
            if tuple(row) not in copied:
                await self._copy(row[0], row[1])

    async def _separate_missing(self) -> None:
        """Create the missing tables of large vector stores. A table is missing if a process died
        before it could create the table."""
        async with self._pool.transaction() as transaction:
            await transaction.use_schema()
            found = await transaction.fetch(_TOO_LARGE, SMALL_ROWS)
        for store, model in found:
            async with self._pool.transaction() as transaction:
                await transaction.use_schema()
                await _lock(transaction, store)
                await self._separate(transaction, store, model)

    async def _copy(self, store: int, model: str) -> None:
        """Delete pgvector's copies of the vectors of a vector store, and copy the vectors again
        from the table ``chunk_vectors``. ``store``: the row number of the vector store."""
        _log.info("the vectors of a vector store are copied to pgvector", store=store)
        async with self._pool.transaction() as transaction:
            await transaction.use_schema()
            await _lock(transaction, store)
            await transaction.fetch(
                "DELETE FROM small_vectors WHERE store = $1 AND model = $2", store, model
            )
            if (id := await self._large_id(transaction, store, model)) is not None:
                await transaction.execute(f"DROP TABLE large_vectors_{id}")
                await transaction.fetch("DELETE FROM large_vector_stores WHERE id = $1", id)
                id = None
            ((rows, width),) = await transaction.fetch(
                "SELECT count(*), max(octet_length(vector)) FROM chunk_vectors"
                " WHERE store = $1 AND model = $2",
                store,
                model,
            )
            if rows > SMALL_ROWS and width // _FLOAT_BYTES <= _MAX_DIMENSIONS:
                id = await self._create_table(transaction, store, model, width // _FLOAT_BYTES)
            last = 0
            while batch := await transaction.fetch(_UNCOPIED, store, model, last, _COPIED_ROWS):
                await self.add(transaction, store, model, [VectorRow(*row) for row in batch])
                last = batch[-1][0]
            if id is not None:
                await self._create_index(transaction, id, rows, width // _FLOAT_BYTES)

    async def _large_id(self, transaction: Transaction, store: int, model: str) -> int | None:
        found = await transaction.fetch(
            "SELECT id FROM large_vector_stores WHERE store = $1 AND model = $2", store, model
        )
        return found[0][0] if found else None

    async def _put(self, transaction: Transaction, table: str, rows: Sequence[Columns]) -> None:
        more = "".join(f", ${n}" for n in range(4, len(rows[0]) + 1))
        await transaction.execute_many(
            f"INSERT INTO {table} VALUES ($1, $2, $3::real[]::{self._schema}halfvec{more})", rows
        )

    def _sql(self, template: str, **names: object) -> str:
        return template.format(schema=self._schema, **names)


async def _lock(transaction: Transaction, store: int) -> None:
    """Lock a vector store for this transaction. If another process is creating the index of the
    vector store, wait until the index is created."""
    statement = f"SELECT FROM vector_stores WHERE seq = {store} FOR UPDATE"
    await transaction.execute(statement, timeout_s=_INDEX_S)


async def _extension_schema(transaction: Transaction) -> str:
    """Return the name of the schema of the extension pgvector, quoted and followed by a period.
    Create the extension if it is missing. Raises ``SetupError``."""
    found = await transaction.fetch(_EXTENSION)
    if not found:
        try:
            await transaction.execute("CREATE EXTENSION vector SCHEMA public")
        except Exception as error:  # an error of asyncpg, which is an optional package
            raise SetupError(
                "vectors: PostgreSQL has no extension vector, and it cannot be created: install"
                " pgvector 0.8 or later, and run CREATE EXTENSION vector as a superuser"
            ) from error
        found = await transaction.fetch(_EXTENSION)
    version = tuple(int(part) for part in found[0][1].split(".")[:2])
    if version < (0, 8):
        raise SetupError(f"vectors: pgvector {found[0][1]} is too old: 0.8 or later is needed")
    return f"{found[0][0]}."


_EXTENSION = """
SELECT quote_ident(n.nspname), e.extversion
FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace WHERE e.extname = 'vector'
"""


def _floats(vector: bytes) -> list[float]:
    return array("f", vector).tolist()


class PostgresVectorIndex(SqlVectorIndex[Transaction]):
    """The vector index in PostgreSQL. ``pgvector``: the search by vectors. If it is None, this
    index cannot search by vectors, so callers load the vectors and compare them."""

    def __init__(self, pool: ConnectionPool, pgvector: Pgvector | None = None) -> None:
        super().__init__(pool)
        self._pgvector = pgvector

    def _any_of(self, words: Collection[str]) -> str:
        return " | ".join(map(_quote, words))

    async def _index_vectors(
        self,
        transaction: Transaction,
        store: int,
        file: int,
        model: str,
        vectors: Sequence[tuple[int, bytes]],
    ) -> None:
        if self._pgvector is not None:
            rows = [VectorRow(chunk, file, vector) for chunk, vector in vectors]
            await self._pgvector.add(transaction, store, model, rows)

    async def finish_file(
        self, tenant: str, indexed: IndexedFile, chunks: Sequence[IndexedChunk], model: str
    ) -> bool:
        is_finished = await super().finish_file(tenant, indexed, chunks, model)
        has_vectors = any(chunk.vector is not None for chunk in chunks)
        if is_finished and has_vectors and self._pgvector is not None:
            await self._pgvector.settle(tenant, index_key(indexed.file.vector_store_id), model)
        return is_finished

    async def search_vectors(
        self, tenant: str, store_id: str, query: VectorQuery
    ) -> tuple[ChunkHit, ...] | None:
        if self._pgvector is None:
            return None
        return await self._pgvector.search(tenant, index_key(store_id), query)


def _quote(word: str) -> str:
    return "'{}'".format(word.replace("\\", "\\\\").replace("'", "''").replace("\0", " "))

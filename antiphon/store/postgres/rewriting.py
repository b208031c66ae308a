"""Writes all rows of a PostgreSQL database again, so that their columns are encrypted, or no longer
encrypted, as those of new rows are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from antiphon.store.sql.row_mapping import Row, search_column, summary_of

from .pool import ConnectionPool
from .table_names import SCHEMA

#: The tables with binary columns that can be encrypted, and these columns. The table with the note
#: about the encryption is the last one: if the work is interrupted, servers still need the key.
_TABLES = f"""
SELECT c.relname, array_agg(a.attname::text) FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.atttypid = 'bytea'::regtype
WHERE c.relnamespace = '{SCHEMA}'::regnamespace AND c.relkind = 'r'
AND c.relname <> 'chunk_vectors' AND NOT a.attisdropped
GROUP BY c.relname ORDER BY c.relname = 'named_values', c.relname
"""
#: Number of rows that one statement reads, and their bytes if they are not single rows.
_ROWS, _BYTES = 50, 16 << 20


async def rewrite_rows(pool: ConnectionPool, *, is_searchable: bool) -> int:
    """Write each row with binary columns again, each table in a transaction. Then free the space of
    the old rows. Return how many rows were written. ``is_searchable``: whether the database may
    read the text in which a search for responses looks. Raises ``StoreError``."""
    async with pool.transaction() as transaction:
        tables = await transaction.fetch(_TABLES)
    await _rewrite_texts(pool, is_searchable=is_searchable)
    count = sum([await _rewrite_table(pool, table, columns) for table, columns in tables])
    for table, _ in tables:
        await pool.compact(f"{SCHEMA}.{table}")
    return count


async def _rewrite_texts(pool: ConnectionPool, *, is_searchable: bool) -> None:
    table = f"{SCHEMA}.summaries"
    async with pool.transaction() as transaction:
        places = await transaction.fetch(f"SELECT seq, octet_length(body) FROM {table}")
        for some in _groups(places):
            rows = await transaction.fetch(
                f"SELECT seq, body FROM {table} WHERE seq = ANY($1::bigint[])", some
            )
            await transaction.execute_many(
                f"UPDATE {table} SET text = $2 WHERE seq = $1",
                [
                    (row, search_column(summary_of((body,)), is_searchable=is_searchable))
                    for row, body in rows
                ],
            )


async def _rewrite_table(pool: ConnectionPool, name: str, columns: list[str]) -> int:
    table = f"{SCHEMA}.{name}"
    changes = ", ".join(f"{column} = ${n}" for n, column in enumerate(columns, 2))
    size = " + ".join(f"coalesce(octet_length({column}), 0)" for column in columns)
    async with pool.transaction() as transaction:
        # The triggers of a change of a row delete what belongs to its old version.
        await transaction.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        places = await transaction.fetch(f"SELECT ctid, {size} FROM {table}")
        for some in _groups(places):
            rows = await transaction.fetch(
                f"SELECT ctid, {', '.join(columns)} FROM {table} WHERE ctid = ANY($1::tid[])", some
            )
            await transaction.execute_many(
                f"UPDATE {table} SET {changes} WHERE ctid = $1", [tuple(row) for row in rows]
            )
        await transaction.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
    return len(places)


def _groups(places: Sequence[Row]) -> Iterator[list[object]]:
    """Divide rows into groups that fit into memory. ``places``: the place and the bytes of each
    row."""
    group: list[object] = []
    used = 0
    for place, size in places:
        if group and (len(group) == _ROWS or used + size > _BYTES):
            yield group
            group, used = [], 0
        group.append(place)
        used += size
    if group:
        yield group

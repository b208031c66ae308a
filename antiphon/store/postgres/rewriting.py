"""Writes all rows of a PostgreSQL database again, so that their columns are encrypted, or no longer
encrypted, as those of new rows are."""

from __future__ import annotations

from antiphon.store.common.row_mapping import search_column, summary_of

from .pool import ConnectionPool
from .table_names import SCHEMA

__all__ = ["rewrite_rows"]

#: The tables with binary columns that can be encrypted, and these columns.
_TABLES = f"""
SELECT c.relname, array_agg(a.attname::text) FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.atttypid = 'bytea'::regtype
WHERE c.relnamespace = '{SCHEMA}'::regnamespace AND c.relkind = 'r'
AND c.relname <> 'chunk_vectors' AND NOT a.attisdropped GROUP BY c.relname
"""
#: Number of rows that one statement reads.
_ROWS = 50


async def rewrite_rows(pool: ConnectionPool, *, is_searchable: bool) -> int:
    """Write each row with binary columns again, each table in a transaction. Return how many rows
    were written. ``is_searchable``: whether the database may read the text in which a search for
    responses looks. Raises ``StoreError``."""
    async with pool.transaction() as transaction:
        tables = await transaction.fetch(_TABLES)
    count = sum([await _rewrite_table(pool, table, columns) for table, columns in tables])
    await _rewrite_texts(pool, is_searchable=is_searchable)
    return count


async def _rewrite_texts(pool: ConnectionPool, *, is_searchable: bool) -> None:
    async with pool.transaction() as transaction:
        rows = await transaction.fetch(f"SELECT seq, body FROM {SCHEMA}.summaries")
        texts = [
            (row, search_column(summary_of((body,)), is_searchable=is_searchable))
            for row, body in rows
        ]
        await transaction.execute_many(
            f"UPDATE {SCHEMA}.summaries SET text = $2 WHERE seq = $1", texts
        )


async def _rewrite_table(pool: ConnectionPool, name: str, columns: list[str]) -> int:
    table = f"{SCHEMA}.{name}"
    changes = ", ".join(f"{column} = ${n}" for n, column in enumerate(columns, 2))
    async with pool.transaction() as transaction:
        # The triggers of a change of a row delete what belongs to its old version.
        await transaction.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        places = [row[0] for row in await transaction.fetch(f"SELECT ctid FROM {table}")]
        for start in range(0, len(places), _ROWS):
            rows = await transaction.fetch(
                f"SELECT ctid, {', '.join(columns)} FROM {table} WHERE ctid = ANY($1::tid[])",
                places[start : start + _ROWS],
            )
            await transaction.execute_many(
                f"UPDATE {table} SET {changes} WHERE ctid = $1", [tuple(row) for row in rows]
            )
        await transaction.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")
    return len(places)

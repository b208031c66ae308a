"""Writes all rows of an SQLite database again, so that their columns are encrypted, or no longer
encrypted, as those of new rows are."""

from __future__ import annotations

import sqlite3

from antiphon.store.sql.row_mapping import search_column, summary_of

from .database import Database

#: Tables whose binary columns are never encrypted.
_READABLE = ("chunk_vectors",)


async def rewrite_rows(database: Database) -> int:
    """Write each row with binary columns again, in one transaction. Then free the space of the old
    rows, so that they cannot be read from the file. Return how many rows were written. Raises
    ``StoreError``."""
    count = await database.write(
        lambda connection: _rewrite(connection, is_searchable=not database.is_encrypted)
    )
    await database.compact()
    return count


def _rewrite(connection: sqlite3.Connection, *, is_searchable: bool) -> int:
    # The triggers of a change of a row delete what belongs to its old version.
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    triggers = connection.execute(query).fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    tables = connection.execute("SELECT name FROM pragma_table_list WHERE type = 'table'")
    count = sum(
        _rewrite_table(connection, table)
        for (table,) in tables.fetchall()
        if table not in _READABLE and not table.startswith("sqlite_")
    )
    for row, body in connection.execute("SELECT seq, body FROM summaries").fetchall():
        text = search_column(summary_of((body,)), is_searchable=is_searchable)
        connection.execute("UPDATE summaries SET text = ? WHERE seq = ?", (text, row))
    for _, statement in triggers:
        connection.execute(statement)
    return count


def _rewrite_table(connection: sqlite3.Connection, table: str) -> int:
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    contents = [name for _, name, kind, *_ in columns if kind == "BLOB"]
    if not contents:
        return 0
    keys = [column[1] for column in columns if column[5]] or ["rowid"]
    where = " AND ".join(f"{key} = ?" for key in keys)
    read = f"SELECT {', '.join(contents)} FROM {table} WHERE {where}"
    write = f"UPDATE {table} SET {', '.join(f'{name} = ?' for name in contents)} WHERE {where}"
    rows = connection.execute(f"SELECT {', '.join(keys)} FROM {table}").fetchall()
    for row in rows:
        connection.execute(write, (*connection.execute(read, row).fetchone(), *row))
    return len(rows)

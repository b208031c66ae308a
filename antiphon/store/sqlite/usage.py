"""The SQLite usage log."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from msgspec.structs import astuple

from antiphon.store.common.row_mapping import encode, usage_filters, usage_totals_of
from antiphon.store.usage import UsageLog, UsageQuery, UsageRecord, UsageTotals

from .database import Database


class SqliteUsage(UsageLog):
    """Implements ``UsageLog``: keeps the usage records of requests in an SQLite database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, records: Sequence[UsageRecord]) -> None:
        queries = self._database.queries
        await self._database.write(lambda connection: add_usage(connection, queries, *records))

    async def totals(self, query: UsageQuery) -> tuple[UsageTotals, ...]:
        named = (query.tenants, query.api_keys, query.models)
        lists = [None if names is None else _encode_names(names) for names in named]
        arguments = usage_filters(query, lists)
        return usage_totals_of(await self._database.rows("usage_totals", arguments, tuple))


def _encode_names(names: Sequence[str]) -> str:
    """Encode names for a comparison with SQLite's ``json_each``. Names with U+0000 are left out,
    because ``json_each`` cuts a text at U+0000. No record contains such a name."""
    return encode([name for name in names if "\0" not in name]).decode()


def add_usage(
    connection: sqlite3.Connection, queries: Mapping[str, str], *records: UsageRecord
) -> None:
    """Add usage records. Called within the transaction of the caller."""
    for record in records:
        connection.execute(queries["add_usage"], astuple(record))

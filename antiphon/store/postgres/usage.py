"""The PostgreSQL usage log."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.store.common.row_mapping import encode_usage, usage_filters, usage_totals_of
from antiphon.store.usage import UsageLog, UsageQuery, UsageRecord, UsageTotals

from .pool import ConnectionPool


class PostgresUsage(UsageLog):
    """Implements ``UsageLog`` with tables in PostgreSQL."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def add(self, records: Sequence[UsageRecord]) -> None:
        await self._pool.rows("add_usage", encode_usage(records))

    async def totals(self, query: UsageQuery) -> tuple[UsageTotals, ...]:
        lists = (query.tenants, query.api_keys, query.models)
        arguments = usage_filters(query, lists)
        return usage_totals_of(await self._pool.rows("usage_totals", *arguments))

"""The usage log in tables."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import astuple

from antiphon.store.sql.row_mapping import usage_totals_of
from antiphon.store.usage import UsageLog, UsageQuery, UsageRecord, UsageTotals

from .executor import Executor, SqlTransaction


class SqlUsage(UsageLog):
    """Implements ``UsageLog`` with a table of records and a table of their sums."""

    def __init__(self, executor: Executor[SqlTransaction]) -> None:
        self._executor = executor

    async def add(self, records: Sequence[UsageRecord]) -> None:
        await self._executor.change_many("add_usage", [astuple(record) for record in records])

    async def totals(self, query: UsageQuery) -> tuple[UsageTotals, ...]:
        named = (query.tenants, query.api_keys, query.models)
        lists = (None if names is None else list(names) for names in named)
        groups = (name in query.group_by for name in ("tenant", "api_key", "model"))
        arguments = (query.start, query.end, query.width, query.kind, *lists, *groups)
        return usage_totals_of(await self._executor.rows("usage_totals", *arguments))

"""The PostgreSQL rate store. Its tables are unlogged: PostgreSQL does not write them to the
write-ahead log, so they are empty after the database has crashed."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.store.rates import REPORT_TIMEOUT_S, RateReport, RateState, RateStore
from antiphon.store.sql.executor import index_key

from .pool import ConnectionPool


class PostgresRates(RateStore):
    """Implements ``RateStore`` with tables in PostgreSQL. Each call of ``exchange`` executes one
    statement."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def exchange(self, owner: str, reports: Sequence[RateReport]) -> tuple[RateState, ...]:
        if not reports:
            return ()
        columns = zip(
            *((index_key(r.scope), r.per_minute, r.admitted_count, r.running) for r in reports),
            strict=True,
        )
        rows = await self._pool.rows("exchange_rates", owner, REPORT_TIMEOUT_S, *map(list, columns))
        return tuple(RateState(*row) for row in rows)

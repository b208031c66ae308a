"""The SQLite rate store. Through it, the processes that share a database exchange request counts
for rate limits. Times are measured by the machine's monotonic clock, which is the same for all of
them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from antiphon.store.rates import REPORT_TIMEOUT_S, RateReport, RateState, RateStore

from .database import Database


class SqliteRates(RateStore):
    """Implements ``RateStore`` with tables of an SQLite database. Through these tables, the request
    limits apply to the requests of all processes together."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queries = database.queries

    async def exchange(self, owner: str, reports: Sequence[RateReport]) -> tuple[RateState, ...]:
        def work(connection: sqlite3.Connection) -> tuple[RateState, ...]:
            now = time.monotonic()
            return tuple(
                RateState(
                    self._take(connection, report, now), self._run(connection, owner, report, now)
                )
                for report in reports
            )

        return await self._database.write(work)

    def _take(self, connection: sqlite3.Connection, report: RateReport, now: float) -> float:
        if report.per_minute is None:
            return 0.0
        full = float(report.per_minute)
        row = connection.execute(self._queries["rate_level"], (report.scope,)).fetchone()
        level, at = row or (full, now)  # a new bucket is full
        level = min(full, level - report.admitted_count + (now - at) * full / 60)
        connection.execute(self._queries["put_rate_level"], (report.scope, level, now))
        return float(level)

    def _run(
        self, connection: sqlite3.Connection, owner: str, report: RateReport, now: float
    ) -> int:
        row = (report.scope, owner, report.running, now)
        connection.execute(self._queries["put_rate_running"], row)
        connection.execute(
            self._queries["drop_rate_running"], (report.scope, now - REPORT_TIMEOUT_S)
        )
        query = self._queries["rate_running_remote"]
        (running,) = connection.execute(query, (report.scope, owner)).fetchone()
        return int(running)

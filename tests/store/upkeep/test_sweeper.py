"""The sweeper: a wrong clock deletes nothing, and no step of a sweep holds others up for long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.store import open_store
from antiphon.store.base import Retention, Store
from antiphon.store.records import Append, RunEnd, SweepRecord
from antiphon.store.upkeep.sweeper import Sweeper, check_clock
from antiphon.testing.store_checks.responses import make_response
from antiphon.testing.store_checks.runs import batch, begin_run, ended_response, numbers
from tests.real.postgres import Postgres

NOW, DAY = 1_790_000_000, 86_400
RETENTION = Retention(max_age_s=30 * DAY)


class Log:
    """A logger that counts errors."""

    def __init__(self) -> None:
        self.errors = 0

    def error(self, event: str, **fields: Any) -> None:
        self.errors += 1

    def exception(self, event: str, **fields: Any) -> None:
        raise AssertionError(event)


async def sweep_at(store: Store, now: float, log: Log) -> int:
    return await Sweeper(store, RETENTION, read_clock=lambda: store.clock(now), log=log).sweep()


async def test_clock_that_jumps_ahead_expires_nothing(store: Store) -> None:
    log = Log()
    start = await store.clock(NOW)
    await store.save("t", make_response("a", created_at=int(start) - 5 * DAY))
    assert await sweep_at(store, start, log) == 0
    for later in (400 * DAY, 400 * DAY + 60, 400 * DAY + 3_600):
        assert await sweep_at(store, start + later, log) == 0
    assert await store.load("t", "resp_a") is not None
    is_postgres = await store.clock(0) > 0  # its clock decides, so it notices no jump
    assert log.errors == (0 if is_postgres else 1)


async def test_clock_without_a_last_sweep_is_believed(store: Store) -> None:
    now = await store.clock(NOW)
    await store.save("t", make_response("a", created_at=int(now) - 31 * DAY))
    assert await sweep_at(store, now, Log()) == 1


def test_implausible_clock_is_believed_after_a_day() -> None:
    record = check_clock(None, NOW)[1]
    times: list[int] = []
    ahead = NOW + 100 * DAY
    for now in (NOW + 60, *range(ahead, ahead + DAY + 7_200, 3_600)):
        now, record = check_clock(record, now)
        times.append(now)
    assert times[0] == NOW + 60
    assert set(times[1:25]) == {NOW + 60}
    assert times[25:] == [ahead + DAY, ahead + DAY + 3_600]


def test_another_jump_starts_the_day_again() -> None:
    record = SweepRecord(NOW, NOW + 100 * DAY, NOW + 100 * DAY)
    now, record = check_clock(record, NOW + 300 * DAY)
    assert (now, record) == (NOW, SweepRecord(NOW, NOW + 300 * DAY, NOW + 300 * DAY))
    now, record = check_clock(record, NOW + 30)
    assert (now, record) == (NOW + 30, SweepRecord(NOW + 30))


def test_clock_behind_the_last_sweep_counts_as_it_is() -> None:
    assert check_clock(SweepRecord(NOW), NOW - 500 * DAY) == (NOW - 500 * DAY, SweepRecord(NOW))


async def test_sweep_record_is_replaced(store: Store) -> None:
    assert await store.load_sweep_record() is None
    for record in (SweepRecord(7), SweepRecord(8, 900, 901), SweepRecord(9)):
        await store.save_sweep_record(record)
        assert await store.load_sweep_record() == record


async def test_deleted_and_expired_runs_leave_no_batches(store: Store) -> None:
    for name in ("deleted", "expired", "kept"):
        claim = await begin_run(store, name)
        appends = [Append(claim, batch(n)) for n in range(2, 1_300)]
        await store.runs.append(appends)
        await store.runs.end(claim, RunEnd(stored=ended_response(name), batch=batch(1_300)))
        if name != "kept":
            await store.sweep(Retention(), 1_000)  # dates its end
    assert await store.delete("t", "resp_deleted")
    await store.sweep(Retention(max_log_age_s=100), 1_101)
    assert await store.runs.events("t", "resp_deleted", -1, limit=9) is None
    assert await store.runs.events("t", "resp_expired", -1, limit=9) is None
    assert await numbers(store, "kept", limit=2_000) == list(range(1_301))
    assert await store.load("t", "resp_expired") is not None
    again = await begin_run(store, "deleted")
    assert again.epoch == 1


class Counted:
    """Counts the rows that each transaction of a PostgreSQL store deletes."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        from antiphon.store.postgres.pool import Transaction

        self.largest = 0
        original = Transaction.change

        async def change(transaction: Any, name: str, *arguments: Any) -> int:
            found = await original(transaction, name, *arguments)
            if name != "add_batch":
                self.largest = max(self.largest, found)
            return found

        monkeypatch.setattr(Transaction, "change", change)


async def test_transactions_of_a_sweep_are_small(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(await database.create_migrated_database())
    counted = Counted(store, monkeypatch)
    claim = await begin_run(store)
    await store.runs.append([Append(claim, batch(n)) for n in range(2, 3_000)])
    await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(3_000)))
    await store.delete("t", "resp_a")
    assert counted.largest == 0, "a client's deletion does not delete the events itself"
    await store.sweep(Retention(), 1_000)
    assert counted.largest == 500
    await store.close()


async def test_writes_of_a_sweep_are_many(tmp_path: Path) -> None:
    from antiphon.store.sqlite.store import SqliteStore

    store = await SqliteStore.open(tmp_path / "a.db")
    claim = await begin_run(store)
    await store.runs.append([Append(claim, batch(n)) for n in range(2, 3_000)])
    await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(3_000)))
    await store.delete("t", "resp_a")
    before = store.commits
    await store.sweep(Retention(), 1_000)
    assert store.commits - before >= 6
    await store.close()

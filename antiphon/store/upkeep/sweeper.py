"""Sweeps: the deletion of expired data from a store, every minute. Each sweep first checks the
clock.

A clock that is far ahead would make all data expire immediately, and deleted data cannot be
restored. So if the clock is implausibly far ahead of the last sweep, sweeps use the time of the
last sweep for a day. During this day, an operator can correct the clock. If a store was unused for
a long time, the clock also looks far ahead. Such a store deletes its expired data one day late.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from antiphon.store.base import Retention, Store
from antiphon.store.records import SweepRecord
from antiphon.support.log import Log
from antiphon.support.tasks import BackgroundTasks, repeat

_SWEEP_S = 60
#: A clock that shows more than this many seconds since the last sweep is implausible. It is
#: ignored for ``_DOUBT_S`` seconds.
_IMPLAUSIBLE_S, _DOUBT_S = 7 * 86_400, 86_400


def check_clock(record: SweepRecord | None, now: int) -> tuple[int, SweepRecord]:
    """Return the Unix time that a sweep must use, and the new sweep record. ``record``: the record
    of the last sweep. ``now``: the time that the clock shows.

    If ``now`` is implausibly far ahead of the last sweep, the sweep must use the time of the last
    sweep. If the clock has been ahead for a day, the sweep must use ``now``.
    """
    if record is None or now - record.swept_at <= _IMPLAUSIBLE_S:
        swept_at = now if record is None else max(now, record.swept_at)
        return now, SweepRecord(swept_at)
    since, at = record.clock_suspect_since, record.clock_suspect_at
    if since is None or at is None or not 0 <= now - at <= _IMPLAUSIBLE_S:
        since = now  # another jump
    if now - since >= _DOUBT_S:
        return now, SweepRecord(now)
    return record.swept_at, SweepRecord(record.swept_at, since, now)


class Sweeper:
    """Deletes expired data from a store, at the start and every minute. A context manager: the
    sweeps run in the background until the end of its block. ``read_clock`` returns the store's time
    in unix seconds (``Store.clock``)."""

    def __init__(
        self,
        store: Store,
        retention: Retention,
        *,
        read_clock: Callable[[], Awaitable[float]],
        log: Log,
    ) -> None:
        self._store = store
        self._retention = retention
        self._read_clock = read_clock
        self._log = log
        self._tasks = BackgroundTasks("sweeper")

    async def __aenter__(self) -> Sweeper:
        failure = "expired responses could not be deleted"
        self._tasks.start(repeat(self.sweep, _SWEEP_S, failure=failure, log=self._log))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._tasks.close()

    async def sweep(self) -> int:
        """Check the clock, and delete the data that has expired. Return how many responses
        expired."""
        shown = int(await self._read_clock())
        last = await self._store.load_sweep_record()
        now, record = check_clock(last, shown)
        if record.clock_suspect_since == shown:
            self._log.error(
                "the clock is implausibly far ahead of the last sweep: for a day, nothing expires"
                " by age",
                clock=shown,
                last_sweep=record.swept_at,
            )
        expired = await self._store.sweep(self._retention, now)
        # On a full disk, there is space for the record only after the sweep.
        await self._store.save_sweep_record(record)
        return expired

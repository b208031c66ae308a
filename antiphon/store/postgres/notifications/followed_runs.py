"""The runs that this process follows. A process follows a run while readers in this process read
the run's events. The process then receives each new batch of these events. The run may be executed
by another process.

- When a reader begins to wait for events of a run, this process adds itself to the followers of the
  run in the store. This entry (a mark) expires, so this process renews it regularly.
- The process that executes the run sends each new batch to the followers.
- If this process misses batches, one query fetches the missing batches of all followed runs. Only
  one such query runs at a time.
- Notifications and marks may be lost. So this process also looks for missing batches every few
  seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress

import msgspec
from msgspec import Struct

from antiphon.errors import RunError
from antiphon.store.common.subscriptions import Subscriptions
from antiphon.store.postgres.notifications.batch_notices import decode_batches
from antiphon.store.postgres.pool import ConnectionPool
from antiphon.store.records import EventBatch
from antiphon.store.sql.executor import index_key
from antiphon.store.sql.row_mapping import event_batch_of
from antiphon.support.tasks import BackgroundTasks

#: Seconds for which a run is marked, and the age at which its mark is renewed.
_MARKED_S, _RENEWED_S = 60.0, 20.0
#: Seconds between two looks into the store, and before a failed query is repeated.
_LOOK_S, _RETRY_S = 2.0, 1.0

_Key = tuple[str, str]
_Work = Callable[[], Coroutine[object, None, None]]


class _FollowedRun(Struct):
    """A run that this process follows.

    - ``row``: the row number of the run.
    - ``last``: the sequence number of the last event that was delivered to the readers.
    - ``renewed_at``: the time after which the mark must be renewed. The mark is the entry in the
      store that makes this process a follower of the run.
    - ``grew``: whether a batch was delivered since the last call of ``FollowedRuns.look``.
    - ``grew_here``: whether this process itself has appended a batch since that call.
    """

    row: int
    last: int
    renewed_at: float
    grew: bool = False
    grew_here: bool = False


class FollowedRuns:
    """Follows the runs that readers in this process wait for, and delivers new batches of events to
    the subscriptions of these readers."""

    def __init__(self, pool: ConnectionPool, subscriptions: Subscriptions, process_id: str) -> None:
        self._pool = pool
        self._subscriptions = subscriptions
        self._process_id = process_id
        self._runs: dict[_Key, _FollowedRun] = {}
        self._keys: dict[int, _Key] = {}
        self._is_listening = False
        self._new: set[_Key] = set()
        self._rows_to_fetch: set[int] = set()
        self._tasks = BackgroundTasks("followed runs")

    def follow(self, key: _Key) -> None:
        """Follow a run from now on, because a reader waits for it.

        This process is then recorded in the store as a follower of the run. Batches that were
        appended earlier were not sent to this process. So the subscriptions of the run are marked
        as stale, which makes the readers read these batches from the store.
        """
        if self._is_listening and key not in self._runs:
            self._new.add(key)
            self._start("follow", self._follow_new)

    def on_append(self, key: _Key, batch: EventBatch) -> None:
        """Record that this process itself has appended a batch to a run, and has delivered the
        batch to the readers of the run in this process."""
        if (run := self._runs.get(key)) is not None:
            run.last = max(run.last, batch.last)
            run.grew = run.grew_here = True

    def on_batches(self, payload: bytes) -> None:
        """Take the batches of events from a notification, and deliver them to the readers of their
        runs. The notification of a large batch does not contain the events of the batch. If these
        events or earlier batches of the run are missing, fetch the batches from the store.

        ``payload``: the payload of the notification, made by ``encode_batches``. An invalid payload
        is ignored."""
        try:
            batches = decode_batches(payload)
        except msgspec.MsgspecError:
            return  # not from Antiphon
        for row, batch in batches:
            if (key := self._keys.get(row)) is None:
                continue
            if batch is None or batch.first > self._runs[key].last + 1:
                self._fetch(row)  # this also fetches the batches of a gap
            else:
                self._deliver(key, batch)

    def on_connected(self) -> None:
        """Forget all followed runs, and allow this process to follow runs from now on. Called each
        time the connection that receives notifications has been opened."""
        self._is_listening = True
        self.clear()

    def on_bus_connected(self) -> None:
        """Fetch the batches that were not delivered while the bus was disconnected."""
        for run in self._runs.values():
            self._fetch(run.row)

    def clear(self) -> None:
        """Forget all followed runs, because notifications may have been missed. All readers then
        read the store. When a reader of a run waits again, this process follows the run again."""
        self._runs.clear()
        self._keys.clear()
        self._subscriptions.mark_stale()

    async def close(self) -> None:
        """Cancel all tasks, so no run is followed any more."""
        await self._tasks.close()

    # --- tasks, at most one of each kind ---------------------------------------------------------

    def _start(self, name: str, work: _Work) -> None:
        self._tasks.start_once(name, work)

    async def _follow_new(self) -> None:
        while self._new:
            new, self._new = self._new, set()
            keys = sorted(new.intersection(self._subscriptions.subscribed_runs()))
            try:
                await self._mark(keys)
            except RunError:
                self._subscriptions.mark_stale(keys)  # readers read the store and get the error
                await asyncio.sleep(_RETRY_S)

    async def _mark(self, keys: list[_Key]) -> None:
        """Write a mark in the store for each of these runs, or renew its mark. The mark makes this
        process a follower of the run. ``keys``: tenant and id of each run."""
        if not keys:
            return
        tenants, ids = zip(*((tenant, index_key(id)) for tenant, id in keys), strict=True)
        now = asyncio.get_running_loop().time()
        rows = await self._pool.rows("follow", self._process_id, tenants, ids, _MARKED_S)
        new = [key for key in keys if key not in self._runs]
        for number, row, last in rows:
            key = keys[number - 1]
            if key in self._runs:
                self._runs[key].renewed_at = now + _RENEWED_S
            else:
                self._runs[key] = _FollowedRun(row, last, now + _RENEWED_S)
                self._keys[row] = key
        self._subscriptions.mark_stale(new)
        self._start("look", self._look_regularly)

    async def _look_regularly(self) -> None:
        while self._runs:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Do the regular work for the followed runs:

        - Forget the runs that have no readers.
        - If a run got no batch since the last call, fetch its new batches from the store, because
          notifications may have been lost.
        - Renew the marks that are more than ``_RENEWED_S`` seconds old, so that they do not expire.
          A mark is an entry in the store that makes this process a follower of a run. The mark is
          not renewed if this process itself has appended a batch to the run since the last call.
        """
        for key in self._runs.keys() - set(self._subscriptions.subscribed_runs()):
            del self._keys[self._runs.pop(key).row]
        now = asyncio.get_running_loop().time()
        old_marks: list[_Key] = []
        for key, run in self._runs.items():
            if not run.grew:  # if it grew, the next batch shows whether a batch was lost
                self._fetch(run.row)
            if not run.grew_here and run.renewed_at < now:
                old_marks.append(key)
            run.grew = run.grew_here = False
        with suppress(RunError):  # the readers get the error of the query that fetches
            await self._mark(sorted(old_marks))

    def _fetch(self, row: int) -> None:
        """Make the background task fetch the new batches of one run from the store. ``row``: the
        row number of the run. The task collects such runs, and fetches the batches of all collected
        runs with one query."""
        self._rows_to_fetch.add(row)
        self._start("fetch", self._fetch_all)

    async def _fetch_all(self) -> None:
        while self._rows_to_fetch:
            rows, self._rows_to_fetch = self._rows_to_fetch, set()
            lasts = {row: self._runs[self._keys[row]].last for row in rows if row in self._keys}
            if not lasts:
                continue
            try:
                found = await self._pool.rows("new_batches", list(lasts), list(lasts.values()))
            except RunError:
                self.clear()  # readers read the store and get the error
                return
            for row, *columns in found:
                if (key := self._keys.get(row)) is not None:
                    self._deliver(key, event_batch_of(columns))

    def _deliver(self, key: _Key, batch: EventBatch) -> None:
        run = self._runs[key]
        if batch.first == run.last + 1:
            self._subscriptions.publish(*key, batch)
            run.last = batch.last
            run.grew = True
        elif batch.last > run.last:  # not the next batch: the readers read the store
            self._subscriptions.mark_stale([key])
            run.last = batch.last

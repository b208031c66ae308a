"""The database of a simulation: one memory store that all processes share over a faulty network.

It models PostgreSQL. A call takes effect at one moment between request and answer. It may fail
before, its answer may be lost, its effect may come after the caller gave up, and the database or
the network of one process may pause. Notifications to other processes are late, and lost while a
connection is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextvars import ContextVar
from functools import partial
from random import Random
from typing import Any, Protocol

from antiphon.errors import StoreError
from antiphon.store.common.subscriptions import Subscription, Subscriptions
from antiphon.store.keys import KeyStore
from antiphon.store.records import Append, Claim, EventBatch, RunEnd
from antiphon.store.runs import RunListener
from antiphon.testing.memory_store.locks import OwnerHeartbeats
from antiphon.testing.memory_store.reservations import Reservations
from antiphon.testing.memory_store.store import MemoryStore

#: Seconds after which a call without an answer fails, and between attempts to connect again.
_TIMEOUT_S = 5.0
_RECONNECT_S = 0.5
#: Calls that run to their end even if their caller is cancelled, as in the PostgreSQL store.
_UNCANCELLABLE = frozenset({"append", "end", "delete"})
#: Parts of the store that have methods of their own.
_PARTS = frozenset({"files", "journal", "skills", "usage_log", "values", "vectors"})

_Key = tuple[str, str]
#: A notification for the subscriptions and the listener of one process.
_Notice = Callable[["Connection"], None]

#: Where notifications of the current call are collected.
_notices: ContextVar[list[_Notice] | None] = ContextVar("notices", default=None)


class NetworkConditions:
    """Faults of the network between one process and the database."""

    def __init__(self) -> None:
        #: Probabilities per call.
        self.fails_before = 0.0
        self.answer_lost = 0.0
        #: Mean seconds that a request and that an answer take.
        self.delay_s = 0.002
        #: No call passes.
        self.is_cut = False
        #: Notifications are lost.
        self.notices_cut = False


class ProcessState(Protocol):
    """What the database knows of a process."""

    is_alive: bool
    network: NetworkConditions


class Database:
    """The shared store. ``clock`` is its own clock, in unix seconds."""

    def __init__(self, random: Random, clock: Callable[[], float]) -> None:
        self.random = random
        self.clock = clock
        self.store = MemoryStore()
        self.reservations = LapsingReservations(self.store.runs.owners)
        self.store.runs.reservations = self.reservations
        self.connections: list[Connection] = []
        self._recorder = _Recorder()
        self.store.runs.notifications.subscriptions = self._recorder
        self.store.runs.set_listener(self._recorder)
        #: Unset while the database is paused.
        self.running = asyncio.Event()
        self.running.set()
        #: Called after each call that took effect.
        self.on_effect: Callable[[], None] = lambda: None
        #: Called with the process that is about to begin or to settle an entry of the journal.
        self.on_journal_call: Callable[[ProcessState], None] = lambda process: None
        self._late: set[asyncio.Task[Any]] = set()

    def connect(self, process: ProcessState) -> Connection:
        """Return the store as one process sees it."""
        connection = Connection(self, process)
        self.connections.append(connection)
        return connection

    def run_late(self, origin: Connection, effect: partial[Any]) -> None:
        """Run a call whose caller has given up."""
        if effect.func == self.store.save:
            self.reservations.lapsed.add(effect.args[1].response.id)
        task = asyncio.get_running_loop().create_task(self._run_late(origin, effect))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _run_late(self, origin: Connection, effect: Callable[[], Any]) -> None:
        await asyncio.sleep(self.random.uniform(0, 3))
        await self.running.wait()
        try:
            await self.execute(origin, effect)
        except StoreError:
            pass

    async def execute(
        self, origin: Connection, effect: Callable[[], Any]
    ) -> tuple[Any, list[_Notice]]:
        """Execute a call, and notify the other processes. Returns also the notifications for the
        caller's own process."""
        token = _notices.set([])
        try:
            result = await effect()
            notices = _notices.get() or []
        finally:
            _notices.reset(token)
        self.on_effect()
        everybody: list[_Notice] = [notice for notice in notices if isinstance(notice, _Ended)]
        for connection in self.connections:
            connection.notify(everybody if connection is origin else notices)
        return result, notices


class LapsingReservations(Reservations):
    """Also records ``lapsed`` responses, which may exceed a quota: they are saved after their
    reservation has ended, because their server was silent for a lease or gave up the call."""

    def __init__(self, owners: OwnerHeartbeats) -> None:
        super().__init__(owners)
        self.lapsed: set[str] = set()

    def add(self, tenant: str, response_id: str, owner: str) -> None:
        super().add(tenant, response_id, owner)
        self.lapsed.discard(response_id)

    def ids(self, tenant: str, lease_s: float) -> set[str]:
        before = set(self.reserved.get(tenant, ()))
        reserved = super().ids(tenant, lease_s)
        self.lapsed |= before - reserved
        return reserved


class _Ended:
    """The notification that runs ended. A process receives also its own: the answer to the call
    that ended the run may be lost."""

    def __init__(self, keys: Collection[_Key] | None) -> None:
        self._keys = keys

    def __call__(self, connection: Connection) -> None:
        connection.subscriptions.mark_stale(self._keys)


class _Recorder(Subscriptions):
    """Takes the place of the memory store's subscriptions and of its listener."""

    def publish(self, tenant: str, response_id: str, batch: EventBatch) -> None:
        _record(lambda connection: connection.subscriptions.publish(tenant, response_id, batch))

    def mark_stale(self, keys: Iterable[_Key] | None = None) -> None:
        stale = None if keys is None else list(keys)
        _record(_Ended(stale))

    def on_run_queued(self) -> None:
        _record(lambda connection: connection.listener.on_run_queued())

    def on_run_lost(self, response_id: str, epoch: int) -> None:
        _record(lambda connection: connection.listener.on_run_lost(response_id, epoch))


def _record(notice: _Notice) -> None:
    notices = _notices.get()
    if notices is not None:
        notices.append(notice)


class _NoListener:
    def on_run_queued(self) -> None: ...

    def on_run_lost(self, response_id: str, epoch: int) -> None: ...


class Connection:
    """``Store`` of one process. A process that has crashed is cancelled at its next call."""

    def __init__(self, database: Database, process: ProcessState) -> None:
        self.database = database
        self._process = process
        self.subscriptions = Subscriptions()
        self.listener: RunListener = _NoListener()
        self._queue: asyncio.Queue[list[_Notice]] = asyncio.Queue()
        self._receiver: asyncio.Task[None] | None = None
        self.runs = _Runs(self)
        self.values: Any
        for part in _PARTS:
            setattr(self, part, _Part(self, getattr(database.store, part)))
        self.keys = KeyStore(self.values)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.database.store, name)
        return partial(self.call, name, method)

    async def clock(self, now: float) -> float:
        """Return the time of the database."""
        return await self.call("clock", self._clock)  # type: ignore[no-any-return]

    async def _clock(self) -> float:
        return self.database.clock()

    async def close(self) -> None:
        """Close nothing: other processes use the store."""

    async def call(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the store over the network."""
        await self._check_alive()
        effect = partial(method, *args, **kwargs)
        if name in ("begin", "settle"):
            self.database.on_journal_call(self._process)
        if name not in _UNCANCELLABLE:
            return await self._call(name, effect)
        task = asyncio.create_task(self._call(name, effect))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _call(self, name: str, effect: partial[Any]) -> Any:
        random, network = self.database.random, self._process.network
        has_effect = random.random() < 0.5  # of a call whose caller gives up
        try:
            await asyncio.sleep(min(random.expovariate(1 / network.delay_s), _TIMEOUT_S))
            if random.random() < network.fails_before:
                raise StoreError("The store does not answer.")
            if network.is_cut or not self.database.running.is_set():
                async with asyncio.timeout(_TIMEOUT_S):
                    while network.is_cut:
                        await asyncio.sleep(0.1)
                    await self.database.running.wait()
        except (TimeoutError, asyncio.CancelledError) as error:
            if has_effect and not network.is_cut:
                self.database.run_late(self, effect)
            if isinstance(error, TimeoutError):
                raise StoreError("The store does not answer.") from None
            raise
        await self._check_alive()
        result, notices = await self.database.execute(self, effect)
        if random.random() < network.answer_lost or network.is_cut:
            await asyncio.sleep(random.expovariate(1 / network.delay_s))
            raise StoreError("The store does not answer.")
        await asyncio.sleep(random.expovariate(1 / network.delay_s))
        await self._check_alive()
        for notice in notices:
            notice(self)
        return result

    async def _check_alive(self) -> None:
        """Wait for the end of the caller's task if the process has crashed."""
        if not self._process.is_alive:
            await asyncio.get_running_loop().create_future()

    # --- notifications ---------------------------------------------------------------------------

    def listen(self) -> None:
        """Receive notifications of other processes from now on."""
        if self._receiver is None:
            self._receiver = asyncio.create_task(self._receive())

    def notify(self, notices: list[_Notice]) -> None:
        """Send notifications of another process to this one."""
        if notices and self._process.is_alive:
            self._queue.put_nowait(notices)

    async def _receive(self) -> None:
        random, network = self.database.random, self._process.network
        while True:
            notices = await self._queue.get()
            await asyncio.sleep(random.expovariate(1 / network.delay_s))
            if network.notices_cut:
                while network.notices_cut:
                    await asyncio.sleep(_RECONNECT_S)
                while not self._queue.empty():
                    self._queue.get_nowait()
                notices = [_after_gap]
            for notice in notices:
                notice(self)


def _after_gap(connection: Connection) -> None:
    connection.subscriptions.mark_stale()
    connection.listener.on_run_queued()


class _Part:
    """A part of the store, over the network."""

    def __init__(self, connection: Connection, part: Any) -> None:
        self._connection = connection
        self._part = part

    def __getattr__(self, name: str) -> Any:
        return partial(self._connection.call, name, getattr(self._part, name))


class _Runs:
    """``RunStore`` of one process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._runs = connection.database.store.runs

    def __getattr__(self, name: str) -> Any:
        return partial(self._connection.call, name, getattr(self._runs, name))

    async def append(self, appends: Collection[Append]) -> frozenset[str]:
        lost: frozenset[str] = await self._connection.call("append", self._runs.append, appends)
        for append in appends:
            job = append.claim.job
            if job.id not in lost:
                self._connection.subscriptions.publish(job.tenant, job.id, append.batch)
        return lost

    async def end(self, claim: Claim, end: RunEnd) -> bool:
        stored: bool = await self._connection.call("end", self._runs.end, claim, end)
        self._connection.subscriptions.mark_stale([(claim.job.tenant, claim.job.id)])
        return stored

    def subscribe(self, tenant: str, response_id: str) -> Subscription:
        self._connection.listen()
        return self._connection.subscriptions.subscribe(tenant, response_id)

    def set_listener(self, listener: RunListener) -> None:
        self._connection.listener = listener
        self._connection.listen()

"""An SQLite database for use from an event loop: one thread writes, one thread reads.

If several processes share a database, a lock on a file makes them write one after another. A
process can wait for this lock without polling. SQLite's own lock would have to be polled.

Writes of one iteration of the event loop share a commit. Writes that arrive during a commit share
the next commit. If many long writes wait, a commit takes a part of them, and tenants take turns.

With ``synchronous=NORMAL``, a commit returns when the operating system has the data. So no data is
lost or damaged if this process is killed. After a power failure, the last commits may be missing,
but all earlier commits are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import structlog

from antiphon.errors import DISK_ERROR, DISK_FULL, SetupError, StoreError
from antiphon.store.common.row_cipher import RowCipher
from antiphon.store.sql.queries import for_sqlite, migrations, queries
from antiphon.store.sql.row_mapping import Columns, encode
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.fair_threads import current_tenant
from antiphon.support.file_locks import try_lock

from .file_lock import FileLock, open_lock_file, open_private
from .reserve import Reserve, is_disk_error
from .wal import WalScan, scan_wal

_T = TypeVar("_T")

_log = structlog.get_logger(__name__)

#: Names of the locks of processes that share a database: one for writes, one for sweeps.
_SHARED_LOCKS = _WRITES, _SWEEPS = "writes", "sweeps"
#: Reads that the reader thread has or that wait for it. Tenants share these places fairly. With the
#: second one, the thread need not wait for the event loop after a read.
_READS_IN_TURN = 2
#: Queries that return contents of files.
_CONTENT_QUERIES = frozenset({"content"})
#: Seconds of CPU time after which a transaction takes no further write.
_SLICE_S = 0.02


#: Types of arguments that SQLite stores as they are. For such an argument, sqlite3 looks for an
#: adapter in three places and raises two exceptions internally. A registered adapter avoids this.
_STORED_AS_IS = (bool, bytes, type(None))


class _Job:
    """A job of the thread that reads or of the thread that writes. ``work``: the function that it
    calls. ``done``: the future of the caller, which gets the result."""

    __slots__ = ("error", "future", "result", "work")

    def __init__(
        self, work: Callable[[sqlite3.Connection], Any], done: asyncio.Future[Any]
    ) -> None:
        self.work = work
        self.future = done
        self.result: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        if self.future.done():
            return  # the caller was cancelled
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class _Write(_Job):
    """A queued write. ``then``: a function to call with the result after the commit. ``tenant``:
    for whom it is."""

    __slots__ = ("frees_space", "tenant", "then")

    def __init__(
        self,
        work: Callable[[sqlite3.Connection], Any],
        done: asyncio.Future[Any],
        then: Callable[[Any], None] | None,
        frees_space: bool,
    ) -> None:
        super().__init__(work, done)
        self.then = then
        self.frees_space = frees_space
        self.tenant = current_tenant.get()

    def settle(self) -> None:
        if self.then is not None and self.error is None:
            self.then(self.result)
        super().settle()


class _Reader:
    """A thread that reads. Tenants take turns. ``loop``: the event loop of the callers.
    ``connection``: the thread's connection."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connection: sqlite3.Connection, name: str
    ) -> None:
        self._loop = loop
        #: Work for the thread. None ends the thread.
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._turns = FairLimiter(_READS_IN_TURN)
        self._is_stopped = False
        self._thread = threading.Thread(
            target=self._run_jobs, args=(connection,), name=name, daemon=True
        )
        self.start = self._thread.start
        self.join = self._thread.join

    async def run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Call ``work`` in the thread, and return its result. Raises ``StoreError``."""
        async with self._turns.slot(current_tenant.get()):
            if self._is_stopped:
                raise StoreError("The store is closed.")
            done: asyncio.Future[_T] = self._loop.create_future()
            self._jobs.put(_Job(work, done))
            return await done

    def stop(self) -> None:
        """End the thread after the work that it has."""
        self._is_stopped = True
        self._jobs.put(None)

    def _run_jobs(self, connection: sqlite3.Connection) -> None:
        """Do the queued work until None is read from the queue."""
        with contextlib.closing(connection):
            for job in iter(self._jobs.get, None):
                # A caller that was cancelled no longer has its turn, so others would wait.
                if not job.future.done():
                    _read(connection, job)
                    _call_in(self._loop, job.settle)
                del job  # it holds what was read


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Let the event loop call a function, unless the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


class Database:
    """One database file. This process uses it alone or shares it with other processes. Made by
    ``open``.

    ``loop``: the event loop of the callers. ``lock``: the open lock file. While this process has
    the lock on this file, no other process can open the database for itself alone. ``writer``,
    ``reader``, ``content_reader``: connections of the three threads. ``shared_locks``: name → lock.
    One lock ensures that only one process at a time writes. The other ensures that only one process
    at a time sweeps (deletes old data). The mapping is empty if this process uses the database
    alone. ``reserve``: the disk space that is kept for deletions. ``is_encrypted``: whether
    rows are encrypted.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lock: IO[bytes],
        writer: sqlite3.Connection,
        reader: sqlite3.Connection,
        content_reader: sqlite3.Connection,
        shared_locks: Mapping[str, FileLock],
        reserve: Reserve,
        is_encrypted: bool,
    ) -> None:
        self._loop = loop
        #: Whether rows are encrypted before they reach SQLite.
        self.is_encrypted = is_encrypted
        self._lock = lock
        self._shared_locks = shared_locks
        self._write_lock: FileLock | threading.Lock = shared_locks.get(_WRITES) or threading.Lock()
        self._sweep_lock = shared_locks.get(_SWEEPS)
        self.queries: Mapping[str, str] = queries(__package__, for_sqlite)
        #: Writes for the writer thread. None ends the thread.
        self._writes: queue.SimpleQueue[list[_Write] | None] = queue.SimpleQueue()
        #: Writes that are not yet passed to the writer thread.
        self._new_writes: list[_Write] = []
        self._close_task: asyncio.Future[None] | None = None
        self._reader = _Reader(loop, reader, "sqlite-read")
        #: Reads contents of files. It takes long, and no other read waits for it.
        self._content_reader = _Reader(loop, content_reader, "sqlite-read-content")
        self._write_thread = threading.Thread(
            target=self._write_loop, args=(writer,), name="sqlite-write", daemon=True
        )
        self._reserve = reserve
        #: Number of commits so far.
        self.commits = 0

    @classmethod
    async def open(
        cls, path: Path, *, is_shared: bool = False, cipher: RowCipher | None = None
    ) -> Database:
        """Open or create the database. ``is_shared``: other processes may open it too, if they also
        set ``is_shared``. ``cipher``: encrypts and decrypts the rows; None if they are not
        encrypted.

        Raises ``SetupError`` in these cases:

        - Another process has opened the database, and one of the two processes did not set
          ``is_shared``.
        - The folder is not writable.
        - The file is not a database, or a newer version of Antiphon has written it.
        """
        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(cls._open, loop, path, is_shared, cipher)

    @classmethod
    def _open(
        cls,
        loop: asyncio.AbstractEventLoop,
        path: Path,
        is_shared: bool,
        cipher: RowCipher | None,
    ) -> Database:
        for kind in _STORED_AS_IS:
            sqlite3.register_adapter(kind, _as_is)
        sqlite3.register_adapter(list, _json_list)
        with contextlib.ExitStack() as opened:  # closes everything if a step fails
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                lock = opened.enter_context(_acquire_file_lock(path, is_shared=is_shared))
                # On a full disk, SQLite needs space to open the database.
                reserve = Reserve(path)
                opened.callback(reserve.fill)
                reserve.release()
                wal = None if is_shared else scan_wal(path)
                writer = opened.enter_context(contextlib.closing(_connect(path, cipher)))
                if wal is not None:
                    _report_damage(wal, writer, path)
                _migrate(writer, path)
                reader = opened.enter_context(contextlib.closing(_connect(path, cipher)))
                contents = opened.enter_context(contextlib.closing(_connect(path, cipher)))
                locks = [FileLock(path, name) for name in _SHARED_LOCKS if is_shared]
            except OSError as error:
                raise SetupError(f"The store {path} cannot be opened: {error.strerror}.") from None
            except sqlite3.Error as error:
                raise SetupError(f"The store {path} cannot be used: {error}.") from None
            opened.pop_all()
        shared_locks = dict(zip(_SHARED_LOCKS, locks, strict=False))
        reserve.fill()
        page_size = writer.execute("PRAGMA page_size").fetchone()[0]
        writer.execute(f"PRAGMA wal_autocheckpoint = {max(1, reserve.log_bytes // page_size)}")
        store = cls(
            loop,
            lock,
            writer,
            reader,
            contents,
            shared_locks,
            reserve,
            cipher is not None and cipher.encrypts,
        )
        store._write_thread.start()
        store._reader.start()
        store._content_reader.start()
        return store

    def check_open(self) -> None:
        """Raise ``StoreError`` if the database is closed."""
        if self._close_task is not None:
            raise StoreError("The store is closed.")

    async def close(self) -> None:
        if self._close_task is None:
            self._queue_writes()
            self._writes.put(None)
            self._reader.stop()
            self._content_reader.stop()
            self._close_task = self._loop.run_in_executor(None, self._close)
        await asyncio.shield(self._close_task)  # a cancelled caller does not cancel closing

    def _close(self) -> None:
        self._write_thread.join()
        self._reader.join()
        self._content_reader.join()
        for lock in self._shared_locks.values():
            lock.close()
        self._lock.close()

    @contextlib.contextmanager
    def sweep_lock(self) -> Iterator[bool]:
        """Context manager for a sweep. Yields False if another process is sweeping the database.
        Otherwise yields True, and no other process can begin a sweep before the end of the
        block."""
        if self._sweep_lock is None:
            yield True
            return
        is_free = self._sweep_lock.try_acquire()
        try:
            yield is_free
        finally:
            if is_free:
                self._sweep_lock.release()

    # --- reading ---------------------------------------------------------------------------------

    async def rows(
        self, name: str, arguments: Columns, decode: Callable[[Columns], _T]
    ) -> list[_T]:
        """Run the query with this name, decode each row, and return the decoded values. Rows are
        decoded in the reader thread, so a long result does not block the event loop."""
        query = self.queries[name]
        reader = self._content_reader if name in _CONTENT_QUERIES else self._reader
        self.check_open()
        return await reader.run(
            lambda connection: [decode(row) for row in connection.execute(query, arguments)]
        )

    async def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run ``work`` in the reader thread and return its result. All statements of ``work`` see
        the same state of the database, even if writes are committed meanwhile."""

        def read_in_transaction(connection: sqlite3.Connection) -> _T:
            connection.execute("BEGIN")
            try:
                return work(connection)
            finally:
                connection.rollback()  # nothing was written

        self.check_open()
        return await self._reader.run(read_in_transaction)

    async def compact(self) -> None:
        """Write the database again without the space that is free, which may contain deleted
        data. Raises ``StoreError``."""

        def work(connection: sqlite3.Connection) -> None:
            # The copy of the whole database may be larger than the memory.
            connection.execute("PRAGMA temp_store=FILE")
            try:
                connection.execute("VACUUM")
            finally:
                connection.execute("PRAGMA temp_store=MEMORY")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        self.check_open()
        await self._content_reader.run(work)

    # --- writing ---------------------------------------------------------------------------------

    async def write(
        self,
        work: Callable[[sqlite3.Connection], _T],
        *,
        then: Callable[[_T], None] | None = None,
        frees_space: bool = False,
    ) -> _T:
        """Run ``work`` in the writer thread, as part of one transaction. Return its result after
        the commit.

        ``then``: called on the event loop with the result. It is called even if the caller was
        cancelled, because subscribers must be notified of committed data. It must not raise.
        ``frees_space``: whether ``work`` deletes data, so that it may use the reserve of a full
        disk. Raises ``StoreError``.
        """
        self.check_open()
        done: asyncio.Future[_T] = self._loop.create_future()
        if not self._new_writes:  # writes of one iteration of the event loop share a commit
            self._loop.call_soon(self._queue_writes)
        self._new_writes.append(_Write(work, done, then, frees_space))
        return await done

    def _queue_writes(self) -> None:
        if self._new_writes:
            self._writes.put(self._new_writes)
            self._new_writes = []

    def _write_loop(self, connection: sqlite3.Connection) -> None:
        """Commit the queued writes until None is read from the queue. Writes that are queued at the
        same time share a commit. Runs in the writer thread."""
        with contextlib.closing(connection):
            while (group := self._writes.get()) is not None:
                while group:
                    while not self._writes.empty():
                        if (more := self._writes.get()) is None:
                            self._writes.put(None)  # ends the outer loop
                            break
                        group += more
                    if len(group) > 1:
                        group = _in_turns(group)
                    count = self._commit(connection, group)
                    _call_in(self._loop, partial(_settle_writes, group[:count]))
                    group = group[count:]

    def _commit(
        self, connection: sqlite3.Connection, group: list[_Write], *, is_retry: bool = False
    ) -> int:
        """Commit the first writes of a group. Return how many."""
        try:
            return self._run_transaction(connection, group)
        except Exception as error:  # also TypeError, for a value that SQLite cannot store
            if len(group) == 1:
                obstacle = self._reserve.obstacle(error)
                if obstacle == DISK_FULL and not is_retry:
                    self._commit_on_full_disk(connection, group[0])
                    return 1
                cause = f": {obstacle}" if obstacle else ""
                if isinstance(error, StoreError):
                    group[0].error = error
                    return 1
                failure = StoreError(f"The store could not be written{cause}.")
                failure.__cause__ = error
                _log_damage(error)
                group[0].error = failure
                return 1
            for job in group:  # retry one by one: only the failing write gets an error
                self._commit(connection, [job])
            return len(group)

    def _commit_on_full_disk(self, connection: sqlite3.Connection, job: _Write) -> None:
        """Try a write again. The reserve is for writes that delete data, and for those whose data
        has room in pages of deleted data, so that only the log needs space."""
        may_use_reserve = job.frees_space or _free_bytes(connection) > self._reserve.bytes
        has_released = may_use_reserve and self._reserve.release()
        # Also before the write: the log may be as long as the reserve.
        _shorten_log(connection)
        if has_released:
            with _without_overwriting(connection):
                self._commit(connection, [job], is_retry=True)
            _shorten_log(connection)
            self._reserve.fill()
        else:
            self._commit(connection, [job], is_retry=True)

    def _run_transaction(self, connection: sqlite3.Connection, group: list[_Write]) -> int:
        """Do the first writes of a group in a transaction. Return how many."""
        with self._write_lock:
            connection.execute("BEGIN IMMEDIATE")
            try:
                end, count = time.thread_time() + _SLICE_S, 0
                while count < len(group) and (not count or time.thread_time() < end):
                    job = group[count]
                    job.result = job.work(connection)
                    count += 1
                connection.execute("COMMIT")
                self.commits += 1
                return count
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


def _in_turns(writes: list[_Write]) -> list[_Write]:
    """Return the writes in an order in which tenants take turns. Those of one tenant stay in their
    order."""
    if all(write.tenant == writes[0].tenant for write in writes):
        return writes
    counts = Counter[str]()
    turns = list[int]()
    for write in writes:
        turns.append(counts[write.tenant])
        counts[write.tenant] += 1
    order = sorted(range(len(writes)), key=turns.__getitem__)
    return [writes[index] for index in order]


def _shorten_log(connection: sqlite3.Connection) -> None:
    """Copy the log into the database, so that the space of the log is free. This fails if the
    database has no free pages and the disk is full."""
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _free_bytes(connection: sqlite3.Connection) -> int:
    """Return the size of the pages that the database file has and does not use."""
    (pages,), (size,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("freelist_count", "page_size")
    )
    return int(pages * size)


@contextlib.contextmanager
def _without_overwriting(connection: sqlite3.Connection) -> Iterator[None]:
    """Context manager in which deleted data is not overwritten with zeros. Some builds of SQLite do
    so, and need as much space in the log as the data has."""
    (before,) = connection.execute("PRAGMA secure_delete").fetchone()
    connection.execute("PRAGMA secure_delete = FAST")
    yield
    connection.execute(f"PRAGMA secure_delete = {('OFF', 'ON', 'FAST')[before]}")


def _as_is(argument: _T) -> _T:
    return argument


def _json_list(values: Iterable[object]) -> str:
    """Return a list as JSON, whose elements SQLite's ``json_each`` reads. Texts with U+0000 are
    left out, because ``json_each`` would cut them there. No column that is compared with the
    elements has such a text."""
    return encode(
        [each for each in values if not (isinstance(each, str) and "\0" in each)]
    ).decode()


def _read(connection: sqlite3.Connection, job: _Job) -> None:
    try:
        job.result = job.work(connection)
    except (sqlite3.Error, msgspec.MsgspecError, UnicodeError) as error:
        _log_damage(error)
        cause = f": {DISK_ERROR}" if is_disk_error(error) else ""
        job.error = StoreError(f"The store could not be read{cause}.")
        job.error.__cause__ = error
    except Exception as error:
        job.error = error


def _settle_writes(jobs: list[_Write]) -> None:
    for job in jobs:
        job.settle()


def _acquire_file_lock(path: Path, *, is_shared: bool) -> IO[bytes]:
    """Lock the database for this process alone, or for all processes that share it. The lock ends
    with the process.

    The lock is on a separate file, because this process must not open and close the database file
    itself: closing it would release the locks that SQLite holds on it.
    """
    lock = open_lock_file(path)
    try:
        if try_lock(lock.fileno(), is_shared=is_shared):
            return lock
    except OSError:
        lock.close()
        raise
    lock.close()
    raise SetupError(
        f"Another process uses the store {path}. SQLite serves one server at a time: stop it, "
        "or give this one a store of its own with --store PATH."
    )


class _SealedConnection(sqlite3.Connection):
    """A connection that encrypts binary arguments of statements. ``_unseal`` decrypts binary
    columns."""

    cipher: RowCipher

    def execute(self, statement: str, arguments: Any = (), /) -> sqlite3.Cursor:
        return super().execute(statement, self._sealed(arguments))

    def executemany(self, statement: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        return super().executemany(statement, map(self._sealed, rows))

    def _sealed(self, arguments: Columns) -> Columns:
        return tuple(
            self.cipher.seal(value) if isinstance(value, bytes) else value for value in arguments
        )


def _unseal(cipher: RowCipher, _: sqlite3.Cursor, row: Columns) -> Columns:
    """Decrypt the columns of a row that the database returns."""
    return tuple(cipher.unseal(value) if isinstance(value, bytes) else value for value in row)


def _connect(path: Path, cipher: RowCipher | None) -> sqlite3.Connection:
    if not path.exists():
        os.close(open_private(str(path), os.O_WRONLY))
    kind = sqlite3.Connection if cipher is None else _SealedConnection
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=kind)
    if cipher is not None and isinstance(connection, _SealedConnection):
        connection.cipher, connection.row_factory = cipher, partial(_unseal, cipher)
    try:
        for pragma in (
            "journal_mode=WAL",
            "synchronous=NORMAL",
            "foreign_keys=ON",
            "busy_timeout=5000",
            "temp_store=MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _report_damage(wal: WalScan, connection: sqlite3.Connection, path: Path) -> None:
    """Log how many commits SQLite dropped because pages of its write-ahead log (WAL) are damaged.
    ``wal``: the state of the WAL before SQLite read it."""
    _, frames, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    dropped = wal.dropped_commits(frames)
    if dropped or wal.is_damaged:
        _log.error(
            "the write-ahead log of the store is damaged: its last commits are lost",
            store=str(path),
            lost_commits=dropped or None,
        )


def _log_damage(error: Exception) -> None:
    """Log the error if it means that the database itself is damaged."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        _log.error("the store is damaged: restore it from a backup", error=str(error))


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply the migrations that the database does not have yet, each in one transaction."""
    connection.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY)")
    applied = {name for (name,) in connection.execute("SELECT name FROM migrations")}
    known = migrations(__package__, for_sqlite)
    if applied - {name for name, _ in known}:
        raise SetupError(
            f"The store {path} was made by another version of Antiphon. Use that version, or set"
            " another store."
        )
    for name, script in known:
        if name not in applied:
            connection.executescript(
                f"BEGIN;\n{script}\nINSERT INTO migrations VALUES ('{name}');\nCOMMIT;"
            )

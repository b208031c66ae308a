"""The connections of one process to a PostgreSQL database: a connection pool for queries, and one
connection that listens for notifications.

Errors of the database driver are converted into ``StoreError`` or ``SetupError`` here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import ModuleType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec
import structlog

from antiphon.errors import DISK_ERROR, DISK_FULL, SetupError, StoreError, first_line
from antiphon.store.common.row_cipher import RowCipher
from antiphon.store.postgres.connections import DriverConnection, DriverPool
from antiphon.store.sql.executor import index_key
from antiphon.store.sql.queries import migrations, queries
from antiphon.store.sql.row_mapping import Row
from antiphon.support.installation import needs_packages
from antiphon.support.tasks import BackgroundTasks, Backoff

from .connections import Connections
from .table_names import SCHEMA, qualify

_T = TypeVar("_T")

#: A function for each channel, which is called with the payload of each notification.
NoticeHandlers = Mapping[str, Callable[[str], None]]

_log = structlog.get_logger(__name__)

#: Number of the advisory lock for migrations.
_MIGRATION_LOCK = 0x616E7401
_TIMEOUT_S = 30.0
#: Seconds that a table may need to be written again.
_COMPACT_S = 86_400.0
_RETRY_S, _RETRY_MAX_S = 0.1, 5.0
#: Interval of checks that the listening connection is alive.
_PING_S = 10.0
#: Rows with at least this many bytes are decoded in a thread.
_THREAD_BYTES = 1 << 18
#: SQLSTATE → why the machine of the database cannot write.
_OBSTACLES: Mapping[str | None, str] = {"53100": DISK_FULL, "58030": DISK_ERROR}
_CREATE_MIGRATIONS = """
CREATE SCHEMA IF NOT EXISTS antiphon;
CREATE TABLE IF NOT EXISTS antiphon.migrations (name TEXT PRIMARY KEY)
"""


def _without_nul(value: object) -> object:
    """Return an argument of a statement in a form that PostgreSQL accepts: each text with U+0000
    is replaced by its digest, because PostgreSQL has no U+0000 in texts. Such a text is always a
    name or an id, so only equality matters. Texts for people are changed before they come here."""
    if isinstance(value, str):
        return index_key(value) if "\0" in value else value
    if isinstance(value, (list, tuple)) and not (value and isinstance(value[0], (int, float))):
        return [_without_nul(each) for each in value]  # an array, perhaps of texts
    return value


class ConnectionPool:
    """Implements ``Executor`` with the connections of this process to one database. Made by
    ``open``. ``is_pooled``: whether a connection pooler (such as PgBouncer) is between this process
    and the database. ``is_encrypted``: whether rows are encrypted before they reach the
    database."""

    def __init__(
        self,
        driver: ModuleType,
        pool: DriverPool,
        url: str,
        *,
        is_pooled: bool,
        is_encrypted: bool = False,
    ) -> None:
        #: Whether the database may not see contents.
        self.is_encrypted = is_encrypted
        self._driver = driver
        self._connections = Connections(pool, driver.InterfaceError)
        self._url = url
        self._is_pooled = is_pooled
        self._listening = BackgroundTasks("listen")
        self._uncancellable = BackgroundTasks("operation of the store")
        #: A queue is kept only as long as a call holds it or waits for it.
        self._tenant_queues: WeakValueDictionary[tuple[str, str], asyncio.Lock] = (
            WeakValueDictionary()
        )
        self._operations = _Operations(driver)
        scripts = (script for _, script in migrations(__package__))
        self.queries: Mapping[str, str] = qualify(queries(__package__), scripts)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        connections: int = 10,
        listen_url: str | None = None,
        cipher: RowCipher | None = None,
    ) -> ConnectionPool:
        """Connect and apply migrations. Several processes may do this at the same time.
        ``connections``: the maximum number of connections in the pool. ``listen_url``: another URL
        of the same database, at which notifications can be received. It is needed if ``url`` leads
        to a connection pooler. ``cipher``: encrypts and decrypts the rows; None if they are not
        encrypted. Raises ``SetupError``."""
        with needs_packages("The client of PostgreSQL is not installed", "postgres"):
            import asyncpg
        address = _address(url)
        pool: DriverPool | None = None
        try:
            pool = await asyncpg.create_pool(
                url,
                min_size=1,
                max_size=connections,
                command_timeout=_TIMEOUT_S,
                timeout=_TIMEOUT_S,
                init=_initializer(cipher, is_pooled=listen_url is not None),
                reset=_skip_reset,
                server_settings={"application_name": "antiphon"},
            )
            connection = await pool.acquire()
            await _migrate(connection, address)
            await pool.release(connection)
        except BaseException as error:
            if pool is not None:
                pool.terminate()
            if isinstance(error, ValueError) and not isinstance(error, asyncpg.InterfaceError):
                # The driver's message may quote a part of the password.
                raise SetupError(f"PostgreSQL{address} cannot be used: invalid URL.") from None
            if isinstance(error, (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                raise SetupError(
                    f"PostgreSQL{address} cannot be used: {_error_line(error)}"
                ) from None
            raise
        return cls(
            asyncpg,
            pool,
            listen_url or url,
            is_pooled=listen_url is not None,
            is_encrypted=cipher is not None and cipher.encrypts,
        )

    # --- queries ---------------------------------------------------------------------------------

    async def rows(self, name: str, *arguments: object) -> list[Row]:
        with self._operations:
            async with self._connections.use() as connection:
                found: list[Row] = await connection.fetch(
                    self.queries[name], *map(_without_nul, arguments)
                )
            return found

    async def decoded_rows(
        self, decode: Callable[[Row], _T], name: str, *arguments: object
    ) -> list[_T]:
        return await self.decode(decode, await self.rows(name, *arguments))

    async def decode(self, decode: Callable[[Row], _T], rows: Sequence[Row]) -> list[_T]:
        """Decode rows. Large rows are decoded in a thread, so they do not block the event loop.
        Raises ``StoreError``."""
        weight = sum(len(value) for row in rows for value in row if isinstance(value, bytes))

        def work() -> list[_T]:
            return [decode(row) for row in rows]

        try:
            return await asyncio.to_thread(work) if weight > _THREAD_BYTES else work()
        except msgspec.MsgspecError as error:
            raise StoreError("The store could not be read.") from error

    async def change(self, name: str, *arguments: object, frees_space: bool = False) -> int:
        with self._operations:
            async with self._connections.use() as connection:
                return await _change(connection, self.queries[name], arguments)

    async def change_many(self, name: str, rows: Sequence[Row]) -> None:
        with self._operations:
            async with self._connections.use() as connection:
                await _execute_many(connection, self.queries[name], rows)

    async def write(
        self,
        work: Callable[[Transaction], Coroutine[object, None, _T]],
        *,
        alone: tuple[str, str] | None = None,
        frees_space: bool = False,
        then: Callable[[_T], None] | None = None,
    ) -> _T:
        async def commit() -> _T:
            context = self.transaction() if alone is None else self.tenant_transaction(*alone)
            async with context as transaction:
                result = await work(transaction)
            if then is not None:
                then(result)
            return result

        return await (commit() if then is None else self.run_to_completion(commit()))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Context manager for a transaction, which is committed at the end of the block."""
        with self._operations:
            async with self._connections.use() as connection, connection.transaction():
                yield Transaction(connection, self.queries, is_pooled=self._is_pooled)

    async def compact(self, table: str) -> None:
        """Write a table again without the space that is free, which may contain deleted data."""
        with self._operations:
            async with self._connections.use() as connection:
                await connection.execute(f"VACUUM FULL {table}", timeout=_COMPACT_S)

    @asynccontextmanager
    async def tenant_transaction(self, lock: str, tenant: str) -> AsyncIterator[Transaction]:
        """Context manager for a transaction that holds a lock of a tenant. ``lock``: the name of
        the lock, which the query "lock_" with this name takes.

        Transactions of this process that need the same lock of the same tenant wait in a queue.
        While they wait, they occupy no database connection.
        """
        queue = self._tenant_queues.get((lock, tenant))
        if queue is None:
            queue = self._tenant_queues[lock, tenant] = asyncio.Lock()
        async with queue, self.transaction() as transaction:
            await transaction.rows(f"lock_{lock}", tenant)
            yield transaction

    async def run_to_completion(self, work: Coroutine[object, None, _T]) -> _T:
        """Run ``work`` to its end even if the caller is cancelled. This is needed, for example, if
        ``work`` commits data and then notifies subscribers."""
        return await self._uncancellable.finish(work)

    def start(self, work: Coroutine[object, None, _T]) -> asyncio.Task[_T]:
        """Start ``work`` as a task. ``close`` waits for the task."""
        return self._uncancellable.start(work)

    # --- listening -------------------------------------------------------------------------------

    def listen(self, handlers: NoticeHandlers, on_gap: Callable[[], None]) -> None:
        """Listen to channels from now on, and reconnect after outages.

        ``handlers``: for each channel, a function that is called with the payload of each
        notification. ``on_gap``: called when notifications may have been missed.
        """
        if self._operations.is_closed:
            return
        self._listening.start(self._listen_loop(handlers, on_gap))

    async def _listen_loop(self, handlers: NoticeHandlers, on_gap: Callable[[], None]) -> None:
        backoff = Backoff(_RETRY_S, _RETRY_MAX_S)

        def on_connected() -> None:
            backoff.reset()
            on_gap()  # notifications sent before the connection was open are lost

        while True:
            try:
                await self._listen_once(handlers, on_connected)
            except (
                self._driver.PostgresError,
                self._driver.InterfaceError,
                self._driver.InternalClientError,
                OSError,
            ) as error:
                _log.warning("notifications cannot be received", error=_error_line(error))
            await backoff.pause()

    async def _listen_once(
        self, handlers: NoticeHandlers, on_connected: Callable[[], None]
    ) -> None:
        """Connect to the database, and receive notifications until the connection is lost."""
        connection = await self._driver.connect(
            self._url, timeout=_TIMEOUT_S, command_timeout=_PING_S
        )
        lost = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            for channel in handlers:
                await connection.add_listener(
                    channel, lambda *notice: handlers[notice[2]](notice[3])
                )
            on_connected()
            while not lost.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PING_S):
                        await lost.wait()
                if not lost.is_set():  # detects a peer that vanished without closing
                    await connection.execute("SELECT 1")
        finally:
            with suppress(Exception):
                await connection.close(timeout=1)

    async def close(self) -> None:
        """Close the pool after its pending operations have finished. Later calls raise
        ``StoreError``."""
        await self._uncancellable.wait(_TIMEOUT_S)  # tasks that may not have started yet
        if self._operations.is_closed:
            return
        self._operations.is_closed = True
        await self._listening.close()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._operations.wait_until_ended()
                await self._connections.close()
        except TimeoutError:
            self._connections.terminate()


class _Operations:
    """Context manager around each operation of a pool. Counts the operations, and raises errors of
    the driver as ``StoreError``. ``driver``: the package asyncpg."""

    def __init__(self, driver: ModuleType) -> None:
        self._errors = (
            driver.PostgresError,
            driver.InterfaceError,
            driver.InternalClientError,
            OSError,
            UnicodeError,
        )
        self._active_count = 0
        self._all_ended = asyncio.Event()
        #: Whether no further operation may begin.
        self.is_closed = False

    def __enter__(self) -> None:
        if self.is_closed:
            raise StoreError("The store is closed.")
        self._active_count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        self._active_count -= 1
        if self.is_closed and not self._active_count:
            self._all_ended.set()
        if isinstance(error, self._errors):
            obstacle = _OBSTACLES.get(getattr(error, "sqlstate", None))
            problem = f"could not be written: {obstacle}" if obstacle else "does not answer"
            raise StoreError(f"The store {problem}.") from error

    async def wait_until_ended(self) -> None:
        """Wait until all operations have ended. The caller must have set ``is_closed``, so no
        further operation begins."""
        if self._active_count:
            await self._all_ended.wait()


class Transaction:
    """Implements ``SqlTransaction`` with a connection. ``queries``: name of a query → its SQL text,
    in which the table names contain the schema. ``is_pooled``: whether a connection pooler is
    between this process and the database. If a pooler is used, no search path is set for the
    session, because the pooler may share the session with other clients."""

    def __init__(
        self, connection: DriverConnection, queries: Mapping[str, str], *, is_pooled: bool
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._is_pooled = is_pooled

    async def use_schema(self) -> None:
        """Set the search path for this transaction, if the session has none. Statements that are
        not one of the named queries need a search path to find the tables."""
        if self._is_pooled:
            await self.execute(f"SET LOCAL search_path TO {SCHEMA}")

    async def rows(self, name: str, *arguments: object) -> list[Row]:
        return await self.fetch(self._queries[name], *arguments)

    async def execute(self, statement: str, *, timeout_s: float | None = None) -> None:
        """Execute an SQL text, which may contain several statements. The text need not be one of
        the named queries. ``timeout_s``: time limit in seconds; None means the usual limit."""
        await self._connection.execute(statement, timeout=timeout_s)

    async def execute_many(self, statement: str, rows: Sequence[Row]) -> None:
        """Execute an SQL statement once for each row of arguments. The statement need not be one of
        the named queries."""
        await _execute_many(self._connection, statement, rows)

    async def fetch(self, statement: str, *arguments: object) -> list[Row]:
        """Run an SQL statement, and return its rows. The statement need not be one of the named
        queries."""
        found: list[Row] = await self._connection.fetch(statement, *map(_without_nul, arguments))
        return found

    async def change(self, name: str, *arguments: object) -> int:
        return await _change(self._connection, self._queries[name], arguments)

    async def change_many(self, name: str, rows: Sequence[Row]) -> None:
        await self.execute_many(self._queries[name], rows)

    async def insert(self, name: str, *arguments: object) -> int:
        return int(await self.value(name, *arguments))

    async def value(self, name: str, *arguments: object) -> Any:
        return await self._connection.fetchval(self._queries[name], *map(_without_nul, arguments))


async def _execute_many(connection: DriverConnection, statement: str, rows: Sequence[Row]) -> None:
    if rows:
        await connection.executemany(statement, [tuple(map(_without_nul, row)) for row in rows])


async def _change(connection: DriverConnection, query: str, arguments: Sequence[object]) -> int:
    """Execute a query, and return the number of rows that it changes. It is the last word of the
    answer, such as "DELETE 3"."""
    done = await connection.execute(query, *map(_without_nul, arguments))
    return int(done.rpartition(" ")[2])


def _initializer(
    cipher: RowCipher | None, *, is_pooled: bool
) -> Callable[[DriverConnection], Awaitable[None]]:
    """Return a function that prepares a new connection.

    It sets the search path, because statements that are not in the file of named queries need it to
    find the tables. If a connection pooler is used, ``Transaction.use_schema`` sets the search path
    instead. With a cipher, all binary columns are encrypted and decrypted.
    """

    async def initialize(connection: DriverConnection) -> None:
        if not is_pooled:
            await connection.execute(f"SET search_path TO {SCHEMA}")
        if cipher is not None:
            await connection.set_type_codec(
                "bytea",
                schema="pg_catalog",
                format="binary",
                encoder=lambda value: bytes(cipher.seal(value)),
                decoder=lambda value: cipher.unseal(bytes(value)),
            )

    return initialize


async def _skip_reset(connection: DriverConnection) -> None:
    """Do nothing. Called when a connection goes back to the pool. A reset is not needed, because
    the state of the connection was not changed."""


async def _migrate(connection: DriverConnection, address: str) -> None:
    """Apply new migrations in one transaction. Only one process at a time does this."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
        if not await connection.fetchval("SELECT to_regclass('antiphon.migrations')::oid"):
            await connection.execute(_CREATE_MIGRATIONS)
        await connection.execute(f"SET LOCAL search_path TO {SCHEMA}")
        applied = {row[0] for row in await connection.fetch("SELECT name FROM migrations")}
        known = migrations(__package__)
        if applied - {name for name, _ in known}:
            raise SetupError(
                f"PostgreSQL{address} was used by another version of Antiphon. Use that version,"
                " or another database."
            )
        for name, script in known:
            if name not in applied:
                await connection.execute(script)
                await connection.execute("INSERT INTO migrations VALUES ($1)", name)


def _address(url: str) -> str:
    """Return the address of the database without user and password. Returns "" if the password
    cannot be separated from the rest of the URL."""
    rest = url.partition("://")[2]
    address, at, _ = rest.partition("?")
    if at and "@" in rest.rpartition("?")[2]:
        return ""
    return " at " + (address.rpartition("@")[2] or "localhost")


def _error_line(error: BaseException) -> str:
    return first_line(error).rstrip(".") + "."

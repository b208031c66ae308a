"""A PostgreSQL database as an event loop uses it: a pool of connections, and one that listens.

Errors of the driver become ours here; nothing above knows it. It knows no tables but the one of the
migrations.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import structlog

from antiphon.errors import RunError, SetupError

from .sql import migrations, queries

__all__ = ["Cluster", "Transaction", "key"]

_log = structlog.get_logger(__name__)

#: Held while migrations are applied, and while a sweep runs.
_MIGRATING, _SWEEPING = 0x616E7401, 0x616E7402
_CHANNEL = "antiphon"
_TIMEOUT_S = 30.0
_RETRY_S, _RETRY_MAX_S = 0.1, 5.0


def key(text: str) -> str:
    """A text that PostgreSQL takes: it has no U+0000, which ids of clients may."""
    return text.replace("\0", "\ufffd")


class Cluster:
    """One database, for this process. Made by ``open``; ``heard`` is told what others notify, and
    ``deaf`` that something may have been missed."""

    def __init__(self, driver: Any, pool: Any, url: str) -> None:
        self._driver = driver
        self._pool = pool
        self._url = url
        self._listening: asyncio.Task[None] | None = None
        self._closed = False
        self._begun = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.queries: Mapping[str, str] = queries("postgres.sql")

    @classmethod
    async def open(cls, url: str, *, connections: int = 10) -> Cluster:
        """Connect and bring the tables up to date; several processes may do so at once. Raises
        ``SetupError``."""
        try:
            import asyncpg
        except ImportError:
            raise SetupError(
                'PostgreSQL needs an extra: pip install "antiphon[postgres]".'
            ) from None
        place = _place(url)
        try:
            pool = await asyncpg.create_pool(
                url,
                min_size=1,
                max_size=connections,
                command_timeout=_TIMEOUT_S,
                timeout=_TIMEOUT_S,
                server_settings={"application_name": "antiphon"},
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, ValueError) as error:
            raise SetupError(f"PostgreSQL at {place} cannot be used: {_line(error)}") from None
        cluster = cls(asyncpg, pool, url)
        try:
            await cluster._migrate(place)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            await pool.close()
            raise SetupError(f"PostgreSQL at {place} cannot be used: {_line(error)}") from None
        except BaseException:
            await pool.close()
            raise
        return cluster

    # --- asking ----------------------------------------------------------------------------------

    async def rows(self, name: str, *arguments: Any) -> list[Any]:
        """The rows of a query."""
        with self._translated():
            found: list[Any] = await self._pool.fetch(self.queries[name], *arguments)
            return found

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """All or nothing."""
        with self._translated():
            async with self._pool.acquire() as connection, connection.transaction():
                yield Transaction(connection, self.queries)

    async def only_one(self, inside: Transaction) -> bool:
        """Whether this transaction is the one that sweeps, of all processes."""
        return bool(await inside.value_of("SELECT pg_try_advisory_xact_lock($1)", _SWEEPING))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        if self._closed:
            raise RunError("The store is closed.")
        self._begun += 1
        self._idle.clear()
        try:
            yield
        except (
            self._driver.PostgresError,
            self._driver.InterfaceError,
            OSError,
            TimeoutError,
        ) as error:
            raise RunError("The store does not answer.") from error
        finally:
            self._begun -= 1
            if not self._begun:
                self._idle.set()

    # --- listening -------------------------------------------------------------------------------

    def listen(self, heard: Callable[[str], None], deaf: Callable[[], None]) -> None:
        """From now on, through outages."""
        self._listening = asyncio.create_task(self._listen_on(heard, deaf), name="listen")

    async def _listen_on(self, heard: Callable[[str], None], deaf: Callable[[], None]) -> None:
        wait = _RETRY_S
        while True:
            try:
                await self._listen_once(heard, deaf)
                wait = _RETRY_S
            except (self._driver.PostgresError, self._driver.InterfaceError, OSError) as error:
                _log.warning("notices of other processes are not heard", error=_line(error))
            await asyncio.sleep(wait)
            wait = min(2 * wait, _RETRY_MAX_S)

    async def _listen_once(self, heard: Callable[[str], None], deaf: Callable[[], None]) -> None:
        """Until the connection is lost."""
        connection = await self._driver.connect(self._url, timeout=_TIMEOUT_S)
        lost = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(_CHANNEL, lambda *notice: heard(notice[3]))
            deaf()  # what was said before was said to nobody
            await lost.wait()
        finally:
            with suppress(Exception):
                await connection.close(timeout=1)

    # --- coming and going ------------------------------------------------------------------------

    async def _migrate(self, place: str) -> None:
        async with self._pool.acquire() as connection:
            await connection.execute("SELECT pg_advisory_lock($1)", _MIGRATING)
            try:
                await connection.execute(
                    "CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY)"
                )
                applied = {row[0] for row in await connection.fetch("SELECT name FROM migrations")}
                known = migrations("postgres_migrations")
                if applied - {name for name, _ in known}:
                    raise SetupError(
                        f"PostgreSQL at {place} was used by a newer version of Antiphon."
                    )
                for name, script in known:
                    if name not in applied:
                        async with connection.transaction():
                            await connection.execute(script)
                            await connection.execute("INSERT INTO migrations VALUES ($1)", name)
            finally:
                await connection.execute("SELECT pg_advisory_unlock($1)", _MIGRATING)

    async def close(self) -> None:
        """Finish what was begun; later calls raise."""
        if self._closed:
            return
        self._closed = True
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait((self._listening,))
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._idle.wait()
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()


class Transaction:
    """A connection inside a transaction."""

    def __init__(self, connection: Any, named: Mapping[str, str]) -> None:
        self._connection = connection
        self._queries = named

    async def rows(self, name: str, *arguments: Any) -> list[Any]:
        """The rows of a query."""
        found: list[Any] = await self._connection.fetch(self._queries[name], *arguments)
        return found

    async def value(self, name: str, *arguments: Any) -> Any:
        """The first column of its first row, or None."""
        return await self._connection.fetchval(self._queries[name], *arguments)

    def value_of(self, query: str, *arguments: Any) -> Awaitable[Any]:
        """The same of a query that has no name."""
        found: Awaitable[Any] = self._connection.fetchval(query, *arguments)
        return found


def _place(url: str) -> str:
    """Where the database is, without who asks and how they prove it."""
    parts = urlsplit(url)
    return (parts.netloc.rpartition("@")[2] or "localhost") + parts.path


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".") + "."

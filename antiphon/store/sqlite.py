"""The store on disk: SQLite in WAL mode, one thread that writes, one that reads.

Writes that arrive while a commit runs share the next one; the first never waits. With
``synchronous=NORMAL`` a commit is in the operating system's hands when it returns: a killed process
loses nothing and corrupts nothing; a power cut may lose the last moments, never the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
from msgspec.structs import replace

from antiphon.errors import RunError, SetupError
from antiphon.wire.conversations import Conversation
from antiphon.wire.items import Item
from antiphon.wire.response import Response

from .base import Retention, StoredResponse, TurnTokens
from .sql import migrations, queries

__all__ = ["SqliteStore"]

_T = TypeVar("_T")
_encode = msgspec.json.Encoder().encode
_decode_response = msgspec.json.Decoder(Response).decode
_decode_conversation = msgspec.json.Decoder(Conversation).decode
_decode_item = msgspec.json.Decoder(Item).decode
_decode_items = msgspec.json.Decoder(tuple[Item, ...]).decode

#: Rows looked at in one step of a sweep.
_SWEEP = 500


class _Job:
    """One write and who waits for it."""

    __slots__ = ("done", "error", "loop", "result", "work")

    def __init__(
        self,
        work: Callable[[sqlite3.Connection], Any],
        loop: asyncio.AbstractEventLoop,
        done: asyncio.Future[Any],
    ) -> None:
        self.work = work
        self.loop = loop
        self.done = done
        self.result: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        if self.done.done():
            return  # nobody waits any more
        if self.error is None:
            self.done.set_result(self.result)
        else:
            self.done.set_exception(self.error)


class SqliteStore:
    """``Store`` over one database file. Made by ``open``."""

    def __init__(
        self, lock: IO[bytes], writer: sqlite3.Connection, reader: sqlite3.Connection
    ) -> None:
        self._lock = lock
        self._queries: Mapping[str, str] = queries()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._ended: asyncio.Future[None] | None = None
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="sqlite-read")
        self._reader = reader
        self._writer = threading.Thread(
            target=self._write_on, args=(writer,), name="sqlite-write", daemon=True
        )
        #: How many commits there were; writes that share one count once.
        self.commits = 0

    @classmethod
    async def open(cls, path: Path) -> SqliteStore:
        """Open or make the database. Raises ``SetupError``: another process has it, the folder
        cannot be written, the file is no database or of a newer version."""
        return await asyncio.to_thread(cls._opened, path)

    @classmethod
    def _opened(cls, path: Path) -> SqliteStore:
        with contextlib.ExitStack() as opened:  # what was opened before a failure is closed again
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                lock = opened.enter_context(_locked(path))
                writer = opened.enter_context(contextlib.closing(_connected(path)))
                _migrate(writer, path)
                reader = opened.enter_context(contextlib.closing(_connected(path)))
            except OSError as error:
                raise SetupError(f"The store {path} cannot be opened: {error.strerror}.") from None
            except sqlite3.Error as error:
                raise SetupError(f"The store {path} cannot be used: {error}.") from None
            opened.pop_all()
        store = cls(lock, writer, reader)
        store._writer.start()
        return store

    # --- the contract ----------------------------------------------------------------------------

    async def save(
        self, tenant: str, stored: StoredResponse, *, conversation: str | None = None
    ) -> None:
        response = stored.response
        body = _encode(replace(response, output=()))
        input_, output = _encode(stored.input), _encode(response.output)
        tokens = stored.tokens
        packed = tokens.ids if tokens is not None else b""
        row = (
            tenant,
            response.id,
            response.previous_response_id,
            response.created_at,
            len(body) + len(input_) + len(output) + len(packed),
            body,
            input_,
            output,
            tokens.base if tokens is not None else None,
            packed if tokens is not None else None,
            tokens.fingerprint if tokens is not None else None,
        )
        added = (*stored.input, *response.output)
        items = [(tenant, item.id) for item in added]

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(self._queries["save"], row)
            (seq,) = connection.execute(self._queries["row_of"], row[:2]).fetchone()
            connection.execute(self._queries["forget_items"], (seq,))
            connection.executemany(self._queries["save_item"], [(*item, seq) for item in items])
            if conversation is not None:
                self._append(connection, tenant, conversation, added)

        await self._write(work)

    async def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        found = await self._read("load", (tenant, response_id), _stored)
        return found[0] if found else None

    async def chain(self, tenant: str, response_id: str) -> tuple[StoredResponse, ...] | None:
        return tuple(await self._read("chain", (tenant, response_id), _stored)) or None

    async def item(self, tenant: str, item_id: str) -> Item | None:
        held = await self._read("item", (tenant, item_id), _both)
        if not held:
            talked = await self._read("conversation_item", (tenant, item_id), _item)
            return talked[0] if talked else None
        return next(item for item in held[0] if item.id == item_id)

    async def delete(self, tenant: str, response_id: str) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            row = connection.execute(self._queries["row_of"], (tenant, response_id)).fetchone()
            if row is None or not connection.execute(self._queries["bury"], row).rowcount:
                return False
            self._free(connection, row[0])
            return True

        return await self._write(work)

    async def sweep(self, retention: Retention, now: int) -> int:
        expired = 0
        while True:  # in steps, so that other writes come between them
            step = await self._write(lambda connection: self._sweep(connection, retention, now))
            expired += step
            if step < _SWEEP:
                return expired

    async def put_conversation(
        self, tenant: str, conversation: Conversation, items: tuple[Item, ...] = ()
    ) -> None:
        row = (tenant, conversation.id, _encode(conversation))

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(self._queries["put_conversation"], row)
            self._append(connection, tenant, conversation.id, items)

        await self._write(work)

    async def conversation(self, tenant: str, conversation_id: str) -> Conversation | None:
        found = await self._read("conversation", (tenant, conversation_id), _conversation)
        return found[0] if found else None

    async def drop_conversation(self, tenant: str, conversation_id: str) -> bool:
        query, key = self._queries["drop_conversation"], (tenant, conversation_id)
        return await self._write(lambda connection: connection.execute(query, key).rowcount > 0)

    async def add_items(self, tenant: str, conversation_id: str, items: tuple[Item, ...]) -> bool:
        return await self._write(
            lambda connection: self._append(connection, tenant, conversation_id, items)
        )

    async def conversation_items(self, tenant: str, conversation_id: str) -> tuple[Item, ...]:
        return tuple(await self._read("conversation_items", (tenant, conversation_id), _item))

    async def remove_item(self, tenant: str, conversation_id: str, item_id: str) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            row = self._row(connection, tenant, conversation_id)
            if row is None:
                return False
            return connection.execute(self._queries["remove_item"], (item_id, row)).rowcount > 0

        return await self._write(work)

    async def close(self) -> None:
        if self._ended is None:
            self._jobs.put(None)
            self._ended = asyncio.get_running_loop().run_in_executor(None, self._end)
        await asyncio.shield(self._ended)  # who stops waiting does not stop it

    def _end(self) -> None:
        self._writer.join()
        self._reading.shutdown()
        self._reader.close()
        self._lock.close()

    # --- reading ---------------------------------------------------------------------------------

    async def _read(
        self, name: str, arguments: tuple[Any, ...], shape: Callable[[tuple[Any, ...]], _T]
    ) -> list[_T]:
        """The rows of a query, shaped where they are read: a long chain is no pause of the loop."""
        if self._ended is not None:
            raise RunError("The store is closed.")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reading, self._fetch, name, arguments, shape)

    def _fetch(
        self, name: str, arguments: tuple[Any, ...], shape: Callable[[tuple[Any, ...]], _T]
    ) -> list[_T]:
        try:
            return [shape(row) for row in self._reader.execute(self._queries[name], arguments)]
        except (sqlite3.Error, msgspec.MsgspecError, UnicodeError) as error:
            raise RunError("The store could not be read.") from error

    # --- writing ---------------------------------------------------------------------------------

    async def _write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        if self._ended is not None:
            raise RunError("The store is closed.")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()
        self._jobs.put(_Job(work, loop, done))
        return await done

    def _write_on(self, connection: sqlite3.Connection) -> None:
        """The writer thread: everything that waits goes into one commit."""
        with contextlib.closing(connection):
            job = self._jobs.get()
            while job is not None:
                group, job = self._group(job)
                self._commit(connection, group)
                for loop in {each.loop for each in group}:
                    mine = [each for each in group if each.loop is loop]
                    with contextlib.suppress(RuntimeError):  # that loop is gone
                        loop.call_soon_threadsafe(_settle, mine)
                if job is _NEXT:
                    job = self._jobs.get()

    def _group(self, first: _Job) -> tuple[list[_Job], _Job | None]:
        """All jobs that are ready, and what comes after them: ``None`` ends the thread."""
        group = [first]
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return group, _NEXT
            if job is None:
                return group, None
            group.append(job)

    def _commit(self, connection: sqlite3.Connection, group: list[_Job]) -> None:
        try:
            self._together(connection, group)
        except Exception as error:  # not only SQLite's: a value that it cannot store is a TypeError
            if len(group) == 1:
                failure = RunError("The store could not be written.")
                failure.__cause__ = error
                group[0].error = failure
                return
            for job in group:  # find the one that fails; the others are not to blame
                self._commit(connection, [job])

    def _together(self, connection: sqlite3.Connection, group: list[_Job]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for job in group:
                job.result = job.work(connection)
            connection.execute("COMMIT")
            self.commits += 1
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _row(self, connection: sqlite3.Connection, tenant: str, conversation: str) -> int | None:
        query = self._queries["conversation_row"]
        row = connection.execute(query, (tenant, conversation)).fetchone()
        return None if row is None else int(row[0])

    def _append(
        self,
        connection: sqlite3.Connection,
        tenant: str,
        conversation: str,
        items: tuple[Item, ...],
    ) -> bool:
        row = self._row(connection, tenant, conversation)
        if row is not None:
            connection.executemany(
                self._queries["add_item"],
                [(row, tenant, item.id, _encode(item)) for item in items],
            )
        return row is not None

    def _free(self, connection: sqlite3.Connection, seq: int) -> int:
        """Drop a row nobody can name and nobody builds on, then its parent likewise. Returns the
        bytes that this freed."""
        freed = 0
        row: tuple[int] | None = (seq,)
        while row is not None:
            gone = connection.execute(self._queries["unneeded"], row).fetchone()
            if gone is None:
                break
            connection.execute(self._queries["free"], row)
            freed += int(gone[0])
            row = connection.execute(self._queries["row_of"], gone[1:]).fetchone()
        return freed

    def _sweep(self, connection: sqlite3.Connection, retention: Retention, now: int) -> int:
        count, size = connection.execute(self._queries["totals"]).fetchone()
        oldest = connection.execute(self._queries["oldest"], (_SWEEP,)).fetchall()
        for expired, (seq, created_at) in enumerate(oldest):
            if not retention.over(age_s=now - created_at, responses=count, bytes=size):
                return expired
            connection.execute(self._queries["bury"], (seq,))
            count -= 1
            size -= self._free(connection, seq)
        return len(oldest)


#: Stands for "wait for the next job".
_NEXT: Any = object()


def _settle(jobs: list[_Job]) -> None:
    for job in jobs:
        job.settle()


def _stored(row: tuple[Any, ...]) -> StoredResponse:
    body, input_, output, base, tokens, fingerprint = row
    return StoredResponse(
        response=replace(_decode_response(body), output=_decode_items(output)),
        input=_decode_items(input_),
        tokens=TurnTokens(base=base, ids=tokens, fingerprint=fingerprint)
        if tokens is not None
        else None,
    )


def _both(row: tuple[Any, ...]) -> tuple[Item, ...]:
    return (*_decode_items(row[0]), *_decode_items(row[1]))


def _item(row: tuple[Any, ...]) -> Item:
    item: Item = _decode_item(row[0])
    return item


def _conversation(row: tuple[Any, ...]) -> Conversation:
    return _decode_conversation(row[0])


def _locked(path: Path) -> IO[bytes]:
    """The file that says whose the database is: the lock goes with the process, however it dies.

    A file beside the database, because to close the database itself would drop SQLite's own locks.
    """
    import fcntl

    # by its real name: two links to one database are one database
    lock = open(f"{path.resolve()}.lock", "wb", opener=_private)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise SetupError(
            f"Another process uses the store {path}. SQLite serves one process at a time."
        ) from None
    except OSError:
        lock.close()
        raise
    return lock


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o600)


def _connected(path: Path) -> sqlite3.Connection:
    if not path.exists():
        os.close(_private(str(path), os.O_WRONLY))
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
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


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply what has not been applied, each migration whole or not at all."""
    connection.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY)")
    applied = {name for (name,) in connection.execute("SELECT name FROM migrations")}
    known = migrations()
    if applied - {name for name, _ in known}:
        raise SetupError(f"The store {path} was made by a newer version of Antiphon.")
    for name, script in known:
        if name not in applied:
            connection.executescript(
                f"BEGIN;\n{script}\nINSERT INTO migrations VALUES ('{name}');\nCOMMIT;"
            )

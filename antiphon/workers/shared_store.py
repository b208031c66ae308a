"""Prepares the store that all worker processes of a server open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from antiphon.errors import SetupError
from antiphon.store import is_postgres


@asynccontextmanager
async def shared_store(url: str) -> AsyncIterator[None]:
    """Context manager that prepares a store for use by several processes. The processes may open
    the store within the ``with`` block.

    An SQLite database is checked and migrated. Records that earlier processes have left in it, such
    as their leases, are deleted. Raises ``SetupError`` if the store cannot be shared, or if another
    server uses it.
    """
    if is_postgres(url):
        yield
        return
    path = url.removeprefix("sqlite:")
    if url == "memory:" or (path == url and "://" in url):
        raise SetupError(
            f"workers: processes cannot share the store {url.partition(':')[0]}: use a SQLite file"
            " or postgresql://…, or set workers to 1"
        )
    from antiphon.store.sqlite.file_lock import FileLock
    from antiphon.store.sqlite.store import SqliteStore

    file = Path(path).expanduser()
    await (await SqliteStore.open(file)).close()  # deletes the records of earlier processes
    lock = FileLock(file, "workers")
    try:
        if not lock.try_acquire():
            raise SetupError(f"Another server uses the store {file}: stop it.")
        yield
    finally:
        lock.close()

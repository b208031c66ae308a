"""Where responses, items and their tokens live, per tenant."""

from __future__ import annotations

from pathlib import Path

from antiphon.errors import SetupError

from .base import Store

__all__ = ["open_store"]


async def open_store(url: str) -> Store:
    """The store a setting names: ``memory:``, ``sqlite:PATH`` or a path, ``postgresql://…``. Raises
    ``SetupError``."""
    if url == "memory:":
        from antiphon.store.memory.store import MemoryStore

        return MemoryStore()
    if url.startswith(("postgresql://", "postgres://")):
        from antiphon.store.postgres.store import PostgresStore

        return await PostgresStore.open(url)
    place = url.removeprefix("sqlite:")
    if not place or (place == url and "://" in url):
        kind = url.partition(":")[0]  # the rest of an address may hold a password
        raise SetupError(
            f"No store is called {kind!r}: name memory:, sqlite:PATH or a path, or postgresql://…"
        )
    from antiphon.store.sqlite.store import SqliteStore

    return await SqliteStore.open(Path(place).expanduser())

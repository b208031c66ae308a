"""Storage of responses, conversations, files, runs and other data. The data of clients is stored
per tenant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from antiphon.errors import SetupError
from antiphon.store.common.row_cipher import check_keys
from antiphon.support.plugins import load_plugin

from .base import Store
from .common.row_cipher import RowCipher

#: Opens a store from its URL. Raises ``SetupError``. Other packages can register a factory for a
#: URL scheme, as an entry point of the group ``antiphon.stores``.
StoreFactory = Callable[[str], Awaitable[Store]]

_ENTRY_POINT_GROUP = "antiphon.stores"
_BUILT_IN = ("memory:", "sqlite:PATH", "a path", "postgresql://…")


def is_postgres(url: str) -> bool:
    """Return whether the store at this URL is a PostgreSQL database."""
    return url.startswith(("postgresql://", "postgres://"))


async def open_store(
    url: str,
    *,
    vectors: Literal["exact", "pgvector"] = "exact",
    peers: Path | None = None,
    connections: int = 10,
    listen_url: str | None = None,
    bus: str | None = None,
    cipher: RowCipher | None = None,
) -> Store:
    """Open the store at a URL: ``memory:`` (a temporary SQLite file), ``sqlite:PATH``, a path, or
    ``postgresql://…``. Raises ``SetupError``.

    - ``vectors``: as in ``PostgresStore.open``. "pgvector" needs a PostgreSQL database.
    - ``peers``: a folder for the sockets of several processes on one host. Without this folder,
      only one process can use an SQLite database. With a PostgreSQL database, the processes use the
      folder to send each other the events of background runs directly, instead of over the database
      or the bus.
    - ``connections``, ``listen_url``, ``bus``: as in ``PostgresStore.open``.
    - ``cipher``: encrypts and decrypts the rows. None if they are not encrypted.
    """
    if vectors == "pgvector" and not is_postgres(url):
        raise SetupError('vectors: "pgvector" needs a store postgresql://…')
    if bus is not None and not is_postgres(url):
        raise SetupError("bus: needs a store postgresql://…")
    if is_postgres(url):
        from antiphon.store.postgres.store import PostgresStore

        store: Store = await PostgresStore.open(
            url,
            connections=connections,
            listen_url=listen_url,
            vectors=vectors,
            bus=bus,
            peers=peers,
            cipher=cipher,
        )
    elif "://" in url and not url.startswith("sqlite:"):
        store = await _open_plugin(url, cipher)
    else:
        store = await _open_sqlite(url, peers, cipher)
    try:
        await check_keys(store, cipher)
    except BaseException:
        await store.close()
        raise
    return store


async def _open_plugin(url: str, cipher: RowCipher | None) -> Store:
    # Only the scheme goes into an error: the rest of a URL may contain a password.
    scheme = url.partition(":")[0]
    factory: StoreFactory = load_plugin(
        _ENTRY_POINT_GROUP, scheme, setting="store", built_in=_BUILT_IN
    )
    if cipher is not None:
        raise SetupError(f"store_encrypted: a store {scheme}: does not encrypt its rows")
    return await factory(url)


async def _open_sqlite(url: str, peers: Path | None, cipher: RowCipher | None) -> Store:
    path = url.removeprefix("sqlite:")
    if not path:
        raise SetupError(f"store: no path is given: use one of {', '.join(_BUILT_IN)}")
    from antiphon.store.sqlite.store import SqliteStore

    if url == "memory:":
        return await SqliteStore.open_temporary(cipher)
    return await SqliteStore.open(Path(path).expanduser(), peers=peers, cipher=cipher)

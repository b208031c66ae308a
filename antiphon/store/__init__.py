"""Storage of responses, conversations, files, runs and other data. The data of clients is stored
per tenant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from antiphon.errors import SetupError
from antiphon.support.plugins import load_plugin

from .base import Store
from .common.row_cipher import RowCipher
from .row_keys import check_keys

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

        opened: Store = await PostgresStore.open(
            url,
            connections=connections,
            listen_url=listen_url,
            vectors=vectors,
            bus=bus,
            peers=peers,
            cipher=cipher,
        )
        return await _checked(opened, cipher)
    path = url.removeprefix("sqlite:")
    if not path:
        raise SetupError(f"store: no path is given: use one of {', '.join(_BUILT_IN)}")
    if path == url and "://" in url:
        # Only the scheme goes into an error: the rest of a URL may contain a password.
        scheme = url.partition(":")[0]
        factory: StoreFactory = load_plugin(
            _ENTRY_POINT_GROUP, scheme, setting="store", built_in=_BUILT_IN
        )
        if cipher is not None:
            raise SetupError(f"store_encrypted: a store {scheme}: does not encrypt its rows")
        return await _checked(await factory(url), cipher)
    from antiphon.store.sqlite.store import SqliteStore

    if url == "memory:":
        opened = await SqliteStore.open_temporary(cipher)
    else:
        opened = await SqliteStore.open(Path(path).expanduser(), peers=peers, cipher=cipher)
    return await _checked(opened, cipher)


async def _checked(store: Store, cipher: RowCipher | None) -> Store:
    """Return a store that was just opened. Closes it if ``check_keys`` raises an error."""
    try:
        await check_keys(store, cipher)
    except BaseException:
        await store.close()
        raise
    return store

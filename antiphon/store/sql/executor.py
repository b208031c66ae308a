"""What the logic of a store needs of an SQL database.

The logic names its queries (see ``queries.py``), and writes by functions that get a
``SqlTransaction``. SQLite calls them in the thread that writes, where no operation waits. In
PostgreSQL they run in the event loop, and each operation waits for the answer of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from hashlib import sha256
from typing import Any, Protocol, TypeVar

from antiphon.store.sql.row_mapping import Columns, Row

_T = TypeVar("_T")

#: Longest id, in characters, that always fits into an index.
_MAX_KEY_CHARS = 512


def index_key(text: str) -> str:
    """Return an id as it is stored in an indexed column. A very long id or an id with U+0000 is
    replaced by its digest, because PostgreSQL cannot index long texts and cannot store U+0000."""
    if len(text) <= _MAX_KEY_CHARS and "\0" not in text:
        return text
    return "sha256 " + sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class SqlTransaction(Protocol):
    """The operations of a transaction. Each of them executes the query with this name. A list among
    the arguments is an array, with which the query compares by ``= ANY``."""

    async def rows(self, name: str, *arguments: object) -> Sequence[Row]:
        """Return the rows that the query finds."""

    async def value(self, name: str, *arguments: object) -> Any:
        """Return the first column of the first row, or None if the query finds no row."""

    async def insert(self, name: str, *arguments: object) -> int:
        """Insert a row, and return the number that the query returns: the row number."""

    async def change(self, name: str, *arguments: object) -> int:
        """Insert, change or delete rows, and return their number."""

    async def change_many(self, name: str, rows: Sequence[Columns]) -> None:
        """Execute the query once for each element of ``rows``, with its arguments."""


#: The transactions of a database.
Tx = TypeVar("Tx", bound=SqlTransaction)
_Tx_co = TypeVar("_Tx_co", bound=SqlTransaction, covariant=True)


class Executor(Protocol[_Tx_co]):
    """Executes the named queries of a store. All methods raise ``StoreError``. ``is_encrypted``:
    whether the database may not see contents."""

    is_encrypted: bool

    async def rows(self, name: str, *arguments: object) -> Sequence[Row]:
        """Return the rows that a query finds."""

    async def decoded_rows(
        self, decode: Callable[[Row], _T], name: str, *arguments: object
    ) -> list[_T]:
        """Return the decoded rows that a query finds."""

    async def change(self, name: str, *arguments: object, frees_space: bool = False) -> int:
        """Execute a query that inserts, changes or deletes rows in a transaction of its own. Return
        the number of these rows. ``frees_space``: as in ``write``."""

    async def change_many(self, name: str, rows: Sequence[Columns]) -> None:
        """Execute a query once for each element of ``rows``, in one transaction."""

    async def write(
        self,
        work: Callable[[_Tx_co], Coroutine[object, None, _T]],
        *,
        alone: tuple[str, str] | None = None,
        frees_space: bool = False,
        then: Callable[[_T], None] | None = None,
    ) -> _T:
        """Run ``work`` in a transaction, and return its result after the commit. ``work`` may run
        again in a new transaction, and waits only for operations of its transaction.

        ``alone``: the name of a lock and a tenant. No other write with the same lock of the same
        tenant runs at the same time. ``frees_space``: whether ``work`` deletes data, so that it may
        use the reserve of a full disk. ``then``: called with the result after the commit, even if
        the caller was cancelled, because subscribers must be notified of committed data.
        """


def first(found: Sequence[_T]) -> _T | None:
    """Return the first row of a query that finds at most one row, or None."""
    return found[0] if found else None

"""The interface of the driver asyncpg, which has no types: what this package uses of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from antiphon.store.sql.row_mapping import Row


class DriverConnection(Protocol):
    """A connection of asyncpg."""

    async def fetch(self, query: str, *arguments: object) -> list[Row]:
        """Run a statement, and return its rows."""

    async def fetchval(self, query: str, *arguments: object) -> Any:
        """Run a statement, and return the first column of its first row, or None."""

    async def execute(self, query: str, *arguments: object, timeout: float | None = None) -> str:
        """Run a statement, or several statements without arguments. Return PostgreSQL's word for
        what was done, such as "DELETE 3"."""

    async def executemany(self, command: str, args: Iterable[Iterable[object]]) -> None:
        """Run a statement once for each element of ``args``."""

    async def set_type_codec(
        self,
        typename: str,
        *,
        schema: str,
        format: str,
        encoder: Callable[[Any], bytes],
        decoder: Callable[[bytes], bytes],
    ) -> None:
        """Convert all values of a type with these functions, in arrays, too."""

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager for a transaction."""

    def is_closed(self) -> bool:
        """Whether the connection is closed."""

    def add_termination_listener(self, callback: Callable[[DriverConnection], None]) -> None:
        """Call ``callback`` when the connection is closed."""

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None:
        """Call ``callback`` for each notification of a channel."""

    async def close(self, *, timeout: float | None = None) -> None:
        """Close the connection."""


class DriverPool(Protocol):
    """A pool of asyncpg."""

    async def acquire(self) -> DriverConnection:
        """Return a connection, when one is free."""

    async def release(self, connection: DriverConnection) -> None:
        """Give a connection back to the pool."""

    async def close(self) -> None:
        """Wait until no connection is used, then close all."""

    def terminate(self) -> None:
        """Close all connections immediately."""

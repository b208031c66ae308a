"""The interface of RPC calls to another process, independent of the transport."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from antiphon.errors import PeerLost


class Calls(Protocol):
    """Calls the methods of an object in another process. Raises the errors that these methods
    raise. Raises ``PeerLost`` if the other process (the peer) cannot be reached."""

    async def call(self, method: str, *arguments: object, returns: object = None) -> Any:
        """Call a method. Returns its result, decoded as the type ``returns``. If the task that
        waits for the result is cancelled, the call in the other process is cancelled too."""

    def stream(self, method: str, *arguments: object, returns: object) -> AsyncGenerator[Any, None]:
        """Call a method that yields items. Yields the items, decoded as the type ``returns``.
        Closing the iterator cancels the call."""


class NoCalls:
    """``Calls`` to a process that this process cannot reach. Every call raises ``PeerLost``.
    ``is_gone``: whether the other process has ended. The error has the same value in its attribute
    ``is_gone``."""

    def __init__(self, *, is_gone: bool = False) -> None:
        self._is_gone = is_gone

    async def call(self, method: str, *arguments: object, returns: object = None) -> Any:
        raise PeerLost(is_gone=self._is_gone)

    async def stream(
        self, method: str, *arguments: object, returns: object
    ) -> AsyncGenerator[Any, None]:
        raise PeerLost(is_gone=self._is_gone)
        yield

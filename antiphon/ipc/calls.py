"""The interface of calls to another process, whatever carries them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from antiphon.errors import PeerLost

__all__ = ["Calls", "NoCalls"]


class Calls(Protocol):
    """Calls the methods of an object in another process. Raises their errors, or ``PeerLost``."""

    async def call(self, method: str, *arguments: Any, returns: Any = None) -> Any:
        """Call a method and return its result as the type ``returns``. Cancelling the caller
        cancels the call."""

    def stream(self, method: str, *arguments: Any, returns: Any) -> AsyncGenerator[Any, None]:
        """Call a method that yields items, and yield them as the type ``returns``. Closing the
        iterator cancels the call."""


class NoCalls:
    """``Calls`` to a process that this one has no way to reach. ``is_gone``: as in ``PeerLost``."""

    def __init__(self, *, is_gone: bool = False) -> None:
        self._is_gone = is_gone

    async def call(self, method: str, *arguments: Any, returns: Any = None) -> Any:
        raise PeerLost(is_gone=self._is_gone)

    async def stream(self, method: str, *arguments: Any, returns: Any) -> AsyncGenerator[Any, None]:
        raise PeerLost(is_gone=self._is_gone)
        yield

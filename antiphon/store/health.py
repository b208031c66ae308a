"""Whether the store can be written, asked at most once a second."""

from __future__ import annotations

import asyncio

import structlog

from antiphon.errors import Overloaded, StoreError

from .base import Store

__all__ = ["StoreHealth"]

_log = structlog.get_logger(__name__)

#: Seconds for which an answer counts, and after which a store that does not answer is down.
_FRESH_S, _TIMEOUT_S = 1.0, 3.0


class StoreHealth:
    """Checks a store. One instance per process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writable = True
        self._checked_at: float | None = None
        self._check: asyncio.Task[None] | None = None

    async def is_writable(self) -> bool:
        """Return whether the store can be written. Callers share one check."""
        now = asyncio.get_running_loop().time()
        if self._checked_at is None or now - self._checked_at >= _FRESH_S:
            if self._check is None or self._check.done():
                self._check = asyncio.create_task(self._run(), name="store check")
            await asyncio.shield(self._check)
        return self._writable

    async def require(self) -> None:
        """Raise ``Overloaded`` (503) if the store cannot be written: nothing is generated that
        could not be stored."""
        if not await self.is_writable():
            raise Overloaded(
                "The server cannot store responses at the moment.",
                status=503,
                code="server_is_overloaded",
                retry_after_s=5,
            )

    async def _run(self) -> None:
        problem = ""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._store.check_writable()
        except StoreError as error:
            problem = error.message
        except TimeoutError:
            problem = f"no answer in {_TIMEOUT_S:.0f} seconds"
        writable = not problem
        if writable != self._writable:
            log = _log.info if writable else _log.error
            log("the store can be written again" if writable else "the store cannot be written",
                error=problem or None)  # fmt: skip
        self._writable = writable
        self._checked_at = asyncio.get_running_loop().time()

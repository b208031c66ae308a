"""The health check of the store. It runs at most once per second, and not after a response was
saved."""

from __future__ import annotations

import asyncio

import structlog

from antiphon.errors import DISK_OBSTACLES, Overloaded, StoreError
from antiphon.store.base import Store
from antiphon.support.tasks import BackgroundTasks

_log = structlog.get_logger(__name__)

#: Seconds for which the result of a check is reused, and the timeout of a check.
_FRESH_S, _TIMEOUT_S = 1.0, 3.0
#: Seconds without a successful check after which a store that is slow counts as broken. A process
#: that waits for a processor is slow, too.
_BROKEN_S = 30.0


class StoreHealth:
    """Checks whether a store can be written, at most once a second, and remembers the result. A
    process needs one instance."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_writable = True
        self._cause = ""
        self._checked_at: float | None = None
        self._succeeded_at: float | None = None
        self._checks = BackgroundTasks("store check")

    async def is_writable(self) -> bool:
        """Return whether the store could be written at the last check. Run a new check first if the
        last one is more than a second old. Concurrent callers share one check."""
        now = asyncio.get_running_loop().time()
        if self._checked_at is None or now - self._checked_at >= _FRESH_S:
            await asyncio.shield(self._checks.start_once("check", self._run))
        return self._is_writable

    def note_write(self) -> None:
        """Count a write that has succeeded as a check."""
        if self._is_writable:
            self._checked_at = self._succeeded_at = asyncio.get_running_loop().time()

    async def _run(self) -> None:
        problem = ""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._store.check_writable()
            self._succeeded_at = asyncio.get_running_loop().time()
        except StoreError as error:
            problem = error.message
        except TimeoutError:
            problem = self._slowness()
        if problem and self._is_writable:
            _log.error("the store cannot be written", error=problem)
        elif not problem and not self._is_writable:
            _log.info("the store can be written again")
        self._is_writable = not problem
        self._cause = next((each for each in DISK_OBSTACLES if each in problem), "")
        self._checked_at = asyncio.get_running_loop().time()

    def _slowness(self) -> str:
        """Return what is wrong with a store that did not answer the check in time. Nothing is, if
        an earlier check succeeded not long ago."""
        now = asyncio.get_running_loop().time()
        if self._succeeded_at is not None and now - self._succeeded_at < _BROKEN_S:
            _log.warning("the store is slow", timeout_s=_TIMEOUT_S)
            return "" if self._is_writable else "it is slow"
        return f"no answer in {_TIMEOUT_S:.0f} seconds"

    @property
    def cause(self) -> str:
        """Why the store cannot be written, for clients and probes. Empty if it can, or if they
        should not know."""
        return self._cause

    async def require(self) -> None:
        """Raise ``Overloaded`` (503) if the store cannot be written. A request must then be
        refused, because its response could not be stored."""
        if not await self.is_writable():
            cause = f": {self._cause}" if self._cause else ""
            raise Overloaded(
                f"The server cannot store responses at the moment{cause}.",
                status=503,
                code="server_is_overloaded",
                retry_after_s=5,
            )

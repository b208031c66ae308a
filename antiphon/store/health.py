"""Health checks of the store. A check runs at most once per second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from antiphon.errors import Overloaded, StoreError

from .base import Store
from .vectors import VectorIndex

__all__ = ["StoreHealth", "VectorHealth"]

_log = structlog.get_logger(__name__)

#: Seconds for which the result of a check is reused, and the timeout of a check.
_FRESH_S, _TIMEOUT_S = 1.0, 3.0


class _Health:
    """Base class of the health checks of a store. It runs a check at most once a second, and
    remembers the result. A process needs one instance of each subclass.

    ``check``: the async function to run. It raises ``StoreError`` if the check fails.
    ``log_texts``: two log messages. The first is logged when the check succeeds again, the second
    when the check begins to fail.
    """

    def __init__(self, check: Callable[[], Awaitable[None]], log_texts: tuple[str, str]) -> None:
        self._check_store = check
        self._log_texts = log_texts
        self._answers = True
        self._checked_at: float | None = None
        self._check: asyncio.Task[None] | None = None

    async def answers(self) -> bool:
        """Return whether the last check succeeded. Run a new check first if the last one is more
        than a second old. Concurrent callers share one check."""
        now = asyncio.get_running_loop().time()
        if self._checked_at is None or now - self._checked_at >= _FRESH_S:
            if self._check is None or self._check.done():
                self._check = asyncio.create_task(self._run(), name="store check")
            await asyncio.shield(self._check)
        return self._answers

    async def _run(self) -> None:
        problem = ""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._check_store()
        except StoreError as error:
            problem = error.message
        except TimeoutError:
            problem = f"no answer in {_TIMEOUT_S:.0f} seconds"
        answers = not problem
        if answers != self._answers:
            log = _log.info if answers else _log.error
            log(self._log_texts[0 if answers else 1], error=problem or None)
        self._answers = answers
        self._checked_at = asyncio.get_running_loop().time()


class StoreHealth(_Health):
    """Checks whether a store can be written."""

    def __init__(self, store: Store) -> None:
        texts = ("the store can be written again", "the store cannot be written")
        super().__init__(store.check_writable, texts)

    async def is_writable(self) -> bool:
        """Return whether the store can be written. Concurrent callers share one check."""
        return await self.answers()

    async def require(self) -> None:
        """Raise ``Overloaded`` (503) if the store cannot be written. A request must then be
        refused, because its response could not be stored."""
        if not await self.is_writable():
            raise Overloaded(
                "The server cannot store responses at the moment.",
                status=503,
                code="server_is_overloaded",
                retry_after_s=5,
            )


class VectorHealth(_Health):
    """Checks whether the service for vector searches answers."""

    def __init__(self, vectors: VectorIndex) -> None:
        texts = ("vectors can be searched again", "vectors cannot be searched")
        super().__init__(vectors.check, texts)

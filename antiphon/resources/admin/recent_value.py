"""A value that is read from the store again and again, but not each time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from antiphon.errors import StoreError

_T = TypeVar("_T")

#: Seconds after which a process reads the value again. After one process has changed the value,
#: others may use the former value for this time.
MAX_AGE_S = 2.0


class RecentValue(Generic[_T]):
    """A value in the store, which is read at most every two seconds.

    - ``read`` reads the value from the store.
    - ``initial``: the value before the first read.
    - ``timer`` returns monotonic seconds.
    - ``outage_s``: seconds for which the last value is used while the store does not answer.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[_T]],
        initial: _T,
        *,
        timer: Callable[[], float],
        outage_s: float,
    ) -> None:
        self._read_value = read
        #: The value as it was last read.
        self.last = initial
        self._timer = timer
        self._outage_s = outage_s
        #: When the value was last read, and when that was last tried.
        self._read_at = self._tried_at = -math.inf
        self._lock = asyncio.Lock()

    async def current(self) -> _T:
        """Return the value. While the store is slow, only one caller waits for it. Raises
        ``StoreError`` if the store has not answered for ``outage_s`` seconds."""
        now = self._timer()
        if now - self._tried_at > MAX_AGE_S:
            is_usable = now - self._read_at <= self._outage_s
            if not (is_usable and self._lock.locked()):
                async with self._lock:
                    if self._timer() - self._tried_at > MAX_AGE_S:
                        await self._read()
        return self.last

    def expire(self) -> None:
        """Read the value again when it is next asked for, because this process has changed it."""
        self._read_at = self._tried_at = -math.inf

    async def _read(self) -> None:
        now = self._timer()
        try:
            self.last = await self._read_value()
        except StoreError:
            if now - self._read_at > self._outage_s:
                raise
            self._tried_at = now
            return
        self._read_at = self._tried_at = now

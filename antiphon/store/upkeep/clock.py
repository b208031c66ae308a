"""The clock for the times in stored data. If the store is a database server with a clock, all
Antiphon servers on this store use the clock of the database server."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.store.base import Store

#: Returns unix seconds.
Clock = Callable[[], float]


class StoreClock:
    """A clock that returns Unix time. If the store has a clock of its own, this clock shows the
    store's time. Otherwise it shows the time of the Antiphon server.

    If the clock of an Antiphon server is wrong, data could expire too early or too late. The
    store's time prevents this. The store's clock is read only in ``synchronize``. Until the next
    call of ``synchronize``, the time advances with the monotonic clock of the Antiphon server, so
    jumps of its wall clock have no effect. ``wall``, ``monotonic``: these two clocks of the
    Antiphon server, in seconds.
    """

    def __init__(self, store: Store, *, wall: Clock, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._wall = wall
        self._monotonic = monotonic
        #: Difference between the store's clock and the monotonic clock, in seconds. None: the store
        #: has no clock.
        self._offset: float | None = None

    def __call__(self) -> float:
        """Return the current time in unix seconds."""
        return self._wall() if self._offset is None else self._monotonic() + self._offset

    async def synchronize(self) -> float:
        """Set this clock to the time of the store's clock, if the store has a clock. Return the
        current time. Raises ``StoreError``."""
        wall, sent = self._wall(), self._monotonic()
        time = await self._store.clock(wall)
        middle = (sent + self._monotonic()) / 2
        self._offset = None if time == wall else time - middle
        return self()

"""The times at which tenants were deleted: what began earlier for such a tenant has to end."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping

from antiphon.store.values import SERVER, Document, ValueStore

from .recent_value import RecentValue

#: Seconds for which a deletion is remembered. Nothing that began before it lasts longer: background
#: runs are deleted with their tenant, and a connection or a foreground run lasts for hours at most.
_MEMORY_S = 7 * 86_400


class TenantDeletions:
    """Records the deletions of tenants in the store, for all processes that share it.

    ``clock`` returns Unix seconds. ``timer`` returns monotonic seconds.
    """

    def __init__(
        self, values: ValueStore, *, clock: Callable[[], float], timer: Callable[[], float]
    ) -> None:
        self._times = Document(values, SERVER, "tenant_deletions", dict[str, float])
        self._clock = clock
        self._recent: RecentValue[Mapping[str, float]] = RecentValue(
            self._times.load, {}, timer=timer, outage_s=math.inf
        )

    @property
    def last(self) -> Mapping[str, float]:
        """What ``current`` last returned in this process."""
        return self._recent.last

    def current(self) -> Awaitable[Mapping[str, float]]:
        """Return the time of the last deletion of each tenant, as of at most two seconds ago."""
        return self._recent.current()

    async def record(self, tenant: str) -> None:
        """Record that a tenant is being deleted. Raises ``StoreError``."""
        now = self._clock()

        def change(times: dict[str, float]) -> None:
            times[tenant] = max(now, times.get(tenant, 0.0) + 1e-3)  # each deletion is later
            for name in [name for name, at in times.items() if at < now - _MEMORY_S]:
                del times[name]

        await self._times.update(change)
        self._recent.expire()

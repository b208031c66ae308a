"""Which tenant's responses a sweep deletes when a store holds too many."""

from __future__ import annotations

from collections.abc import Iterable

from .base import Retention

__all__ = ["TenantTotals"]


class TenantTotals:
    """The number of responses and their bytes, by tenant, during a sweep.

    Bounds of a store are shared: what is too much is deleted from the tenant that holds most, so a
    tenant's flood deletes its own responses before those of others. ``totals``: rows of tenant,
    number of responses, bytes; several of one tenant are added up.
    """

    def __init__(self, retention: Retention, totals: Iterable[tuple[str, int, int]]) -> None:
        self._retention = retention
        self._totals: dict[str, list[int]] = {}
        for tenant, responses, size in totals:
            total = self._totals.setdefault(tenant, [0, 0])
            total[0] += responses
            total[1] += size
        self._candidates = set(self._totals)
        self._responses = sum(responses for responses, _ in self._totals.values())
        self._bytes = sum(size for _, size in self._totals.values())

    def largest(self) -> str | None:
        """Return the tenant whose oldest response is to be deleted; None if no bound is exceeded or
        nothing can be deleted."""
        retention = self._retention
        if retention.max_responses is not None and self._responses > retention.max_responses:
            column = 0
        elif retention.max_bytes is not None and self._bytes > retention.max_bytes:
            column = 1
        else:
            return None
        return min(
            self._candidates, key=lambda name: (-self._totals[name][column], name), default=None
        )

    def remove_response(self, tenant: str, freed_bytes: int) -> None:
        """Subtract a deleted response."""
        self._totals[tenant][0] -= 1
        self._totals[tenant][1] -= freed_bytes
        self._responses -= 1
        self._bytes -= freed_bytes

    def exclude(self, tenant: str) -> None:
        """Record that no response of this tenant can be deleted."""
        self._candidates.discard(tenant)

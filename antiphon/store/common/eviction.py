"""The choice of the tenant whose responses a sweep deletes when a store holds too much data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from antiphon.store.base import Retention


class TenantTotals:
    """The number of responses and the bytes of each tenant. A sweep keeps these totals up to date,
    and uses them to select the tenant whose responses it deletes.

    All tenants share the limits of a store. If a limit is exceeded, responses of the tenant with
    the largest total are deleted. So a tenant that floods the store loses its own responses first.
    ``totals``: rows of a tenant, its number of responses, and the bytes of these responses. If a
    tenant has several rows, they are added up.
    """

    def __init__(self, retention: Retention, totals: Iterable[Sequence[Any]]) -> None:
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
        """Return the tenant whose oldest response must be deleted next. Returns None if no limit is
        exceeded, or if nothing can be deleted."""
        if (excess := self._excess()) is None:
            return None
        column = excess[0]
        return min(
            self._candidates, key=lambda name: (-self._totals[name][column], name), default=None
        )

    def select(self, tenant: str, oldest: Sequence[Sequence[Any]]) -> list[int]:
        """Select which of the oldest responses of a tenant to delete in one step. Return their row
        numbers.

        The method selects just enough responses, oldest first, that one of these conditions is
        true after their deletion:

        - The store no longer exceeds its limit.
        - The total of another tenant is at least as large as the total of this tenant.

        It selects at least one response if ``oldest`` is not empty. ``tenant``: the tenant that
        ``largest`` returned. ``oldest``: the row number and the bytes of each of the tenant's
        oldest responses. After the deletion, the caller calls ``remove_responses``.
        """
        column, surplus = self._excess() or (0, 0)
        others = (self._totals[name][column] for name in self._candidates if name != tenant)
        surplus = min(surplus, self._totals[tenant][column] - max(others, default=0))
        selected: list[int] = []
        total = 0
        for row, size in oldest:
            if selected and total >= surplus:
                break
            selected.append(row)
            total += size if column else 1
        return selected

    def remove_responses(self, tenant: str, count: int, freed_bytes: int) -> None:
        """Subtract deleted responses from the totals."""
        self._totals[tenant][0] -= count
        self._totals[tenant][1] -= freed_bytes
        self._responses -= count
        self._bytes -= freed_bytes

    def _excess(self) -> tuple[int, int] | None:
        """Return which limit of the store is exceeded, and by how much. Returns None if no limit is
        exceeded. The limit is returned as a column of the totals: 0 for the limit on the number of
        responses, 1 for the limit on their bytes."""
        retention = self._retention
        if retention.max_responses is not None and self._responses > retention.max_responses:
            return 0, self._responses - retention.max_responses
        if retention.max_bytes is not None and self._bytes > retention.max_bytes:
            return 1, self._bytes - retention.max_bytes
        return None

    def exclude(self, tenant: str) -> None:
        """Record that no further response of this tenant can be deleted, so that ``largest`` does
        not return this tenant again."""
        self._candidates.discard(tenant)

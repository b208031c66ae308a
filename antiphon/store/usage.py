"""The contract of a usage log: what each request used, in rows that are summed up as they age.

A row is kept for ten minutes, then added to its minute; after a day to its hour, after a month to
its day. So the size of the log depends on time, models and API keys, not on the number of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

__all__ = [
    "ROLLUPS",
    "Rollup",
    "UsageKind",
    "UsageLog",
    "UsageQuery",
    "UsageRecord",
    "UsageTotals",
    "usage_cutoffs",
]

UsageKind = Literal["completion", "embedding"]


class UsageRecord(Struct, frozen=True, kw_only=True):
    """The usage of one request.

    ``id``: the id of the response; of several records with one id, the first counts. ``start``:
    when the request ended, in unix seconds. ``api_key``: the name of the key; "" without one. The
    order of the fields is that of the columns.
    """

    id: str
    start: int
    kind: UsageKind = "completion"
    tenant: str
    api_key: str = ""
    model: str
    requests: int = 1
    failed_requests: int = 0
    cancelled_requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    tool_calls: int = 0
    latency_ms: int = 0


class UsageQuery(Struct, frozen=True, kw_only=True):
    """A query for sums of a time range, ``start`` included and ``end`` excluded, in buckets of
    ``width`` seconds. Sums that are stored by the hour or day count in the bucket in which that
    hour or day begins.

    ``group_by``: the properties by which sums are grouped. ``tenants``, ``api_keys``, ``models``:
    only these; None: all.
    """

    start: int
    end: int
    width: int
    kind: UsageKind = "completion"
    group_by: frozenset[Literal["tenant", "api_key", "model"]] = frozenset()
    tenants: tuple[str, ...] | None = None
    api_keys: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None


class UsageTotals(Struct, frozen=True, kw_only=True):
    """Sums of a bucket that begins at ``start``. ``tenant``, ``api_key``, ``model``: None if they
    are not grouped by."""

    start: int
    tenant: str | None
    api_key: str | None
    model: str | None
    requests: int
    failed_requests: int
    cancelled_requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    tool_calls: int
    latency_ms: int


class Rollup(Struct, frozen=True):
    """Sums of ``width`` seconds that are older than ``age_s`` become sums of ``to`` seconds; width
    0: the rows of single requests."""

    width: int
    to: int
    age_s: int


_MINUTE, _HOUR, _DAY = 60, 3600, 86_400

#: From the finest to the coarsest.
ROLLUPS = (
    Rollup(0, _MINUTE, 10 * _MINUTE),
    Rollup(_MINUTE, _HOUR, _DAY),
    Rollup(_HOUR, _DAY, 32 * _DAY),
)


def usage_cutoffs(now: int) -> tuple[tuple[Rollup, int], ...]:
    """Return each rollup with the time before which it applies."""
    return tuple((each, now - each.age_s) for each in ROLLUPS)


class UsageLog(Protocol):
    """The contract of a usage log. ``Store.save`` and ``RunStore.end`` add the record of a response
    in the transaction that stores it. ``Store.sweep`` sums up old rows and deletes the oldest."""

    async def add(self, records: Sequence[UsageRecord]) -> None:
        """Add the records of requests that store nothing else. Return when they are durable."""

    async def totals(self, query: UsageQuery) -> tuple[UsageTotals, ...]:
        """Return the sums, in order of time, without buckets in which nothing happened."""

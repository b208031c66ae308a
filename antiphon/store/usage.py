"""The contract of a usage log: what each request used, in rows that are added up as they age.

A new row describes one request. After ten minutes, the rows of a minute are added up into one row.
After a day, the rows of an hour are added up; after 32 days, the rows of a day. So the size of the
log depends on time, models and API keys, not on the number of requests.
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

    ``id``: the id of the response. Of several records with the same id, only the first counts.
    ``start``: the unix second at which the request ended. ``api_key``: the name of the key, or ""
    for a request without a key. The fields have the same order as the columns of the table.
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
    ``width`` seconds. A sum that is stored for an hour or a day counts in the bucket in which that
    hour or day begins.

    ``group_by``: the properties by which sums are grouped. ``tenants``, ``api_keys``, ``models``:
    the query counts only rows with these values. None means no restriction.
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
    """Sums over one bucket, which begins at ``start``. ``tenant``, ``api_key`` and ``model`` are
    None if the query does not group by them."""

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
    """A rule that makes old sums coarser. Sums over ``width`` seconds that are older than ``age_s``
    seconds are added up into sums over ``to`` seconds. A ``width`` of 0 stands for the rows of
    single requests."""

    width: int
    to: int
    age_s: int


_MINUTE, _HOUR, _DAY = 60, 3600, 86_400

#: All rollups, from the finest to the coarsest.
ROLLUPS = (
    Rollup(0, _MINUTE, 10 * _MINUTE),
    Rollup(_MINUTE, _HOUR, _DAY),
    Rollup(_HOUR, _DAY, 32 * _DAY),
)


def usage_cutoffs(now: int) -> tuple[tuple[Rollup, int], ...]:
    """Return each rollup with the unix time before which sums are old enough for it."""
    return tuple((each, now - each.age_s) for each in ROLLUPS)


class UsageLog(Protocol):
    """The contract of a usage log. ``Store.save`` and ``RunStore.end`` add the record of a response
    in the transaction that stores the response. ``Store.sweep`` adds up old rows and deletes the
    oldest rows."""

    async def add(self, records: Sequence[UsageRecord]) -> None:
        """Add the records of requests for which nothing else is stored. Returns after the records
        are durable."""

    async def totals(self, query: UsageQuery) -> tuple[UsageTotals, ...]:
        """Return the sums that a query asks for, in order of time. Buckets without requests are
        left out."""

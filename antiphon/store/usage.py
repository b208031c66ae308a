"""The contract of a usage log, which records what each request used.

A new row describes one request. Sweeps replace old rows by sums: rows older than ten minutes by one
sum per minute, sums older than a day by one sum per hour, and sums older than 32 days by one sum
per day. Each sum is for one tenant, API key and model. So the size of the log does not grow with
the number of requests.
"""

from __future__ import annotations

from abc import abstractmethod
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

#: The kinds of requests. For a transcription, ``input_tokens`` is the number of seconds of the
#: recording; for speech, the number of characters of the text. The kinds that are named after tools
#: are calls of these tools in a response: their record counts each call as a request.
UsageKind = Literal[
    "completion",
    "embedding",
    "transcription",
    "speech",
    "web_search",
    "file_search",
    "code_interpreter",
]


class UsageRecord(Struct, frozen=True, kw_only=True):
    """The usage of one request.

    ``id``: the id of the response. If several records have the same id, only the first one counts.
    ``start``: the Unix second in which the request ended, not the second in which it started. A row
    of the log can also hold the sum of the usage in a time interval. In such a row, ``start`` is
    the first second of the interval. ``api_key``: the name of the key, or "" for a request without
    a key.

    The fields have the same order as the columns of the table ``usage_rows``.
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
    """A query for usage sums of a time range. The result has one sum per bucket. Each
    pair of a time interval of ``width`` seconds and a combination of values of the properties in
    ``group_by`` is one bucket.

    ``start``: the first second of the time range. ``end``: the first second after the time range.
    ``tenants``, ``api_keys``, ``models``: only usage of these tenants, keys and models counts. None
    means no restriction.

    Old usage is stored only as sums of an hour or a day. Such a sum counts in the bucket in which
    its hour or day begins.
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
    """Usage sums of one bucket of a ``UsageQuery``. ``start``: the Unix second at which the bucket
    begins. ``tenant``, ``api_key`` and ``model`` are None if the query does not group by them."""

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
    """A rule that replaces old sums of short intervals by sums of longer intervals.

    - ``width``: the length of the short intervals, in seconds. If it is 0, the rule replaces the
      rows of single requests.
    - ``to``: the length of the longer intervals, in seconds.
    - ``age_s``: the age in seconds from which sums or rows are replaced.
    """

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
    """Return each rollup rule with a cutoff: the Unix time before which rows are old enough for the
    rule."""
    return tuple((each, now - each.age_s) for each in ROLLUPS)


class UsageLog(Protocol):
    """The contract of a usage log, which records what each request used.

    ``Store.save`` and ``RunStore.end`` add the usage record of a response in the transaction that
    stores the response. ``Store.sweep`` replaces old usage records with their sums over longer
    intervals, and deletes sums that are too old.
    """

    @abstractmethod
    async def add(self, records: Sequence[UsageRecord]) -> None:
        """Add the usage records of requests that store no response, such as embeddings. Returns
        after the records are durable."""

    @abstractmethod
    async def totals(self, query: UsageQuery) -> tuple[UsageTotals, ...]:
        """Return the usage sums of each bucket of the query, in order of time. Buckets without
        requests are left out."""

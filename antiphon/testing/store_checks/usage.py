"""Checks that a store fulfils its contract for the usage log."""

from __future__ import annotations

from typing import Any

from antiphon.store.base import Retention, Store
from antiphon.store.records import RunEnd
from antiphon.store.usage import UsageQuery, UsageRecord, UsageTotals

from .responses import make_response
from .runs import batch, begin_run, ended_response

_DAY = 86_400
#: A midnight, and a time long after it.
_START, _LATER = 20_000 * _DAY, 20_200 * _DAY


def _record(id: str, **fields: Any) -> UsageRecord:
    given = {"start": _START, "tenant": "t", "model": "m", "input_tokens": 10, **fields}
    return UsageRecord(id=id, **given)


async def _totals(store: Store, **fields: Any) -> list[UsageTotals]:
    given = {"start": _START, "end": _START + _DAY, "width": _DAY, **fields}
    return list(await store.usage_log.totals(UsageQuery(**given)))


async def _tokens(store: Store, **fields: object) -> list[tuple[int, int, int]]:
    """Query the usage log. Returns three numbers for each bucket (period of time): its start in
    seconds after ``_START``, the number of requests and the number of input tokens. ``fields``:
    fields of the query that replace the default values."""
    found = await _totals(store, **fields)
    return [(each.start - _START, each.requests, each.input_tokens) for each in found]


async def sums_usage_in_buckets(store: Store) -> None:
    await store.usage_log.add(
        [
            _record("a"),
            _record("b", start=_START + 59, output_tokens=4, cached_tokens=3, reasoning_tokens=2),
            _record("c", start=_START + 60, failed_requests=1, tool_calls=2, latency_ms=5),
            _record("d", start=_START + _DAY),
            _record("e", kind="embedding"),
        ]
    )
    assert await _totals(store) == [
        UsageTotals(
            start=_START,
            tenant=None,
            api_key=None,
            model=None,
            requests=3,
            failed_requests=1,
            cancelled_requests=0,
            input_tokens=30,
            cached_tokens=3,
            output_tokens=4,
            reasoning_tokens=2,
            tool_calls=2,
            latency_ms=5,
        )
    ]
    assert await _tokens(store, width=60) == [(0, 2, 20), (60, 1, 10)]
    assert await _tokens(store, kind="embedding") == [(0, 1, 10)]
    assert await _tokens(store, end=_START + 2 * _DAY) == [(0, 3, 30), (_DAY, 1, 10)]
    assert await _tokens(store, start=_START + 2 * _DAY, end=_START + 3 * _DAY) == []


async def groups_and_filters_usage(store: Store) -> None:
    await store.usage_log.add(
        [
            _record("a", tenant="t", api_key="k1", model="m"),
            _record("b", tenant="t", api_key="k2", model="n"),
            _record("c", tenant="u", model="m", input_tokens=1),
        ]
    )

    async def names(*group_by: str, **fields: object) -> list[tuple[Any, ...]]:
        found = await _totals(store, group_by=frozenset(group_by), **fields)
        return [(each.tenant, each.api_key, each.model, each.input_tokens) for each in found]

    assert await names("tenant") == [("t", None, None, 20), ("u", None, None, 1)]
    assert await names("api_key") == [
        (None, "", None, 1),
        (None, "k1", None, 10),
        (None, "k2", None, 10),
    ]
    assert await names("model", "tenant", tenants=("t",)) == [
        ("t", None, "m", 10),
        ("t", None, "n", 10),
    ]
    assert await names(models=("m",)) == [(None, None, None, 11)]
    assert await names(api_keys=("k1", "")) == [(None, None, None, 11)]
    assert await names(models=()) == []


async def counts_usage_of_a_request_once(store: Store) -> None:
    await store.usage_log.add([_record("a"), _record("a", input_tokens=99)])
    await store.usage_log.add([_record("a")])
    await store.usage_log.add([])
    assert await _tokens(store) == [(0, 1, 10)]


async def saves_usage_with_responses(store: Store) -> None:
    await store.save("t", make_response("a"), usage=_record("resp_a"))
    await store.save("t", make_response("a"), usage=_record("resp_a"))
    await store.save("t", make_response("b"))
    assert await _tokens(store) == [(0, 1, 10)]
    claim = await begin_run(store, "c")
    assert await store.runs.end(
        claim, RunEnd(stored=ended_response("c"), batch=batch(2), usage=_record("resp_c"))
    )
    assert not await store.runs.end(
        claim, RunEnd(stored=ended_response("c"), batch=batch(2), usage=_record("resp_d"))
    )
    assert await _tokens(store) == [(0, 2, 20)], "the usage of a refused end was counted"
    await store.delete("t", "resp_a")
    assert await _tokens(store) == [(0, 2, 20)], "deleting a response does not refund it"


async def sums_up_old_usage(store: Store) -> None:
    async def sweep(now: int, **bounds: Any) -> list[tuple[int, int, int]]:
        await store.sweep(Retention(**bounds), now)
        return await _tokens(store, width=60)

    await store.usage_log.add(
        [_record(f"r{at}", start=_START + at) for at in (0, 1, 61, 3599, 3600, 7200, 7201)]
    )
    by_minute = [(0, 2, 20), (60, 1, 10), (3540, 1, 10), (3600, 1, 10), (7200, 2, 20)]
    by_hour = [(0, 4, 40), (3600, 1, 10), (7200, 2, 20)]
    assert await sweep(_START + 7200 + 600) == by_minute
    await store.usage_log.add([_record("late", start=_START + 7200)])
    by_minute[-1], by_hour[-1] = (7200, 3, 30), (7200, 3, 30)
    assert await sweep(_START + 2 * 7200) == by_minute, "late usage must be added to its minute"
    assert await sweep(_START + 3 * _DAY) == by_hour
    assert await _tokens(store) == [(0, 8, 80)]
    assert await sweep(_LATER) == [(0, 8, 80)]
    assert await sweep(_LATER, max_usage_age_s=201 * _DAY) == [(0, 8, 80)]
    assert await sweep(_LATER, max_usage_age_s=199 * _DAY) == []

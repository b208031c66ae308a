"""Which sums of used tokens are read, and how long they are valid."""

from __future__ import annotations

from typing import Any

from antiphon.limits.clients import LimitScope
from antiphon.limits.token_budgets import TokenBudgets
from antiphon.store.usage import UsageQuery, UsageTotals
from antiphon.wire.admin.client_limits import ClientLimits


async def test_sums_are_read_again_when_tokens_no_longer_count() -> None:
    now = 1_000_059.0
    zeros = dict.fromkeys(UsageTotals.__struct_fields__[4:], 0)
    names: dict[str, Any] = {"tenant": None, "api_key": None, "model": None}
    used = UsageTotals(start=1_000_000, **names, **{**zeros, "output_tokens": 7})

    async def totals(query: UsageQuery) -> tuple[UsageTotals, ...]:
        is_found = query.kind == "completion" and query.start <= used.start < query.end
        return (used,) if is_found else ()

    budgets = TokenBudgets(totals, clock=lambda: now, timer=lambda: now)
    scope = LimitScope("key", "k", ClientLimits(tokens_per_minute=5))
    first = await budgets.tokens_used(scope)
    assert (first.minute, first.minute_wait_s(5)) == (7, 1)
    now += 1
    assert (await budgets.tokens_used(scope)).minute == 0


async def test_only_what_may_have_changed_is_read_again() -> None:
    """The work does not grow with the requests of a minute or a day."""
    now, queries, seconds = 1_000_059.0, list[UsageQuery](), dict[int, int]()
    names: dict[str, Any] = {"tenant": None, "api_key": None, "model": None}
    zeros = dict.fromkeys(UsageTotals.__struct_fields__[4:], 0)

    async def totals(query: UsageQuery) -> tuple[UsageTotals, ...]:
        if query.kind != "completion":
            return ()
        queries.append(query)
        return tuple(
            UsageTotals(start=start, **names, **{**zeros, "output_tokens": seconds[start]})
            for start in seconds
            if query.start <= start < query.end
        )

    budgets = TokenBudgets(totals, clock=lambda: now, timer=lambda: now)
    scope = LimitScope("key", "k", ClientLimits(tokens_per_minute=5))
    seconds = {1_000_010: 1, 1_000_055: 2}
    assert (await budgets.tokens_used(scope)).minute == 3
    now += 3
    seconds |= {1_000_050: 4, 1_000_062: 8}  # a record of another server came late
    assert (await budgets.tokens_used(scope)).minute == 15
    assert [(each.start, each.width) for each in queries] == [(1_000_000, 1), (1_000_045, 1)]
    daily = LimitScope("key", "k", ClientLimits(tokens_per_day=5))
    assert (await budgets.tokens_used(daily)).day == 15
    assert queries[-1].width == 86_400 and len(queries) == 3

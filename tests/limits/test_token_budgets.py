"""How long the sums of used tokens are valid."""

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

"""Requests are counted against all limits of their API key and tenant."""

from __future__ import annotations

from typing import Any

from antiphon.limits.charges import ClientCharges
from antiphon.limits.clients import LimitScope
from antiphon.limits.rate_limits import RateLimits
from antiphon.limits.token_budgets import TokenBudgets
from antiphon.store.rates import RateStore
from antiphon.store.usage import UsageQuery, UsageTotals
from antiphon.testing.memory_store.values import MemoryValues
from antiphon.wire.admin.client_limits import ClientLimits

NOW = 100_000
MIDNIGHT = NOW - NOW % 86_400


def charges(tokens: int) -> ClientCharges:
    """Charges of a client that has used this number of tokens 10 seconds ago."""

    async def totals(query: UsageQuery) -> tuple[UsageTotals, ...]:
        if query.kind != "completion":
            return ()
        start = NOW - 10 if query.width == 1 else MIDNIGHT
        return (UsageTotals(start=start, **names, **{**zeros, "input_tokens": tokens}),)

    names: dict[str, Any] = {"tenant": None, "api_key": None, "model": None}
    zeros = dict.fromkeys(UsageTotals.__struct_fields__[4:], 0)
    store = RateStore(MemoryValues(lambda: None), lambda: float(NOW))
    rates = RateLimits(store, owner="here", timer=lambda: float(NOW))
    budgets = TokenBudgets(totals, clock=lambda: NOW, timer=lambda: NOW)
    return ClientCharges(rates, budgets)


def scope(**limits: int) -> LimitScope:
    return LimitScope("key", "k", ClientLimits(**limits))


async def test_refused_client_learns_the_longest_wait() -> None:
    both = scope(tokens_per_minute=5, tokens_per_day=5)
    charge = await charges(tokens=9).count([both], uses_tokens=True)
    assert charge.refusal is not None
    assert charge.refusal.retry_after_s == MIDNIGHT + 86_400 - NOW
    assert "5 tokens per day, used 9" in charge.refusal.message


async def test_token_limits_do_not_apply_to_requests_without_tokens() -> None:
    charge = await charges(tokens=9).count([scope(tokens_per_day=5)], uses_tokens=False)
    assert charge == ([], None)


async def test_headers_are_returned_with_the_refusal() -> None:
    client = charges(tokens=0)
    one = [scope(requests_per_minute=1)]
    assert (await client.count(one, uses_tokens=True)).refusal is None
    charge = await client.count(one, uses_tokens=True)
    assert charge.refusal is not None and charge.refusal.retry_after_s == 60
    assert dict(charge.headers)[b"x-ratelimit-remaining-requests"] == b"0"

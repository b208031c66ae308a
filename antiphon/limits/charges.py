"""Count a request against the limits per minute and per day of its API key and its tenant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from antiphon.errors import Overloaded

from .clients import LimitScope
from .rate_limits import RateLimits
from .refusals import LimitState, limit_headers, limit_reached
from .token_budgets import TokenBudgets


class Charge(NamedTuple):
    """The result of counting a request. ``headers``: the headers ``x-ratelimit-*`` of the answer.
    ``refusal``: the error with which the request is refused; None if it is admitted."""

    headers: list[tuple[bytes, bytes]]
    refusal: Overloaded | None = None


class ClientCharges:
    """Counts the requests of all clients. ``rates`` counts requests. ``budgets`` reads how many
    tokens were used; None means that tokens are not limited."""

    def __init__(self, rates: RateLimits, budgets: TokenBudgets | None = None) -> None:
        self._rates = rates
        self._budgets = budgets

    async def count(self, scopes: Sequence[LimitScope], *, uses_tokens: bool) -> Charge:
        """Count one request against the limits of these scopes. ``uses_tokens``: whether the
        request can use tokens; if not, token limits do not apply. Raises ``StoreError``."""
        permits = await self._rates.take(scopes)
        headers = limit_headers(
            "requests",
            [
                LimitState(each.limit, each.remaining, each.wait_s or each.full_s)
                for each in permits
            ],
        )
        slowest = max(permits, key=lambda each: each.wait_s, default=None)
        if slowest is not None and slowest.wait_s > 0:
            what = f"{slowest.limit} requests per minute"
            return Charge(headers, limit_reached(what, retry_after_s=math.ceil(slowest.wait_s)))
        if not uses_tokens or self._budgets is None:
            return Charge(headers)
        limits = [each for scope in scopes for each in await self._budgets.limits(scope)]
        states = (LimitState(one.limit, one.limit - one.used, one.reset_s) for one in limits)
        headers += limit_headers("tokens", states)
        reached = [each for each in limits if each.used >= each.limit]
        if reached:
            last = max(reached, key=lambda each: each.reset_s)
            what = f"{last.limit} tokens per {last.period}, used {last.used}"
            return Charge(headers, limit_reached(what, retry_after_s=last.reset_s))
        return Charge(headers)

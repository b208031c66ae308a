"""Reads from the usage log how many tokens each API key and each tenant has used, in the last
minute and since midnight (UTC). The authentication middleware compares these numbers with the token
limits.

The numbers include the tokens that were used on all servers with the same store.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from msgspec import Struct

from antiphon.clients import LimitScope
from antiphon.store.usage import UsageKind, UsageQuery, UsageTotals

__all__ = ["TokenBudgets", "TokensUsed"]

#: Seconds for which the token sums of a scope are cached.
_MAX_AGE_S = 2.0
#: Largest number of scopes in the cache.
_MAX_SCOPES = 10_000
_MINUTE, _DAY = 60, 86_400
_KINDS: tuple[UsageKind, ...] = ("completion", "embedding")


class TokensUsed(Struct, frozen=True):
    """The tokens that a scope (an API key or a tenant) has used. ``minute``: in the last 60
    seconds. ``day``: since midnight (UTC). ``day_ends_s``: seconds until the next midnight
    (UTC)."""

    minute: int
    day: int
    day_ends_s: int


class TokenBudgets:
    """Reads from the usage log how many tokens a scope (an API key or a tenant) has used.

    The log contains the tokens of a request when the request has ended. Requests in progress are
    not counted, so a scope can exceed its limit. If another server on the same store has handled a
    request, the tokens of this request are counted up to three seconds later.

    ``totals`` returns sums from the usage log. ``clock`` returns Unix seconds. ``timer`` returns
    monotonic seconds.
    """

    def __init__(
        self,
        totals: Callable[[UsageQuery], Awaitable[tuple[UsageTotals, ...]]],
        *,
        clock: Callable[[], float],
        timer: Callable[[], float],
    ) -> None:
        self._totals = totals
        self._clock = clock
        self._timer = timer
        self._used: dict[str, tuple[float, TokensUsed]] = {}

    async def used(self, scope: LimitScope) -> TokensUsed:
        """Return how many tokens a scope (an API key or a tenant) has used. Raises
        ``StoreError``."""
        read_at, used = self._used.get(scope.id, (-math.inf, None))
        if used is not None and self._timer() - read_at <= _MAX_AGE_S:
            return used
        read_at, now = self._timer(), int(self._clock())
        midnight = now - now % _DAY
        used = TokensUsed(
            minute=await self._sum(scope, now - _MINUTE + 1, now + 1),
            day=await self._sum(scope, midnight, now + 1),
            day_ends_s=midnight + _DAY - now,
        )
        if len(self._used) >= _MAX_SCOPES:
            self._used.clear()
        self._used[scope.id] = (read_at, used)
        return used

    async def _sum(self, scope: LimitScope, start: int, end: int) -> int:
        total = 0
        is_key = scope.kind == "key"
        for kind in _KINDS:
            query = UsageQuery(
                start=start,
                end=end,
                width=_DAY,
                kind=kind,
                api_keys=(scope.name,) if is_key else None,
                tenants=None if is_key else (scope.name,),
            )
            total += sum(
                each.input_tokens + each.output_tokens for each in await self._totals(query)
            )
        return total

"""How many tokens an API key may use in a minute and in a day, over all servers of a store."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from msgspec import Struct

from antiphon.store.usage import UsageKind, UsageQuery, UsageTotals

__all__ = ["TokenBudgets", "TokenLimits", "TokensUsed"]

#: Seconds for which the sums of a key are used again.
_MAX_AGE_S = 2.0
#: Keys whose sums are kept.
_MAX_KEYS = 10_000
_MINUTE, _DAY = 60, 86_400
_KINDS: tuple[UsageKind, ...] = ("completion", "embedding")


class TokenLimits(Struct, frozen=True):
    """Input and output tokens in the last minute, and since midnight in UTC; None: no limit."""

    per_minute: int | None = None
    per_day: int | None = None

    def __bool__(self) -> bool:
        return self.per_minute is not None or self.per_day is not None


class TokensUsed(Struct, frozen=True):
    """What a key used. ``day_ends_s``: seconds until the next midnight."""

    minute: int
    day: int
    day_ends_s: int


class TokenBudgets:
    """Reads what keys used from the usage log. Requests count when they end, and other servers'
    with a delay of up to three seconds, so a key may exceed its limits by what runs meanwhile.

    ``totals`` reads sums; ``clock`` returns unix seconds, ``timer`` monotonic ones.
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

    async def used(self, api_key: str) -> TokensUsed:
        """Return what a key used. Raises ``StoreError``."""
        read_at, used = self._used.get(api_key, (-math.inf, None))
        if used is not None and self._timer() - read_at <= _MAX_AGE_S:
            return used
        read_at, now = self._timer(), int(self._clock())
        midnight = now - now % _DAY
        used = TokensUsed(
            minute=await self._sum(api_key, now - _MINUTE + 1, now + 1),
            day=await self._sum(api_key, midnight, now + 1),
            day_ends_s=midnight + _DAY - now,
        )
        if len(self._used) >= _MAX_KEYS:
            self._used.clear()
        self._used[api_key] = (read_at, used)
        return used

    async def _sum(self, api_key: str, start: int, end: int) -> int:
        total = 0
        for kind in _KINDS:
            query = UsageQuery(start=start, end=end, width=_DAY, kind=kind, api_keys=(api_key,))
            total += sum(
                each.input_tokens + each.output_tokens for each in await self._totals(query)
            )
        return total

"""Limits on tokens per minute and per day. The usage log says how many tokens each API key and each
tenant has used, in the last minute and since midnight (UTC).

The numbers include the tokens that were used on all servers with the same store.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

from msgspec import Struct

from antiphon.store.usage import UsageKind, UsageQuery, UsageTotals

from .clients import LimitScope

#: Seconds for which the token sums of a scope are cached.
_MAX_AGE_S = 2.0
#: Largest number of scopes in the cache.
_MAX_SCOPES = 10_000
_MINUTE, _DAY = 60, 86_400
_KINDS: tuple[UsageKind, ...] = ("completion", "embedding")


class TokensUsed(Struct, frozen=True):
    """The tokens that a scope (an API key or a tenant) has used.

    - ``recent``: tokens of the last 60 seconds, the oldest first. Each pair contains the seconds
      after which the tokens no longer count, and the number of tokens.
    - ``day``: tokens since midnight (UTC). ``day_ends_s``: seconds until the next midnight (UTC).
    """

    recent: tuple[tuple[int, int], ...]
    day: int
    day_ends_s: int

    @property
    def minute(self) -> int:
        """The number of tokens of the last 60 seconds."""
        return sum(tokens for _, tokens in self.recent)

    @property
    def minute_ends_s(self) -> int:
        """The number of seconds after which none of the tokens of the last 60 seconds counts."""
        return self.recent[-1][0] if self.recent else 0

    @property
    def next_change_s(self) -> int:
        """The number of seconds after which some of the tokens no longer count."""
        return min([self.day_ends_s, *(wait_s for wait_s, _ in self.recent[:1])])

    def minute_wait_s(self, limit: int) -> int:
        """Return the seconds until fewer than ``limit`` tokens count as used in the last minute, if
        no further tokens are used."""
        tokens = self.minute
        for wait_s, ending in self.recent:
            if tokens < limit:
                break
            tokens -= ending
            if tokens < limit:
                return wait_s
        return 0


class TokenLimit(NamedTuple):
    """A limit of tokens, and the tokens used. ``reset_s``: if the limit is reached, the seconds
    until it is no longer reached; otherwise, the seconds until no used token counts."""

    period: Literal["minute", "day"]
    limit: int
    used: int
    reset_s: int


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

    async def limits(self, scope: LimitScope) -> list[TokenLimit]:
        """Return the token limits of a scope, each with the number of tokens used. Raises
        ``StoreError``."""
        limits = scope.limits
        if not limits.limits_tokens:
            return []
        used = await self.tokens_used(scope)
        found: list[TokenLimit] = []
        if (limit := limits.tokens_per_minute) is not None:
            reset_s = used.minute_wait_s(limit) or used.minute_ends_s
            found.append(TokenLimit("minute", limit, used.minute, reset_s))
        if (limit := limits.tokens_per_day) is not None:
            found.append(TokenLimit("day", limit, used.day, used.day_ends_s))
        return found

    async def tokens_used(self, scope: LimitScope) -> TokensUsed:
        """Return how many tokens a scope (an API key or a tenant) has used. Raises
        ``StoreError``."""
        read_at, used = self._used.get(scope.id, (-math.inf, None))
        if used is not None and self._timer() - read_at < min(_MAX_AGE_S, used.next_change_s):
            return used
        read_at, now = self._timer(), int(self._clock())
        midnight = now - now % _DAY
        recent = await self._sums(scope, now - _MINUTE + 1, now + 1, width=1)
        today = await self._sums(scope, midnight, now + 1, width=_DAY)
        used = TokensUsed(
            recent=tuple((start + _MINUTE - now, recent[start]) for start in sorted(recent)),
            day=sum(today.values()),
            day_ends_s=midnight + _DAY - now,
        )
        if len(self._used) >= _MAX_SCOPES:
            self._used.clear()
        self._used[scope.id] = (read_at, used)
        return used

    async def _sums(self, scope: LimitScope, start: int, end: int, *, width: int) -> Counter[int]:
        """Return the tokens that a scope used from ``start`` up to, but not including, ``end`` (in
        Unix seconds): for each interval of ``width`` seconds, the start of the interval and its
        tokens. Intervals without usage are left out."""
        sums: Counter[int] = Counter()
        is_key = scope.kind == "key"
        for kind in _KINDS:
            query = UsageQuery(
                start=start,
                end=end,
                width=width,
                kind=kind,
                api_keys=(scope.name,) if is_key else None,
                tenants=None if is_key else (scope.name,),
            )
            for each in await self._totals(query):
                sums[each.start] += each.input_tokens + each.output_tokens
        return sums

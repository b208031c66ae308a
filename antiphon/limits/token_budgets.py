"""Limits on tokens per minute and per day. The usage log says how many tokens each API key and each
tenant has used, in the last minute and since midnight (UTC).

The numbers include the tokens that were used on all servers with the same store.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, NamedTuple

from msgspec import Struct

from antiphon.store.usage import UsageKind, UsageQuery, UsageTotals
from antiphon.wire.admin.client_limits import ClientLimits

from .clients import LimitScope

#: Seconds for which the token sums of a scope are cached.
_MAX_AGE_S = 2.0
#: Largest number of scopes in the cache.
_MAX_SCOPES = 10_000
#: Age in seconds from which the tokens of a second are not read again. Servers write their records
#: within this time.
_SETTLED_S = 10
_MINUTE, _DAY = 60, 86_400
_KINDS: tuple[UsageKind, ...] = ("completion", "embedding")


class TokensUsed(Struct, frozen=True):
    """The tokens that a scope (an API key or a tenant) has used. A period for which the scope has
    no limit is not read, so its tokens are missing.

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


#: Nothing was read yet.
_NOTHING = TokensUsed((), 0, 0)


class _Read(Struct, frozen=True):
    """What was read about a scope. ``at``: when, in monotonic seconds. ``limits``: its limits at
    that time. ``minute``: the tokens of each second of the last minute."""

    at: float
    limits: ClientLimits
    minute: Mapping[int, int]
    used: TokensUsed


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
        #: Id of a scope → what was last read about it.
        self._reads: dict[str, _Read] = {}

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
        """Return how many tokens a scope (an API key or a tenant) has used, in the periods for
        which it has a limit. Raises ``StoreError``."""
        read = self._reads.get(scope.id)
        if read is None or read.limits != scope.limits:
            read = _Read(-math.inf, scope.limits, {}, _NOTHING)
        timer = self._timer()
        if timer - read.at < min(_MAX_AGE_S, read.used.next_change_s):
            return read.used
        now = int(self._clock())
        midnight = now - now % _DAY
        minute: Mapping[int, int] = {}
        today: Mapping[int, int] = {}
        if scope.limits.tokens_per_minute is not None:
            minute = await self._minute(scope, now, read.minute)
        if scope.limits.tokens_per_day is not None:
            today = await self._sums(scope, midnight, now + 1, width=_DAY)
        used = TokensUsed(
            recent=tuple((start + _MINUTE - now, minute[start]) for start in sorted(minute)),
            day=sum(today.values()),
            day_ends_s=midnight + _DAY - now,
        )
        if len(self._reads) >= _MAX_SCOPES:
            self._reads.clear()
        self._reads[scope.id] = _Read(timer, scope.limits, minute, used)
        return used

    async def _minute(
        self, scope: LimitScope, now: int, known: Mapping[int, int]
    ) -> Mapping[int, int]:
        """Return the tokens of each second of the last minute. ``known``: the result of the last
        call."""
        oldest = now - _MINUTE + 1
        first = max(oldest, max(known, default=0) - _SETTLED_S)
        settled = {start: known[start] for start in known if oldest <= start < first}
        return settled | await self._sums(scope, first, now + 1, width=1)

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

"""Refusals: the errors and the headers with which a client learns that it has reached a limit.

The other modules of this package decide when a request is refused. This module alone decides how
the client is told. So each refusal for the time being has a ``retry-after``, and each refusal that
a retry would meet again says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from antiphon.errors import Overloaded, QuotaExceeded, RequestError, TooLarge


def limit_reached(what: str, *, retry_after_s: int = 1) -> Overloaded:
    """Return the error for a limit that a client has reached. ``what``: the limit, such as ``10
    requests per minute``. ``retry_after_s``: seconds after which a request can succeed."""
    return _try_again(f"Rate limit reached: {what}.", retry_after_s)


def server_is_busy(what: str, *, retry_after_s: int) -> Overloaded:
    """Return the error for a request that the server cannot take in, although its client has
    reached no limit of its own. ``what``: the reason, such as ``too many requests are waiting``."""
    return _try_again(f"The server is busy: {what}.", retry_after_s)


def quota_exceeded(what: str, *, param: str | None = None, **limits: int | None) -> QuotaExceeded:
    """Return the error for an exceeded quota.

    ``what``: the objects of which there are too many, in the plural, such as ``files``. ``limits``:
    name of a quota, such as ``max_files`` → its value. The message does not mention quotas that
    are None.
    """
    named = " and ".join(f"{name} = {limit}" for name, limit in limits.items() if limit is not None)
    return QuotaExceeded(
        f"Your quota of {what} is exceeded ({named}). Delete some and try again.", param=param
    )


def object_too_large(size: int, limit: int, *, param: str) -> TooLarge:
    """Return the error for a single object of ``size`` bytes that alone exceeds the quota of
    ``limit`` bytes. ``param``: the request field that contains the object."""
    return TooLarge(
        f"The content has {size} bytes, but you may store at most {limit} bytes in total"
        " (max_files_bytes).",
        param=param,
        code="storage_limit_exceeded",
    )


def refusal_headers(error: RequestError) -> dict[str, str]:
    """Return the headers that tell a client whether and when to retry a refused request."""
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(error.retry_after_s)
    if error.code == "insufficient_quota":
        headers["x-should-retry"] = "false"
    return headers


class LimitState(NamedTuple):
    """How far a client is from a limit. ``limit``: the number of requests or tokens per period.
    ``remaining``: how many of them are left. ``reset_s``: seconds until the limit no longer refuses
    the client, or, if it refuses nothing now, until everything is left again."""

    limit: int
    remaining: int
    reset_s: float


def limit_headers(
    what: Literal["requests", "tokens"], states: Iterable[LimitState]
) -> list[tuple[bytes, bytes]]:
    """Return OpenAI's headers ``x-ratelimit-*``. If several limits apply to a request, the headers
    describe the limit that is nearest."""
    nearest = min(states, key=lambda each: each.remaining, default=None)
    if nearest is None:
        return []
    values = {
        "limit": str(nearest.limit),
        "remaining": str(max(0, nearest.remaining)),
        "reset": _duration(nearest.reset_s),
    }
    return [
        (f"x-ratelimit-{name}-{what}".encode(), value.encode()) for name, value in values.items()
    ]


def _try_again(reason: str, retry_after_s: int) -> Overloaded:
    return Overloaded(
        f"{reason} Please try again in {retry_after_s}s.", retry_after_s=retry_after_s
    )


def _duration(seconds: float) -> str:
    """Return a duration in OpenAI's format, such as ``6m0s``."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}h"] if hours else []
    if hours or minutes:
        parts.append(f"{minutes}m")
    return "".join([*parts, f"{rest}s"])

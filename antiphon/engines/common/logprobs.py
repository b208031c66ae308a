"""Log-probabilities of tokens, as engines report them."""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.inference.tokens import Alternative

#: OpenAI's value for an unknown log-probability. It also replaces lower values, such as minus
#: infinity, which JSON cannot express.
UNKNOWN_LOGPROB = -9999.0


def finite(logprob: float | None) -> float:
    """Return ``logprob``, or ``UNKNOWN_LOGPROB`` if it is None, NaN or lower.

    For NaN, ``max`` returns its first argument.
    """
    return UNKNOWN_LOGPROB if logprob is None else max(UNKNOWN_LOGPROB, logprob)


def top_alternatives(
    candidates: Iterable[tuple[int, float | None]], count: int | None
) -> tuple[Alternative, ...]:
    """Return the likeliest ``count`` of ``candidates``, which are pairs of an id and a
    log-probability. If ``count`` is None, no alternatives are wanted."""
    if not count:
        return ()
    known = ((finite(logprob), id) for id, logprob in candidates)
    best = sorted(known, key=lambda each: -each[0])[:count]
    return tuple(Alternative(id, logprob) for logprob, id in best)

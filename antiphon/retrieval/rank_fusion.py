"""Reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009).

The method merges several rankings of the same entries. It uses only the rank of each entry and no
scores, so it can merge rankings whose scores are not comparable.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

_T = TypeVar("_T", bound=Hashable)

#: The constant k of the paper's formula.
_K = 60


def fuse_rankings(rankings: Iterable[tuple[float, Sequence[_T]]]) -> dict[_T, float]:
    """Merge weighted rankings and return the score of each entry.

    ``rankings``: pairs of a weight and a ranking. A ranking lists its best entry first. The score
    is 1 for an entry that is first in every ranking.
    """
    scores: dict[_T, float] = {}
    total = 0.0
    for weight, entries in rankings:
        if not weight:
            continue
        total += weight
        for rank, entry in enumerate(entries):
            scores[entry] = scores.get(entry, 0.0) + weight * (_K + 1) / (_K + 1 + rank)
    return {entry: score / total for entry, score in scores.items()} if total else {}


def best_scores(scores: Iterable[Mapping[_T, float]]) -> list[tuple[_T, float]]:
    """Merge the scores of several queries. Returns pairs of an entry and its highest score. The
    pair with the highest score comes first."""
    highest: dict[_T, float] = {}
    for query_scores in scores:
        for entry, score in query_scores.items():
            highest[entry] = max(score, highest.get(entry, 0.0))
    return sorted(highest.items(), key=lambda pair: -pair[1])

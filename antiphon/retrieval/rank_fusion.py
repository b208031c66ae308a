"""Rankings made one, by reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009): only places
count, so that scores of different kinds need no common measure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

__all__ = ["best", "fused"]

_T = TypeVar("_T", bound=Hashable)

#: The constant of the paper.
_K = 60


def fused(rankings: Iterable[tuple[float, Sequence[_T]]]) -> dict[_T, float]:
    """The score of each that is in a ranking: 1 if all put it first. A ranking is a weight and what
    it ranks, the best first."""
    scores: dict[_T, float] = {}
    total = 0.0
    for weight, ranked in rankings:
        if not weight:
            continue
        total += weight
        for place, each in enumerate(ranked):
            scores[each] = scores.get(each, 0.0) + weight * (_K + 1) / (_K + 1 + place)
    return {each: score / total for each, score in scores.items()} if total else {}


def best(scores: Iterable[Mapping[_T, float]]) -> list[tuple[_T, float]]:
    """Of several questions: each with its best score, the best first."""
    highest: dict[_T, float] = {}
    for one in scores:
        for each, score in one.items():
            highest[each] = max(score, highest.get(each, 0.0))
    return sorted(highest.items(), key=lambda pair: -pair[1])

"""The verdict of the soak."""

from __future__ import annotations

from tests.chaos.soak import LIMITS, Sample, growths


def _samples(*memory: int) -> list[Sample]:
    return [
        Sample(seconds=30.0 * n, memory=size, files=10, threads=5, database=0, requests=n)
        for n, size in enumerate(memory)
    ]


def test_growth_before_the_second_half_is_ignored() -> None:
    assert growths(_samples(1, 50, 80, 100, 100, 100, 100, 100))["memory"] == 0


def test_growth_in_the_second_half_is_found() -> None:
    grown = growths(_samples(100, 100, 100, 100, 100, 100, 120, 120))
    assert round(grown["memory"], 6) == 0.2 > LIMITS["memory"]
    assert grown["files"] == grown["threads"] == grown["database"] == 0

"""What a measurement says: one line, with its target where it has one."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from msgspec import Struct

__all__ = ["Line", "median", "show"]


class Line(Struct, frozen=True, kw_only=True):
    """``value`` in ``unit``, against ``target``: at most it, or at least it."""

    what: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    def told(self) -> str:
        """The line."""
        target, verdict = "", ""
        if self.at_most is not None:
            target, good = f"<= {self.at_most:g}", self.value <= self.at_most
            verdict = "ok" if good else "MISSED"
        elif self.at_least is not None:
            target, good = f">= {self.at_least:g}", self.value >= self.at_least
            verdict = "ok" if good else "MISSED"
        value = f"{self.value:,.2f}" if self.value < 100 else f"{self.value:,.0f}"
        return f"{self.what:<58} {value:>9} {self.unit:<8} {target:<9} {verdict:<7}{self.note}"


def median(values: Iterable[float]) -> float:
    """The middle one: a shared machine makes outliers."""
    return statistics.median(values)


def show(lines: Iterable[Line]) -> None:
    for line in lines:
        print(line.told().rstrip(), flush=True)

"""Format a measurement and its target as one line."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from msgspec import Struct


class Line(Struct, frozen=True, kw_only=True):
    """One measurement: ``value`` in ``unit``, with an upper or a lower target."""

    what: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    def render(self) -> str:
        """Format the line."""
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
    """Return the median. It is used because a shared machine produces outliers."""
    return statistics.median(values)


def show(lines: Iterable[Line]) -> None:
    for line in lines:
        print(line.render().rstrip(), flush=True)

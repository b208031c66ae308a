"""Counters and histograms that are plain numbers until they are scraped.

prometheus_client checks names and takes a lock for each update. Each of these metrics is updated on
the event loop alone, so it needs no lock. The times at which they were created are not exported.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

__all__ = ["PlainCounter", "PlainHistogram"]


class _Count:
    """The value of a counter for one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add ``amount``."""
        self.value += amount


class _Distribution:
    """The observations of a histogram for one set of labels."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * len(bounds)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Add an observation."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class PlainCounter(Collector):
    """A counter. The arguments are those of prometheus_client's ``Counter``."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str] = (),
        *,
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._documentation, self._labelnames = name, documentation, labelnames
        self._children: dict[tuple[str, ...], _Count] = {} if labelnames else {(): _Count()}
        registry.register(self)

    def labels(self, *values: str) -> _Count:
        """Return the counter for these label values."""
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = _Count()
        return child

    def inc(self, amount: float = 1) -> None:
        """Add ``amount`` to a counter without labels."""
        self.labels().inc(amount)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for values, child in self._children.items():
            family.add_metric(values, child.value)
        yield family


class PlainHistogram(Collector):
    """A histogram. The arguments are those of prometheus_client's ``Histogram``."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str] = (),
        *,
        registry: CollectorRegistry,
        buckets: Sequence[float],
    ) -> None:
        self._name, self._documentation, self._labelnames = name, documentation, labelnames
        self._bounds = (*map(float, buckets), inf)
        self._children: dict[tuple[str, ...], _Distribution] = {}
        if not labelnames:
            self.labels()
        registry.register(self)

    def labels(self, *values: str) -> _Distribution:
        """Return the histogram for these label values."""
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = _Distribution(self._bounds)
        return child

    def observe(self, value: float) -> None:
        """Add an observation to a histogram without labels."""
        self.labels().observe(value)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        bounds = tuple(map(floatToGoString, self._bounds))
        for values, child in self._children.items():
            counts = accumulate(map(float, child.counts))
            family.add_metric(values, list(zip(bounds, counts, strict=True)), child.sum)
        yield family

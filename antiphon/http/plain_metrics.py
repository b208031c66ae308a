"""Counters and histograms that are plain numbers until they are scraped.

prometheus_client checks names and takes a lock for each update. Each of these metrics is updated on
the event loop alone, so it needs no lock. The times at which they were created are not exported.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


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


class _Distributions(dict[tuple[str, ...], _Distribution]):
    """Label values → their observations, which begin when they are first looked up."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds

    def __missing__(self, labels: tuple[str, ...]) -> _Distribution:
        distribution = self[labels] = _Distribution(self._bounds)
        return distribution


class PlainCounter(Collector):
    """A counter. The arguments are those of prometheus_client's ``Counter``. ``values``: label
    values → count; add to it directly."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labelnames: Sequence[str] = (),
        *,
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._documentation, self._labelnames = name, documentation, labelnames
        self.values: defaultdict[tuple[str, ...], float] = defaultdict(float)
        if not labelnames:
            self.values[()] = 0.0
        registry.register(self)

    def inc(self, amount: float = 1) -> None:
        """Add ``amount`` to a counter without labels."""
        self.values[()] += amount

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labelnames)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        yield family


class PlainHistogram(Collector):
    """A histogram. The arguments are those of prometheus_client's ``Histogram``. ``of``: label
    values → their observations."""

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
        self.of = _Distributions(self._bounds)
        if not labelnames:
            self.observe = self.of[()].observe
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labelnames)
        bounds = tuple(map(floatToGoString, self._bounds))
        for labels, distribution in self.of.items():
            counts = accumulate(map(float, distribution.counts))
            family.add_metric(labels, list(zip(bounds, counts, strict=True)), distribution.sum)
        yield family

"""Metrics that are plain numbers are exported like those of prometheus_client."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from antiphon.http.plain_metrics import PlainCounter, PlainHistogram

_BUCKETS = (0.5, 1, 2.5)
_VALUES = st.sampled_from([0.0, 0.5, 0.6, 1.0, 2.0, 2.5, 7.25, 1e9])


def _exposition(registry: CollectorRegistry) -> str:
    """The exposition without the times of creation."""
    return re.sub(r".*_created.*\n", "", generate_latest(registry).decode())


@given(updates=st.lists(st.tuples(st.sampled_from("ab"), _VALUES), max_size=20))
def test_exposition_is_the_same(updates: list[tuple[str, float]]) -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    counter = Counter("c", "A counter.", ("x",), registry=theirs)
    histogram = Histogram("h", "A histogram.", ("x",), registry=theirs, buckets=_BUCKETS)
    plain_counter = PlainCounter("c", "A counter.", ("x",), registry=ours)
    plain_histogram = PlainHistogram("h", "A histogram.", ("x",), registry=ours, buckets=_BUCKETS)
    for label, value in updates:
        counter.labels(label).inc(value)
        plain_counter.values[label,] += value
        histogram.labels(label).observe(value)
        plain_histogram.of[label,].observe(value)
    assert _exposition(ours) == _exposition(theirs)


@pytest.mark.parametrize("is_updated", [False, True])
def test_metrics_without_labels_exist_from_the_start(is_updated: bool) -> None:
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    counters = Counter("c", "x", registry=theirs), PlainCounter("c", "x", registry=ours)
    histograms = (
        Histogram("h", "x", registry=theirs, buckets=_BUCKETS),
        PlainHistogram("h", "x", registry=ours, buckets=_BUCKETS),
    )
    if is_updated:
        for counter in counters:
            counter.inc()
        for histogram in histograms:
            histogram.observe(0.7)
    assert _exposition(ours) == _exposition(theirs)

"""Combine the metrics of several processes: take a snapshot of each process's metrics, and sum the
snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

#: What an engine reports about its cache of prompts → the help text of its metric. They are gauges,
#: because they begin again when the model is loaded again.
PROMPT_CACHE = {
    "states": "States of prompts that the model's engine keeps.",
    "bytes": "Bytes of the states of prompts that the model's engine keeps.",
    "limit_bytes": "Largest number of bytes of the states that the model's engine keeps.",
    "disk_bytes": "Bytes of the states of prompts that the model's engine keeps on disk.",
    "hits": "Prompts that continued the state of an earlier prompt, since the model was loaded.",
    "misses": "Prompts that continued no earlier state, since the model was loaded.",
    "evictions": "States that were deleted because of the limit, since the model was loaded.",
}
#: Metrics that are combined by their maximum instead of their sum: whether a model is loaded, the
#: lag of the slowest reader, and the cache of a model that all processes use.
_LARGEST = (
    "antiphon_model_loaded",
    "antiphon_event_log_follower_lag_batches",
    *(f"antiphon_prompt_cache_{name}" for name in PROMPT_CACHE),
)
_GAUGE = "gauge"

#: Name, labels and value.
_Sample = tuple[str, dict[str, str], float]
_SampleKey = tuple[str, tuple[tuple[str, str], ...]]


class MetricSnapshot(Struct, frozen=True):
    """The state of one metric in one process at one time. ``kind``: the Prometheus type of the
    metric."""

    name: str
    help: str
    kind: str
    samples: tuple[_Sample, ...]


def take_snapshot(registry: Collector) -> tuple[MetricSnapshot, ...]:
    """Return the current values of all metrics of a registry."""
    return tuple(
        MetricSnapshot(
            metric.name,
            metric.documentation,
            metric.type,
            tuple((sample.name, dict(sample.labels), sample.value) for sample in metric.samples),
        )
        for metric in registry.collect()
    )


def sum_metrics(
    running: Iterable[tuple[MetricSnapshot, ...]], ended: Iterable[tuple[MetricSnapshot, ...]] = ()
) -> tuple[MetricSnapshot, ...]:
    """Combine the metrics of all processes. ``running``: snapshots of the running processes.
    ``ended``: the last snapshots of processes that have ended.

    Values with the same name and labels are added, with two exceptions. For the metrics in
    ``_LARGEST``, the result is the largest value. For a sample whose name ends in ``_created``,
    which is a time, the result is the earliest time. The gauges of ended processes are left out.
    """
    sums: dict[str, tuple[MetricSnapshot, dict[_SampleKey, float]]] = {}
    for snapshots, is_running in ((running, True), (ended, False)):
        for snapshot in snapshots:
            for metric in snapshot:
                if is_running or metric.kind != _GAUGE:
                    _, values = sums.setdefault(metric.name, (metric, {}))
                    _add(metric, values)
    return tuple(
        MetricSnapshot(
            metric.name,
            metric.help,
            metric.kind,
            tuple((name, dict(labels), value) for (name, labels), value in values.items()),
        )
        for metric, values in sums.values()
    )


def _add(metric: MetricSnapshot, values: dict[_SampleKey, float]) -> None:
    for name, labels, value in metric.samples:
        key = (name, tuple(labels.items()))
        before = values.get(key)
        if before is None:
            values[key] = value
        elif name.endswith("_created"):
            values[key] = min(before, value)
        elif name in _LARGEST:
            values[key] = max(before, value)
        else:
            values[key] = before + value


class SummedMetrics(Collector):
    """Converts metric snapshots back to metrics for the Prometheus exposition."""

    def __init__(self, snapshots: Iterable[MetricSnapshot]) -> None:
        self._snapshots = tuple(snapshots)

    def collect(self) -> Iterator[Metric]:
        for snapshot in self._snapshots:
            metric = Metric(snapshot.name, snapshot.help, snapshot.kind)
            for name, labels, value in snapshot.samples:
                metric.add_sample(name, labels, value)
            yield metric

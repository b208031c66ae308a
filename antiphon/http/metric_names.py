"""Alternative metric names. Dashboards that were made for vLLM or for version 0.1 of Antiphon use
these names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

__all__ = ["MetricNames", "OtherNames"]

MetricNames = Literal["antiphon", "responses", "vllm"]

#: The metrics that had the prefix ``responses_`` in version 0.1.
_FORMER = (
    "num_requests_running",
    "num_requests_waiting",
    "http_requests",
    "requests",
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "e2e_latency_seconds",
    "prompt_tokens",
    "cached_prompt_tokens",
    "generation_tokens",
    "events",
)


class _Naming(Struct, frozen=True):
    """A set of alternative names. ``metrics`` maps Antiphon's metric names to alternative metric
    names. ``labels`` maps Antiphon's label names to alternative label names."""

    metrics: Mapping[str, str]
    labels: Mapping[str, str] = {}


_NAMINGS: Mapping[MetricNames, _Naming] = {
    "antiphon": _Naming({}),
    "responses": _Naming({f"antiphon_{name}": f"responses_{name}" for name in _FORMER}),
    "vllm": _Naming(
        {
            "antiphon_num_requests_running": "vllm:num_requests_running",
            "antiphon_num_requests_waiting": "vllm:num_requests_waiting",
            "antiphon_time_to_first_token_seconds": "vllm:time_to_first_token_seconds",
            "antiphon_time_per_output_token_seconds": "vllm:request_time_per_output_token_seconds",
            "antiphon_e2e_latency_seconds": "vllm:e2e_request_latency_seconds",
            "antiphon_queue_wait_seconds": "vllm:request_queue_time_seconds",
            "antiphon_prompt_tokens": "vllm:prompt_tokens",
            "antiphon_generation_tokens": "vllm:generation_tokens",
            "antiphon_cached_prompt_tokens": "vllm:prefix_cache_hits",
        },
        {"model": "model_name"},
    ),
}


class OtherNames(Collector):
    """Exports some metrics of ``collectors`` a second time, under alternative names.

    ``names`` selects a set of alternative names. For example, ``vllm`` selects the metric names of
    vLLM. A metric without an alternative name in the selected set is not exported a second time.
    """

    def __init__(self, collectors: Iterable[Collector], names: MetricNames) -> None:
        self._collectors = tuple(collectors)
        self._naming = _NAMINGS[names]

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        naming = self._naming
        for collector in self._collectors:
            for metric in collector.collect():
                name = naming.metrics.get(metric.name)
                if name is not None:
                    yield _renamed(metric, name, naming.labels)


def _renamed(metric: Metric, name: str, labels: Mapping[str, str]) -> Metric:
    renamed = Metric(name, metric.documentation, metric.type)
    renamed.samples = [
        Sample(
            name + sample.name[len(metric.name) :],
            {labels.get(label, label): value for label, value in sample.labels.items()},
            sample.value,
        )
        for sample in metric.samples
    ]
    return renamed

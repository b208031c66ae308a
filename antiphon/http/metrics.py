"""Prometheus metrics.

A run is counted once, at its end, so that metrics cost nothing per token. Labels come from the
served models, never from client input. Many names resemble vLLM's, with the prefix ``responses_``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from antiphon.wire.events import EVENTS, Event
from antiphon.wire.response import Response

from .admission import AdmissionQueue

__all__ = ["Metrics", "RunTiming"]

_DELTAS = frozenset(event for name, event in EVENTS.items() if name.endswith(".delta"))

#: Histogram buckets in seconds, a subset of vLLM's.
_TO_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_PER_TOKEN = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 0.75, 1, 2.5)
_END_TO_END = (0.1, 0.3, 0.8, 1.5, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800)


class RunTiming:
    """Timing of one run.

    Call ``record_events`` until ``first`` (the time of the first token) is set. A run whose
    ``record_events`` is never called counts as not ``streamed``.
    """

    __slots__ = ("_clock", "first", "started", "streamed")

    def __init__(self, started: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.started = started
        self.first: float | None = None
        self.streamed = False

    def record_events(self, batch: tuple[Event, ...]) -> None:
        """Note the events that were sent to the client."""
        self.streamed = True
        if self.first is None and any(type(event) in _DELTAS for event in batch):
            self.first = self._clock()


class _Series(Struct, frozen=True):
    """Metrics with a model label: the parents, or the children of one model, looked up once."""

    to_first: Histogram
    per_token: Histogram
    end_to_end: Histogram
    input_tokens: Counter
    cached_tokens: Counter
    output_tokens: Counter
    events: Counter

    def of(self, model: str) -> _Series:
        return _Series(*(getattr(self, field).labels(model) for field in self.__struct_fields__))


def _series(registry: CollectorRegistry) -> _Series:
    counter = partial(Counter, labelnames=("model",), registry=registry)
    histogram = partial(Histogram, labelnames=("model",), registry=registry)
    return _Series(
        to_first=histogram(
            "responses_time_to_first_token_seconds",
            "Seconds from the arrival of the request to the first streamed delta.",
            buckets=_TO_FIRST,
        ),
        per_token=histogram(
            "responses_time_per_output_token_seconds",
            "Mean seconds per output token after the first, one observation a stream.",
            buckets=_PER_TOKEN,
        ),
        end_to_end=histogram(
            "responses_e2e_latency_seconds",
            "Seconds from the arrival of the request to the end of its response.",
            buckets=_END_TO_END,
        ),
        input_tokens=counter("responses_prompt_tokens", "Input tokens."),
        cached_tokens=counter(
            "responses_cached_prompt_tokens", "Input tokens read from a prefix cache."
        ),
        output_tokens=counter("responses_generation_tokens", "Output tokens."),
        events=counter("responses_events", "Events streamed."),
    )


class Metrics:
    """The server's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._running = Gauge(
            "responses_num_requests_running", "Requests in progress.", registry=registry
        )
        self._waiting = Gauge(
            "responses_num_requests_waiting", "Requests waiting for a slot.", registry=registry
        )
        self._http = Counter(
            "responses_http_requests",
            "HTTP requests.",
            ("method", "route", "status"),
            registry=registry,
        )
        self._runs = Counter(
            "responses_requests", "Responses ended.", ("model", "status"), registry=registry
        )
        self._stalls = Counter(
            "antiphon_loop_stalls",
            "Times that the event loop was blocked for longer than stall_log_ms.",
            registry=registry,
        )
        self._parents = _series(registry)
        self._children: dict[str, _Series] = {}
        self._http_children: dict[tuple[str, str, int], Counter] = {}

    def observe_queue(self, admission: AdmissionQueue) -> None:
        """Read the gauges from this admission queue."""
        self._running.set_function(lambda: admission.running)
        self._waiting.set_function(lambda: admission.waiting)

    def count_stall(self) -> None:
        """Count one stall of the event loop. Any thread may call it."""
        self._stalls.inc()

    def count_request(self, method: str, route: str, status: int) -> None:
        """Count one HTTP request. ``route`` is a route template, or ``unknown``."""
        key = (method, route, status)
        child = self._http_children.get(key)
        if child is None:
            child = self._http_children[key] = self._http.labels(method, route, status)
        child.inc()

    def record_response(
        self, timing: RunTiming, response: Response, events: int, now: float
    ) -> None:
        """Record a response that reached its end. ``events``: number of its events."""
        of = self._series_of(response.model)
        self._runs.labels(response.model, response.status).inc()
        of.end_to_end.observe(now - timing.started)
        if timing.streamed:
            of.events.inc(events)
        if timing.first is not None:
            of.to_first.observe(timing.first - timing.started)
        usage = response.usage
        if usage is None:
            return
        of.input_tokens.inc(usage.input_tokens)
        of.cached_tokens.inc(usage.input_tokens_details.cached_tokens)
        of.output_tokens.inc(usage.output_tokens)
        if timing.first is not None and usage.output_tokens > 1:
            of.per_token.observe((now - timing.first) / (usage.output_tokens - 1))

    def count_abandoned(self, model: str) -> None:
        """Count a response whose client disconnected."""
        self._runs.labels(model, "cancelled").inc()

    def record_embeddings(self, model: str, tokens: int) -> None:
        """Count a request for embeddings."""
        self._runs.labels(model, "completed").inc()
        self._series_of(model).input_tokens.inc(tokens)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics in the requested exposition format, and its media type."""
        encode, media_type = choose_encoder(accept)
        return encode(self.registry), media_type

    def _series_of(self, model: str) -> _Series:
        found = self._children.get(model)
        if found is None:
            found = self._children[model] = self._parents.of(model)
        return found

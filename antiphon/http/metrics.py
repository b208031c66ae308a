"""What is counted, for Prometheus. Names follow vLLM's, so that its dashboards carry over.

A run is observed by the events that pass and counted once, at its end: nothing here is paid per
token. Labels come from what the server serves, never from what clients write.
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

__all__ = ["Metrics", "Observed"]

_DELTAS = frozenset(event for name, event in EVENTS.items() if name.endswith(".delta"))

#: Seconds. The buckets of vLLM, thinned out.
_TO_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_PER_TOKEN = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 0.75, 1, 2.5)
_END_TO_END = (0.1, 0.3, 0.8, 1.5, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800)


class Observed:
    """One run as it passes. ``saw`` is to be called until there is a ``first`` token; a run that is
    not ``streamed`` is never seen."""

    __slots__ = ("_clock", "first", "started", "streamed")

    def __init__(self, started: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.started = started
        self.first: float | None = None
        self.streamed = False

    def saw(self, batch: tuple[Event, ...]) -> None:
        """These go to the client."""
        self.streamed = True
        if self.first is None and any(type(event) in _DELTAS for event in batch):
            self.first = self._clock()


class _Series(Struct, frozen=True):
    """What is measured per model: the parents, or one model's children, looked up once."""

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
            "From the request's arrival to the first delta streamed.",
            buckets=_TO_FIRST,
        ),
        per_token=histogram(
            "responses_time_per_output_token_seconds",
            "Mean time per output token after the first, one observation a stream.",
            buckets=_PER_TOKEN,
        ),
        end_to_end=histogram(
            "responses_e2e_latency_seconds",
            "From the request's arrival to the end of its response.",
            buckets=_END_TO_END,
        ),
        input_tokens=counter("responses_prompt_tokens", "Input tokens."),
        cached_tokens=counter(
            "responses_cached_prompt_tokens", "Input tokens that were not computed again."
        ),
        output_tokens=counter("responses_generation_tokens", "Output tokens."),
        events=counter("responses_events", "Events streamed."),
    )


class Metrics:
    """The server's numbers in a registry of its own; others may register more in it."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._running = Gauge(
            "responses_num_requests_running", "Requests being answered.", registry=registry
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
        self._parents = _series(registry)
        self._children: dict[str, _Series] = {}
        self._http_children: dict[tuple[str, str, int], Counter] = {}

    def watch(self, gate: AdmissionQueue) -> None:
        """Read the gauges off this gate when asked."""
        self._running.set_function(lambda: gate.running)
        self._waiting.set_function(lambda: gate.waiting)

    def counted(self, method: str, route: str, status: int) -> None:
        """One HTTP exchange. ``route`` is a template, or ``unknown``."""
        key = (method, route, status)
        child = self._http_children.get(key)
        if child is None:
            child = self._http_children[key] = self._http.labels(method, route, status)
        child.inc()

    def ended(self, observed: Observed, response: Response, events: int, now: float) -> None:
        """One response that came to an end of its own. ``events``: how many it had."""
        of = self._of(response.model)
        self._runs.labels(response.model, response.status).inc()
        of.end_to_end.observe(now - observed.started)
        if observed.streamed:
            of.events.inc(events)
        if observed.first is not None:
            of.to_first.observe(observed.first - observed.started)
        usage = response.usage
        if usage is None:
            return
        of.input_tokens.inc(usage.input_tokens)
        of.cached_tokens.inc(usage.input_tokens_details.cached_tokens)
        of.output_tokens.inc(usage.output_tokens)
        if observed.first is not None and usage.output_tokens > 1:
            of.per_token.observe((now - observed.first) / (usage.output_tokens - 1))

    def abandoned(self, model: str) -> None:
        """One response whose client left."""
        self._runs.labels(model, "cancelled").inc()

    def embedded(self, model: str, tokens: int) -> None:
        """One request for embeddings."""
        self._runs.labels(model, "completed").inc()
        self._of(model).input_tokens.inc(tokens)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All numbers as text, and its media type."""
        encode, media_type = choose_encoder(accept)
        return encode(self.registry), media_type

    def _of(self, model: str) -> _Series:
        found = self._children.get(model)
        if found is None:
            found = self._children[model] = self._parents.of(model)
        return found

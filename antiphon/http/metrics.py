"""Prometheus metrics.

A run is counted once, at its end, so that metrics cost nothing per token. Labels come from the
served models and the settings, never from client input. Many names resemble vLLM's, with the prefix
``antiphon_``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol
from weakref import WeakSet

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import choose_encoder

from antiphon.limits.admission import Admission
from antiphon.runs.usage_counter import TOOL_KINDS, UsageRecord
from antiphon.tracing.base import MetricsExporter
from antiphon.wire.events import EVENTS, Event
from antiphon.wire.response import Response, Usage

from .metric_sums import PROMPT_CACHE, MetricSnapshot, SummedMetrics, take_snapshot
from .plain_metrics import PlainCounter, PlainHistogram

#: Takes the metrics of this process, and returns the metrics of all processes of the server.
CollectMetrics = Callable[[tuple[MetricSnapshot, ...]], Awaitable[tuple[MetricSnapshot, ...]]]

_DELTAS = frozenset(event for name, event in EVENTS.items() if name.endswith(".delta"))

#: Histogram buckets in seconds, a subset of vLLM's.
_TO_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_PER_TOKEN = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 0.75, 1, 2.5)
_END_TO_END = (0.1, 0.3, 0.8, 1.5, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800)
_TOOL_CALL = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_STORE = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
#: The label of tenants that the settings do not name.
_OTHER_TENANTS = "other"
#: Kind of a request whose tokens are counted → name of its operation in OpenTelemetry.
_OPERATIONS: Mapping[str, str] = {"completion": "chat", "embedding": "embeddings"}


class RunTiming:
    """The timing of one run. ``started_at``: when the request arrived. ``first_token_at``: when the
    first token was sent; None until then. Both are times on ``clock``, in seconds.

    For a streamed run, call ``record_events`` for each batch of events until ``first_token_at`` is
    set. For other runs, do not call it: ``is_streamed`` then stays false.
    """

    __slots__ = ("_clock", "first_token_at", "is_streamed", "started_at")

    def __init__(self, started_at: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.started_at = started_at
        self.first_token_at: float | None = None
        self.is_streamed = False

    def record_events(self, batch: tuple[Event, ...]) -> None:
        """Record that a batch of events was sent to the client. Sets ``is_streamed``. Sets
        ``first_token_at`` if the batch contains the first token."""
        self.is_streamed = True
        if self.first_token_at is None and not _DELTAS.isdisjoint(map(type, batch)):
            self.first_token_at = self._clock()


class _Series(Struct, frozen=True):
    """The metrics that have a model label."""

    to_first: PlainHistogram
    per_token: PlainHistogram
    end_to_end: PlainHistogram
    input_tokens: PlainCounter
    cached_tokens: PlainCounter
    output_tokens: PlainCounter
    events: PlainCounter

    def count_tokens(self, model: str, usage: Usage) -> None:
        """Count the tokens of an ended response."""
        labels = (model,)
        self.input_tokens.values[labels] += usage.input_tokens
        self.cached_tokens.values[labels] += usage.input_tokens_details.cached_tokens
        self.output_tokens.values[labels] += usage.output_tokens


def _series(registry: CollectorRegistry) -> _Series:
    counter = partial(PlainCounter, labelnames=("model",), registry=registry)
    histogram = partial(PlainHistogram, labelnames=("model",), registry=registry)
    return _Series(
        to_first=histogram(
            "antiphon_time_to_first_token_seconds",
            "Time in seconds from the arrival of a streamed request to its first delta. Background"
            " responses are not included.",
            buckets=_TO_FIRST,
        ),
        per_token=histogram(
            "antiphon_time_per_output_token_seconds",
            "Mean time in seconds per output token after the first one. Each streamed response is"
            " one observation. Background responses are not included.",
            buckets=_PER_TOKEN,
        ),
        end_to_end=histogram(
            "antiphon_e2e_latency_seconds",
            "Time in seconds from the arrival of a request to the end of its response. Background"
            " responses are not included.",
            buckets=_END_TO_END,
        ),
        input_tokens=counter(
            "antiphon_prompt_tokens", "Input tokens of ended responses and of embeddings requests."
        ),
        cached_tokens=counter(
            "antiphon_cached_prompt_tokens",
            "Input tokens of ended responses that an engine read from its prefix cache.",
        ),
        output_tokens=counter("antiphon_generation_tokens", "Output tokens of ended responses."),
        events=counter(
            "antiphon_events",
            "Events of streamed responses. Background responses are not included.",
        ),
    )


class _Follower(Protocol):
    """A reader of an event log. ``pending``: the number of batches of events that wait for the
    reader."""

    @property
    def pending(self) -> int: ...


class _QueueSeries:
    """Metrics of the queue in which requests to models wait."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge(
            "antiphon_num_requests_running",
            "Requests to models that are being processed.",
            registry=registry,
        )
        self.waiting = Gauge(
            "antiphon_num_requests_waiting",
            "Requests to models that wait in the queue.",
            registry=registry,
        )
        self.wait = PlainHistogram(
            "antiphon_queue_wait_seconds",
            "Time in seconds that a request waited in the queue; 0 if it did not have to wait.",
            registry=registry,
            buckets=_TO_FIRST,
        )


def _prompt_cache_gauges(registry: CollectorRegistry) -> Mapping[str, Gauge]:
    """Return the gauges of ``PROMPT_CACHE``, by its names."""
    return {
        name: Gauge(f"antiphon_prompt_cache_{name}", text, ("model",), registry=registry)
        for name, text in PROMPT_CACHE.items()
    }


class _TenantSeries:
    """The metrics that have a tenant label. They count requests and tokens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge(
            "antiphon_tenant_requests_running",
            "Requests to models that are being processed, by tenant.",
            ("tenant",),
            registry=registry,
        )
        self.waiting = Gauge(
            "antiphon_tenant_requests_waiting",
            "Requests to models that wait in the queue, by tenant.",
            ("tenant",),
            registry=registry,
        )
        self.requests = PlainCounter(
            "antiphon_tenant_requests",
            "Requests to models that have ended, including background responses, by tenant.",
            ("tenant", "status"),
            registry=registry,
        )
        self.tokens = PlainCounter(
            "antiphon_tenant_tokens",
            "Tokens by tenant and type: input, output, and cached (the part of input that an engine"
            " read from its prefix cache).",
            ("tenant", "type"),
            registry=registry,
        )


class _StoreSeries:
    """Metrics of the store and of the event logs in it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = PlainHistogram(
            "antiphon_store_operation_seconds",
            "Duration of an operation of the store in seconds.",
            ("operation",),
            registry=registry,
            buckets=_STORE,
        )
        self.errors = PlainCounter(
            "antiphon_store_errors",
            "Operations of the store that failed.",
            ("operation",),
            registry=registry,
        )
        self.batches = PlainCounter(
            "antiphon_event_log_batches",
            "Batches of events that were appended to the event logs of background runs.",
            registry=registry,
        )
        self.events = PlainCounter(
            "antiphon_event_log_events",
            "Events that were appended to the event logs of background runs.",
            registry=registry,
        )
        self.followers = Gauge(
            "antiphon_event_log_followers",
            "Clients that stream the events of background runs from this server.",
            registry=registry,
        )
        self.lag = Gauge(
            "antiphon_event_log_follower_lag_batches",
            "Batches of events that wait for the slowest client that streams a background run.",
            registry=registry,
        )


class _ToolSeries:
    """Metrics of server-side tool calls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.calls = PlainCounter(
            "antiphon_tool_calls",
            "Calls of server-side tools that have ended.",
            ("tool", "status"),
            registry=registry,
        )
        self.seconds = PlainHistogram(
            "antiphon_tool_call_seconds",
            "Duration of a call of a server-side tool in seconds.",
            ("tool",),
            registry=registry,
            buckets=_TOOL_CALL,
        )


class Metrics:
    """The server's metrics, in a separate Prometheus registry. Implements ``StoreObserver``.

    - ``tenants``: tenants with their own label value; all other tenants count as ``other``.
    - ``exporter``: also receives measurements of each request, as OpenTelemetry's conventions
      define them.
    """

    _collect: CollectMetrics | None = None

    def __init__(
        self,
        tenants: Collection[str] = ("default",),
        *,
        exporter: MetricsExporter | None = None,
    ) -> None:
        self.registry = registry = CollectorRegistry()
        self._tenant_names = frozenset(tenants)
        self._exporter = exporter or MetricsExporter()
        self._queue = _QueueSeries(registry)
        self._http = PlainCounter(
            "antiphon_http_requests",
            "HTTP requests that have ended.",
            ("method", "route", "status"),
            registry=registry,
        )
        self._runs = PlainCounter(
            "antiphon_requests",
            "Responses and embeddings requests that have ended. A background response is counted by"
            " the server that ends it.",
            ("model", "status"),
            registry=registry,
        )
        self._stalls = Counter(
            "antiphon_loop_stalls",
            "How often the event loop was blocked for longer than stall_log_ms.",
            registry=registry,
        )
        self._of_models = _series(registry)
        self._tenants = _TenantSeries(registry)
        self._tools = _ToolSeries(registry)
        self._store = _StoreSeries(registry)
        self._loaded = Gauge(
            "antiphon_model_loaded",
            "1 if the model is loaded, else 0.",
            ("model",),
            registry=registry,
        )
        self._followers: WeakSet[_Follower] = WeakSet()
        self._store.followers.set_function(lambda: len(self._followers))
        self._store.lag.set_function(self._follower_lag)
        self._models: Callable[[], Mapping[str, bool]] = dict
        self._caches: Callable[[], Mapping[str, Mapping[str, int]]] = dict
        self._prompt_cache = _prompt_cache_gauges(registry)

    def observe_queue(self, admission: Admission) -> None:
        """Export the numbers of running and waiting requests of this admission queue as gauges."""
        self._queue.running.set_function(lambda: admission.running)
        self._queue.waiting.set_function(lambda: admission.waiting)
        known, tenants = self._tenant_names, self._tenants
        for name in known:
            tenants.running.labels(name).set_function(partial(admission.running_of, name))
            tenants.waiting.labels(name).set_function(partial(admission.waiting_of, name))
        tenants.running.labels(_OTHER_TENANTS).set_function(
            lambda: admission.running - sum(map(admission.running_of, known))
        )
        tenants.waiting.labels(_OTHER_TENANTS).set_function(
            lambda: admission.waiting - sum(map(admission.waiting_of, known))
        )

    def observe_models(
        self,
        models: Callable[[], Mapping[str, bool]],
        caches: Callable[[], Mapping[str, Mapping[str, int]]] = dict,
    ) -> None:
        """Export gauges for each model. ``models``: returns whether each model is loaded.
        ``caches``: returns the values of ``PROMPT_CACHE`` of each model that reports them."""
        self._models, self._caches = models, caches

    def observe_wait(self, seconds: float) -> None:
        """Record how long an admitted request waited in the queue."""
        self._queue.wait.observe(seconds)

    def record_tool_call(self, tool: str, seconds: float, failed: bool) -> None:
        """Record a server-side tool call that has ended. ``tool``: the type of its output item."""
        self._tools.calls.values[tool, "failed" if failed else "completed"] += 1
        self._tools.seconds.of[tool,].observe(seconds)
        self._exporter.record_tool_call(tool, seconds, failed)

    def count_stall(self) -> None:
        """Count one stall of the event loop. Any thread may call it."""
        self._stalls.inc()

    def count_request(self, method: str, route: str, status: int) -> None:
        """Count one HTTP request. ``route`` is a route template, or ``unknown``."""
        self._http.values[method, route, str(status)] += 1

    def record_outcome(
        self, timing: RunTiming, response: Response, events: int, now: float
    ) -> None:
        """Record a foreground response that reached its end or was abandoned by its client.
        ``events``: number of its events. ``now``: the current time on the clock of ``timing``."""
        if response.status in ("in_progress", "cancelled"):
            self.count_abandoned(response.model)
        else:
            self.record_response(timing, response, events, now)

    def record_background(self, response: Response) -> None:
        """Count a background response that ended in this process, and count its tokens. Latencies
        are not recorded, because no client waits for the response."""
        self._runs.values[response.model, response.status] += 1
        if response.usage is not None:
            self._of_models.count_tokens(response.model, response.usage)

    def record_response(
        self, timing: RunTiming, response: Response, events: int, now: float
    ) -> None:
        """Record a response that reached its end. ``events``: number of its events. ``now``: the
        current time on the clock of ``timing``."""
        series, model = self._of_models, response.model
        labels = (model,)
        self._runs.values[model, response.status] += 1
        series.end_to_end.of[labels].observe(now - timing.started_at)
        # A series without observations is exported, too.
        to_first, per_token = series.to_first.of[labels], series.per_token.of[labels]
        series.events.values[labels] += events if timing.is_streamed else 0
        if timing.first_token_at is not None:
            seconds = timing.first_token_at - timing.started_at
            to_first.observe(seconds)
            self._exporter.record_first_token(model, seconds)
        usage = response.usage
        if usage is None:
            return
        series.count_tokens(model, usage)
        if timing.first_token_at is not None and usage.output_tokens > 1:
            seconds = (now - timing.first_token_at) / (usage.output_tokens - 1)
            per_token.observe(seconds)
            self._exporter.record_output_token(model, seconds)

    def count_abandoned(self, model: str) -> None:
        """Count a response whose client disconnected."""
        self._runs.values[model, "cancelled"] += 1

    def record_embeddings(self, model: str, tokens: int) -> None:
        """Count a request for embeddings and its input tokens."""
        self._runs.values[model, "completed"] += 1
        self._of_models.input_tokens.values[model,] += tokens

    # --- the store -------------------------------------------------------------------------------

    def on_operation(self, operation: str, seconds: float, *, failed: bool) -> None:
        """Record one operation of the store: its duration in ``seconds``, and whether it
        ``failed``."""
        self._store.seconds.of[operation,].observe(seconds)
        if failed:
            self._store.errors.values[operation,] += 1

    def on_append(self, batches: int, events: int) -> None:
        """Count events that were appended to event logs. ``batches``: the number of batches in
        which they were appended."""
        self._store.batches.inc(batches)
        self._store.events.inc(events)

    def on_usage(self, records: Sequence[UsageRecord]) -> None:
        """Add the usage of requests to their tenants' metrics. What models for audio and tools have
        read is not measured in tokens, and calls of tools are no requests."""
        for record in records:
            if record.kind in TOOL_KINDS:
                continue
            tenant = record.tenant if record.tenant in self._tenant_names else _OTHER_TENANTS
            status = _status(record)
            self._tenants.requests.values[tenant, status] += record.requests
            if (operation := _OPERATIONS.get(record.kind)) is None:
                continue
            tokens = self._tenants.tokens.values
            tokens[tenant, "input"] += record.input_tokens
            tokens[tenant, "cached"] += record.cached_tokens
            tokens[tenant, "output"] += record.output_tokens
            self._exporter.record_request(
                record.model,
                operation,
                seconds=record.latency_ms / 1000,
                input_tokens=record.input_tokens,
                output_tokens=record.output_tokens,
                status=status,
                has_tool_calls=record.tool_calls > 0,
            )

    def on_follower(self, subscription: _Follower) -> None:
        """Include a reader of an event log in the gauges about readers, as long as the reader
        exists. ``subscription``: the reader."""
        self._followers.add(subscription)

    def _follower_lag(self) -> int:
        return max((each.pending for each in list(self._followers)), default=0)

    # --- reading ---------------------------------------------------------------------------------

    def collect_from(self, collect: CollectMetrics) -> None:
        """From now on, export the metrics that ``collect`` returns. ``collect`` takes the metrics
        of this process, and returns the sums over all processes of the server."""
        self._collect = collect

    def snapshot(self) -> tuple[MetricSnapshot, ...]:
        """Return the metrics of this process."""
        for model, is_loaded in self._models().items():
            self._loaded.labels(model).set(is_loaded)
        for model, values in self._caches().items():
            for name, gauge in self._prompt_cache.items():
                gauge.labels(model).set(values[name])
        return take_snapshot(self.registry)

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics in the requested exposition format, and the media type of this
        format."""
        encode, media_type = choose_encoder(accept)
        own = self.snapshot()
        shown = own if self._collect is None else await self._collect(own)
        return encode(SummedMetrics(shown)), media_type


def _status(record: UsageRecord) -> str:
    if record.failed_requests:
        return "failed"
    return "cancelled" if record.cancelled_requests else "completed"

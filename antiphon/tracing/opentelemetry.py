"""A tracer and an exporter of metrics that use OpenTelemetry's SDK. A thread of the SDK sends the
spans and the metrics by OTLP over HTTP.

``OTEL_EXPORTER_OTLP_*``, ``OTEL_RESOURCE_ATTRIBUTES``, ``OTEL_TRACES_SAMPLER`` and
``OTEL_METRIC_EXPORT_INTERVAL`` have their usual meaning. Names, attributes and buckets follow the
semantic conventions for generative AI, which are in development.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from antiphon.support.installation import needs_packages

from .base import (
    PROVIDER_NAME,
    AttributeValue,
    MetricsExporter,
    Span,
    SpanKindName,
    TraceHeaders,
    Tracer,
)

#: The path of OTLP over HTTP below the collector's address.
_TRACES_PATH = "/v1/traces"


def open_tracer(endpoint: str | None, *, with_content: bool = False) -> OtelTracer:
    """Return a tracer that exports to the OTLP collector at ``endpoint``.

    If ``endpoint`` is None, environment variables set the address; the default is
    ``http://localhost:4318``. Raises ``SetupError`` if the optional packages are not installed.
    """
    with needs_packages("Traces need OpenTelemetry's SDK", "otel"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    address = None if endpoint is None else endpoint.rstrip("/") + _TRACES_PATH
    return OtelTracer(BatchSpanProcessor(OTLPSpanExporter(address)), with_content=with_content)


class OtelTracer(Tracer):
    """Starts spans of OpenTelemetry's SDK. ``processor``: the ``SpanProcessor`` that receives the
    spans."""

    enabled = True

    def __init__(self, processor: Any, *, with_content: bool = False) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create(
            {"service.name": "antiphon", "service.version": version("antiphon")}
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("antiphon")
        self._propagator = TraceContextTextMapPropagator()
        self._kinds = {kind: SpanKind[kind.upper()] for kind in ("internal", "server", "client")}
        self.with_content = with_content

    def start(
        self,
        name: str,
        parent: TraceHeaders,
        attributes: Mapping[str, AttributeValue | None] | None = None,
        *,
        kind: SpanKindName = "internal",
    ) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        context = self._propagator.extract(parent, Context())
        span = self._tracer.start_span(
            name, context, self._kinds[kind], attributes=_without_nulls(attributes or {})
        )
        headers: dict[str, str] = {}
        self._propagator.inject(headers, set_span_in_context(span, context))
        return _OtelSpan(span, headers)

    def close(self) -> None:
        self._provider.shutdown()


class _OtelSpan(Span):
    """A span that OpenTelemetry's SDK records."""

    is_recording = True

    def __init__(self, span: Any, headers: TraceHeaders) -> None:
        super().__init__(headers)
        self._span = span
        self._has_failed = False

    def set(self, attributes: Mapping[str, AttributeValue | None]) -> None:
        self._span.set_attributes(_without_nulls(attributes))

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def event(self, name: str) -> None:
        self._span.add_event(name)

    def fail(self, error: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        if self._has_failed:
            return
        self._has_failed = True
        self._span.set_attribute("error.type", error)
        self._span.set_status(Status(StatusCode.ERROR, error))

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end()


def _without_nulls(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    return {name: value for name, value in attributes.items() if value is not None}


#: The path of OTLP over HTTP below the collector's address.
_METRICS_PATH = "/v1/metrics"

_DURATION = (
    *(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64),
    *(1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92),
)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_OUTPUT_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = tuple(4**power for power in range(14))


def open_exporter(endpoint: str | None) -> OtelMetrics:
    """Return an exporter to the OTLP collector at ``endpoint``.

    If ``endpoint`` is None, environment variables set the address; the default is
    ``http://localhost:4318``. Raises ``SetupError`` if the optional packages are not installed.
    """
    with needs_packages("Metrics by OTLP need OpenTelemetry's SDK", "otel"):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    address = None if endpoint is None else endpoint.rstrip("/") + _METRICS_PATH
    return OtelMetrics(PeriodicExportingMetricReader(OTLPMetricExporter(address)))


class OtelMetrics(MetricsExporter):
    """Records histograms with OpenTelemetry's SDK. ``reader``: the ``MetricReader`` that collects
    the histograms."""

    def __init__(self, reader: Any) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource

        resource = Resource.create(
            {"service.name": "antiphon", "service.version": version("antiphon")}
        )
        self._provider = MeterProvider((reader,), resource=resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("antiphon")
        self._duration = self._histogram(
            "gen_ai.server.request.duration", "s", "Duration of a request.", _DURATION
        )
        self._first_token = self._histogram(
            "gen_ai.server.time_to_first_token", "s", "Time to the first token.", _FIRST_TOKEN
        )
        self._output_token = self._histogram(
            "gen_ai.server.time_per_output_token",
            "s",
            "Time per output token after the first.",
            _OUTPUT_TOKEN,
        )
        self._agent = self._histogram(
            "gen_ai.invoke_agent.duration",
            "s",
            "Duration of a response in which the model called server-side tools.",
            _DURATION,
        )
        self._tool = self._histogram(
            "gen_ai.execute_tool.duration", "s", "Duration of a server-side tool call.", _DURATION
        )
        self._tokens = self._histogram(
            "gen_ai.client.token.usage", "{token}", "Input and output tokens.", _TOKENS
        )

    def record_request(
        self,
        model: str,
        operation: str,
        *,
        seconds: float,
        input_tokens: int,
        output_tokens: int,
        status: str,
        has_tool_calls: bool = False,
    ) -> None:
        attributes = _attributes(model, operation)
        outcome = {} if status == "completed" else {"error.type": status}
        self._duration.record(seconds, {**attributes, **outcome})
        if has_tool_calls:
            self._agent.record(seconds, {**_attributes(model, "invoke_agent"), **outcome})
        self._tokens.record(input_tokens, {**attributes, "gen_ai.token.type": "input"})
        if operation == "chat":
            self._tokens.record(output_tokens, {**attributes, "gen_ai.token.type": "output"})

    def record_tool_call(self, tool: str, seconds: float, failed: bool) -> None:
        outcome = {"error.type": "tool_error"} if failed else {}
        names = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool}
        self._tool.record(seconds, {**names, **outcome})

    def record_first_token(self, model: str, seconds: float) -> None:
        self._first_token.record(seconds, _attributes(model, "chat"))

    def record_output_token(self, model: str, seconds: float) -> None:
        self._output_token.record(seconds, _attributes(model, "chat"))

    def close(self) -> None:
        self._provider.shutdown()

    def _histogram(self, name: str, unit: str, description: str, buckets: Sequence[float]) -> Any:
        return self._meter.create_histogram(
            name, unit, description, explicit_bucket_boundaries_advisory=buckets
        )


def _attributes(model: str, operation: str) -> dict[str, str]:
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER_NAME,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
    }

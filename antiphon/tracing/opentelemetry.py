"""A tracer that uses OpenTelemetry's SDK. A thread of the SDK sends the spans by OTLP over HTTP.

``OTEL_EXPORTER_OTLP_*``, ``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_TRACES_SAMPLER`` have their usual
meaning. Attributes follow the semantic conventions for generative AI, which are in development.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from antiphon.errors import SetupError
from antiphon.support.installation import needs_extra

from .base import AttributeValue, Span, SpanKindName, TraceHeaders, Tracer

#: The path of OTLP over HTTP below the collector's address.
_TRACES_PATH = "/v1/traces"


def open_tracer(endpoint: str | None, *, with_content: bool = False) -> OtelTracer:
    """Return a tracer that exports to the OTLP collector at ``endpoint``.

    If ``endpoint`` is None, environment variables set the address; the default is
    ``http://localhost:4318``. Raises ``SetupError`` if the optional packages are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise SetupError(needs_extra("Traces need OpenTelemetry's SDK", "otel")) from None
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

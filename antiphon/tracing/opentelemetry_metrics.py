"""A metrics exporter that uses OpenTelemetry's SDK. A thread of the SDK sends the metrics by OTLP
over HTTP.

Names, attributes and buckets follow the semantic conventions for generative AI, which are in
development. ``OTEL_EXPORTER_OTLP_*`` and ``OTEL_METRIC_EXPORT_INTERVAL`` have their usual meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from antiphon.errors import SetupError
from antiphon.support.installation import needs_extra

from .base import PROVIDER_NAME
from .metrics import MetricsExporter

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
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ImportError:
        raise SetupError(needs_extra("Metrics by OTLP need OpenTelemetry's SDK", "otel")) from None
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

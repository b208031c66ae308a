"""The base classes of tracers, spans and exporters of metrics. The base classes record nothing.
Their subclasses in ``opentelemetry`` record spans and metrics.

A span is identified by its W3C trace context headers (``traceparent``, ``tracestate``), so another
process can start a child of the span. Clients send these headers in requests, and Antiphon sends
them to engines and upstreams. The headers are also stored with a background run, so a later process
can continue its trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Self

#: Value of the attribute ``gen_ai.provider.name``. The semantic conventions for generative AI
#: require this attribute for each model call.
PROVIDER_NAME = "antiphon"

#: Headers of the W3C trace context.
TraceHeaders = Mapping[str, str]
AttributeValue = str | int | float | bool | tuple[str, ...]
SpanKindName = Literal["internal", "server", "client"]


class Span:
    """A span: one timed step of a request. This base class records nothing. A span is a context
    manager: it ends when the ``with`` block ends.

    ``headers``: the trace context for child spans. ``is_recording``: whether the span records
    attributes.
    """

    is_recording = False

    def __init__(self, headers: TraceHeaders) -> None:
        self.headers = headers

    def set(self, attributes: Mapping[str, AttributeValue | None]) -> None:
        """Set attributes of the span. An attribute whose value is None is not set."""

    def rename(self, name: str) -> None:
        """Replace the name of the span."""

    def event(self, name: str) -> None:
        """Record an event in the span, with the current time."""

    def fail(self, error: str) -> None:
        """Mark the span as failed. ``error``: the code of the error. Never pass its message, which
        may contain user data. Only the first error is recorded."""

    def end(self) -> None:
        """End the span. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail(str(getattr(error, "code", None) or type(error).__name__))
        self.end()


class Tracer:
    """Starts spans. This base class records nothing: its spans only pass on the trace context that
    the client sent.

    ``enabled``: whether spans are recorded. ``with_content``: whether spans may contain prompts and
    answers.
    """

    enabled = False
    with_content = False

    def start(
        self,
        name: str,
        parent: TraceHeaders,
        attributes: Mapping[str, AttributeValue | None] | None = None,
        *,
        kind: SpanKindName = "internal",
    ) -> Span:
        """Start a child span of the span that ``parent`` identifies. If ``parent`` is empty, the
        span has no parent."""
        return Span(parent)

    def close(self) -> None:
        """Export the spans that have not been exported yet."""


class MetricsExporter:
    """Base class of exporters for metrics of requests. Its methods do nothing; a subclass records
    the metrics and exports them."""

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
        """Record a request that ended. ``operation``: ``chat`` or ``embeddings``. ``status``:
        ``completed``, ``failed`` or ``cancelled``. ``has_tool_calls``: whether the model called
        server-side tools."""

    def record_tool_call(self, tool: str, seconds: float, failed: bool) -> None:
        """Record a server-side tool call that has ended. ``tool``: the type of its output item."""

    def record_first_token(self, model: str, seconds: float) -> None:
        """Record the time from the arrival of a streamed request to its first token."""

    def record_output_token(self, model: str, seconds: float) -> None:
        """Record how many seconds a streamed request took per output token, on average. The first
        token is not counted."""

    def close(self) -> None:
        """Export the metrics that have not been exported yet."""

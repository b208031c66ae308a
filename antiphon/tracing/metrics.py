"""An exporter of metrics that follow OpenTelemetry's conventions for generative AI. By default, no
metrics are recorded."""

from __future__ import annotations


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

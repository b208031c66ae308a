"""Tracer and span. Without an exporter they record nothing.

A span is identified by its W3C trace context headers (``traceparent``, ``tracestate``), so that its
children may be started in another process. A request carries these headers, a background run is
stored with them, and engines and upstreams receive them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Self

__all__ = ["AttributeValue", "Kind", "Span", "TraceHeaders", "Tracer"]

#: Headers of the W3C trace context.
TraceHeaders = Mapping[str, str]
AttributeValue = str | int | float | bool | tuple[str, ...]
Kind = Literal["internal", "server", "client"]


class Span:
    """A span that records nothing. As a context manager it ends with its block.

    ``headers``: the trace context of its children. ``is_recording``: attributes have an effect.
    """

    is_recording = False

    def __init__(self, headers: TraceHeaders) -> None:
        self.headers = headers

    def set(self, attributes: Mapping[str, AttributeValue | None]) -> None:
        """Set attributes of the span. An attribute whose value is None is not set."""

    def rename(self, name: str) -> None:
        """Replace the name."""

    def event(self, name: str) -> None:
        """Record an event with the current time in the span."""

    def fail(self, error: str) -> None:
        """Mark the span as failed. Only the first error is recorded. ``error``: the code of the
        error. Never pass its message."""

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
    """Starts spans that record nothing, and passes the trace context of clients on.

    ``enabled``: spans are recorded. ``with_content``: they may contain prompts and answers.
    """

    enabled = False
    with_content = False

    def start(
        self,
        name: str,
        parent: TraceHeaders,
        attributes: Mapping[str, AttributeValue | None] | None = None,
        *,
        kind: Kind = "internal",
    ) -> Span:
        """Start a child span of the span that ``parent`` identifies. Without ``parent``, the span
        is a root."""
        return Span(parent)

    def close(self) -> None:
        """Export what has not been exported yet."""

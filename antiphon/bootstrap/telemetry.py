"""Logs, traces, metrics, and the watchdog of the event loop."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext

from antiphon.config.settings import Settings
from antiphon.http.metrics import Metrics
from antiphon.support.log import Log
from antiphon.support.logs import LogLevel, open_log
from antiphon.support.loop_watchdog import LoopWatchdog
from antiphon.tracing.base import MetricsExporter, Tracer
from antiphon.workers.context import WorkerContext


async def open_metrics(
    stack: AsyncExitStack, settings: Settings, worker: WorkerContext | None
) -> Metrics:
    """Create the metrics of this process. If the setting ``metrics_export`` is on, the metrics are
    also sent to a collector by OpenTelemetry. Worker processes share their metrics."""
    exporter = _metrics_exporter(settings)
    stack.push_async_callback(asyncio.to_thread, exporter.close)
    tenants = {"default", *settings.tenants, *(key.tenant for key in settings.keys)}
    metrics = Metrics(tenants, exporter=exporter)
    if worker is not None:
        await stack.enter_async_context(worker.share_metrics(metrics))
    return metrics


def open_watchdog(
    settings: Settings, log: Log, metrics: Metrics
) -> AbstractAsyncContextManager[LoopWatchdog | None]:
    """Return a context manager that watches the event loop for stalls. Enter it only after models
    and packages are loaded: their loading may stall the loop, but at that time no client waits."""
    if not settings.stall_log_ms:
        return nullcontext()
    return LoopWatchdog(settings.stall_log_ms / 1000, log=log, on_stall=metrics.count_stall)


def open_server_log(settings: Settings, level: LogLevel | None = None, **fields: object) -> Log:
    """Return a logger that writes to standard error. ``level``: the level that a reload can change;
    the default is the level of the settings. ``fields``: values that every line has."""
    minimum = level or settings.log_level
    return open_log(sys.stderr, style=settings.log_format, level=minimum, **fields)


def open_server_tracer(settings: Settings) -> Tracer:
    """Return the tracer that the settings name. It records nothing if traces are off."""
    if settings.traces == "off":
        return Tracer()
    from antiphon.tracing.opentelemetry import open_tracer

    return open_tracer(settings.otlp_endpoint, with_content=settings.trace_content)


def _metrics_exporter(settings: Settings) -> MetricsExporter:
    if settings.metrics_export == "off":
        return MetricsExporter()
    from antiphon.tracing.opentelemetry import open_exporter

    return open_exporter(settings.otlp_endpoint)

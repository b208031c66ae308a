"""Metrics: what a scraper and an OTLP collector learn of the work of a server."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from antiphon.errors import BackendError, SetupError
from antiphon.http.metrics import Metrics
from antiphon.store.usage import UsageKind, UsageRecord
from antiphon.stream.deltas import Open, Text
from antiphon.tracing.opentelemetry import OtelMetrics, open_exporter
from antiphon.wire.items import Message
from tests.conformance.conftest import Serve
from tests.conformance.server import Server, engine
from tests.conformance.stepped_backend import SteppedBackend
from tests.conformance.test_web_search import STEPS, local, providers

__all__ = ["providers"]  # a fixture


async def scrape(server: Server) -> dict[str, float]:
    """Return ``name{label,label}`` → value."""
    text = (await server.client.get("/metrics")).text
    return {
        f"{sample.name}{{{','.join(sample.labels.values())}}}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket"))
    }


async def test_background_run_counts_for_its_tenant_and_in_the_event_log(serve: Serve) -> None:
    server = serve("Hello there!", metrics=Metrics())
    await server.client.post(
        "/v1/responses", json={"model": "tiny", "input": "hi", "background": True, "stream": True}
    )
    metrics = await scrape(server)
    async with asyncio.timeout(60):
        while "antiphon_tenant_requests_total{completed,default}" not in metrics:
            await asyncio.sleep(0)  # the reader hears of the end before the writer
            metrics = await scrape(server)
    assert metrics["antiphon_tenant_requests_total{completed,default}"] == 1
    assert metrics["antiphon_requests_total{tiny,completed}"] == 1
    assert metrics["antiphon_tenant_tokens_total{default,output}"] > 0
    assert metrics["antiphon_generation_tokens_total{tiny}"] > 0
    assert metrics["antiphon_event_log_batches_total{}"] > 0
    assert metrics["antiphon_event_log_events_total{}"] > 0
    assert metrics["antiphon_store_operation_seconds_count{runs.end}"] == 1
    assert metrics["antiphon_event_log_followers{}"] == 0
    assert metrics["antiphon_model_loaded{tiny}"] == 1
    assert metrics["antiphon_queue_wait_seconds_count{}"] == 0  # it waited for no slot


async def test_cancelled_background_run_is_counted(serve: Serve) -> None:
    backend = SteppedBackend([Open(Message(role="assistant", content=())), asyncio.Event()])
    server = serve(backend, metrics=Metrics())
    created = await server.post(background=True)
    await server.client.post(f"/v1/responses/{created.json()['id']}/cancel")
    metrics = await scrape(server)
    assert metrics["antiphon_requests_total{tiny,cancelled}"] == 1
    assert "antiphon_requests_total{tiny,completed}" not in metrics


async def test_tenants_without_settings_share_a_label(serve: Serve) -> None:
    server = serve("Hello there!", metrics=Metrics(tenants=("known",)))
    await server.post()
    metrics = await scrape(server)
    assert metrics["antiphon_tenant_requests_total{completed,other}"] == 1
    assert not [name for name in metrics if "default" in name]
    assert metrics["antiphon_queue_wait_seconds_count{}"] == 1


async def test_tool_calls_are_counted_by_kind(serve: Serve, providers: Any) -> None:
    server = serve(local(engine(STEPS)), providers=providers, metrics=Metrics())
    await server.post(tools=[{"type": "web_search"}])
    metrics = await scrape(server)
    assert metrics["antiphon_tool_calls_total{completed,web_search}"] >= 1
    assert (
        metrics["antiphon_tool_call_seconds_count{web_search}"]
        == metrics["antiphon_tool_calls_total{completed,web_search}"]
    )


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """Return the data points of each metric."""
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


async def test_collector_receives_metrics_of_the_semantic_conventions(serve: Serve) -> None:
    reader = InMemoryMetricReader()
    exporter = OtelMetrics(reader)
    server = serve("Hello there!", metrics=Metrics(exporter=exporter))
    streamed = {"model": "tiny", "input": "hi", "stream": True}
    await server.client.post("/v1/responses", json=streamed)
    usage = (await server.post()).json()["usage"]
    observed = points(reader)
    exporter.close()
    common = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "antiphon",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
    }
    (duration,) = observed["gen_ai.server.request.duration"]
    assert (duration.count, duration.attributes) == (2, common)
    (first,) = observed["gen_ai.server.time_to_first_token"]
    assert (first.count, first.attributes) == (1, common)
    (per_token,) = observed["gen_ai.server.time_per_output_token"]
    assert per_token.count == 1
    tokens = {
        point.attributes["gen_ai.token.type"]: point.sum
        for point in observed["gen_ai.client.token.usage"]
    }
    assert tokens == {"input": 2 * usage["input_tokens"], "output": 2 * usage["output_tokens"]}


async def test_tool_calls_and_agents_have_durations() -> None:
    reader = InMemoryMetricReader()
    exporter = OtelMetrics(reader)
    metrics = Metrics(["t"], exporter=exporter)
    metrics.record_tool_call("web_search", 0.5, True)
    one = UsageRecord(id="a", start=1, tenant="t", model="m", input_tokens=5, latency_ms=3000)
    kinds: tuple[UsageKind, ...] = ("completion", "transcription", "web_search")
    records = [replace(one, id=kind, kind=kind, tool_calls=1) for kind in kinds]
    metrics.on_usage(records)
    observed = points(reader)
    exporter.close()
    (tool,) = observed["gen_ai.execute_tool.duration"]
    assert (tool.sum, tool.attributes["gen_ai.tool.name"]) == (0.5, "web_search")
    assert tool.attributes["error.type"] == "tool_error"
    (agent,) = observed["gen_ai.invoke_agent.duration"]
    assert (agent.count, agent.sum) == (1, 3.0)
    (duration,) = observed["gen_ai.server.request.duration"]
    assert duration.count == 1, "audio and calls of tools are no model calls with tokens"
    shown = (await metrics.exposition("text/plain"))[0].decode()
    assert 'antiphon_tenant_requests_total{status="completed",tenant="t"} 2.0' in shown
    assert 'antiphon_tenant_tokens_total{tenant="t",type="input"} 5.0' in shown


async def test_failed_request_has_an_error_type(serve: Serve) -> None:
    reader = InMemoryMetricReader()
    exporter = OtelMetrics(reader)
    opened = Open(Message(role="assistant", content=()))
    backend = SteppedBackend([opened, Text("one "), BackendError("It broke.")])
    server = serve(backend, metrics=Metrics(exporter=exporter))
    await server.post()
    (duration,) = points(reader)["gen_ai.server.request.duration"]
    exporter.close()
    assert duration.attributes["error.type"] == "failed"


def test_missing_sdk_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(SetupError, match="otel"):
        open_exporter(None)

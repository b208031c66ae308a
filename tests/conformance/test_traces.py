"""Traces: what the collector of an operator receives, over OTLP."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import BackendError, SetupError
from antiphon.stream.deltas import Open, Text
from antiphon.tools.web_search.provider import WebSearchProvider
from antiphon.tracing.opentelemetry import OtelTracer, open_tracer
from antiphon.wire.items import Message
from tests.backends.empty_batches import EmptyBatches
from tests.conformance.asgi_clients import WebSocketClient
from tests.conformance.conftest import Serve
from tests.conformance.server import engine
from tests.conformance.stepped_backend import SteppedBackend
from tests.conformance.test_web_search import STEPS, local, providers
from tests.sources import modules_with, nodes

__all__ = ["providers"]  # a fixture

CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = {"traceparent": f"00-{CLIENT}-00f067aa0ba902b7-01"}


class Collector:
    """A tracer whose spans are kept in memory."""

    def __init__(self, *, with_content: bool = False) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = OtelTracer(SimpleSpanProcessor(self._exporter), with_content=with_content)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        (found,) = (span for span in self.spans if span.name == name)
        return found

    def tree(self) -> dict[str, str]:
        """Return the name of each span, and that of its parent."""
        names = {span.context.span_id: span.name for span in self.spans if span.context}
        return {
            span.name: names.get(span.parent.span_id, "client") if span.parent else ""
            for span in self.spans
        }


@pytest.fixture
def collector() -> Collector:
    return Collector()


async def test_response_is_one_trace(serve: Serve, collector: Collector) -> None:
    server = serve("Hello there!", tracer=collector.tracer)
    body = {"model": "tiny", "input": "secret"}
    reply = await server.client.post("/v1/responses", json=body, headers=TRACEPARENT)
    root = "POST /v1/responses"
    assert collector.tree() == {
        root: "client",
        "queue": root,
        "prepare": root,
        "chat tiny": root,
        "store response": root,
    }
    assert {f"{span.context.trace_id:032x}" for span in collector.spans if span.context} == {CLIENT}
    response = reply.json()
    turn = dict(collector.named("chat tiny").attributes or {})
    assert turn["gen_ai.operation.name"] == "chat"
    assert turn["gen_ai.provider.name"] == "antiphon"
    assert turn["gen_ai.usage.output_tokens"] == response["usage"]["output_tokens"]
    assert turn["gen_ai.response.time_to_first_chunk"] >= 0
    assert [event.name for event in collector.named("chat tiny").events] == ["first token"]
    attributes = dict(collector.named(root).attributes or {})
    assert attributes["gen_ai.response.id"] == response["id"]
    assert attributes["antiphon.response.status"] == "completed"
    assert "secret" not in str([span.to_json() for span in collector.spans])


async def test_first_token_is_not_an_empty_batch(serve: Serve, collector: Collector) -> None:
    server = serve(EmptyBatches(ScriptedBackend("Hello!")), tracer=collector.tracer)
    assert (await server.post()).json()["status"] == "completed"
    turn = collector.named("chat tiny")
    assert [event.name for event in turn.events] == ["first token"]
    assert (turn.attributes or {})["gen_ai.response.finish_reasons"] == ("stop",)


async def test_each_frame_of_a_websocket_is_a_span(serve: Serve, collector: Collector) -> None:
    server = serve("Hello there!", tracer=collector.tracer)
    async with WebSocketClient(server.app) as wire:
        for _ in range(2):
            wire.create(input="hi")
            events = await wire.events()
    frame = "response.create"
    assert collector.tree() == {
        "WEBSOCKET /v1/responses": "",
        frame: "WEBSOCKET /v1/responses",
        "queue": frame,
        "prepare": frame,
        "chat tiny": frame,
        "store response": frame,
    }
    spans = [dict(span.attributes or {}) for span in collector.spans if span.name == frame]
    assert len(spans) == 2
    assert spans[-1]["gen_ai.response.id"] == events[-1]["response"]["id"]
    assert spans[-1]["antiphon.response.status"] == "completed"
    assert spans[-1]["gen_ai.usage.output_tokens"] > 0


async def test_content_is_in_traces_only_if_the_operator_wants_it(serve: Serve) -> None:
    collector = Collector(with_content=True)
    server = serve("Hello there!", tracer=collector.tracer)
    await server.post(input="secret")
    attributes = dict(collector.named("POST /v1/responses").attributes or {})
    assert "secret" in str(attributes["gen_ai.input.messages"])
    assert "Hello there!" in str(attributes["gen_ai.output.messages"])


async def test_failed_model_is_a_failed_span(serve: Serve, collector: Collector) -> None:
    opened = Open(Message(role="assistant", content=()))
    backend = SteppedBackend([opened, Text("one "), BackendError("It broke.")])
    server = serve(backend, tracer=collector.tracer)
    await server.post()
    for name in ("chat tiny", "POST /v1/responses"):
        assert not collector.named(name).status.is_ok
        assert (collector.named(name).attributes or {})["error.type"] == "server_error"


async def test_background_run_belongs_to_the_trace_of_its_request(
    serve: Serve, collector: Collector
) -> None:
    server = serve("Hello there!", tracer=collector.tracer)
    body = {"model": "tiny", "input": "hi", "background": True, "stream": True}
    await server.client.post("/v1/responses", json=body, headers=TRACEPARENT)
    run = collector.named("background run")
    assert (run.attributes or {})["antiphon.attempt"] == 1
    assert collector.tree()["background run"] == "POST /v1/responses"
    assert collector.tree()["chat tiny"] == "background run"


@pytest.mark.parametrize("background", [False, True])
async def test_tool_call_is_a_span(
    background: bool,
    serve: Serve,
    collector: Collector,
    providers: dict[str, WebSearchProvider],
) -> None:
    server = serve(local(engine(STEPS)), providers=providers, tracer=collector.tracer)
    body = {"model": "tiny", "input": "hi", "tools": [{"type": "web_search"}]}
    modes = {"background": True, "stream": True} if background else {}
    await server.client.post("/v1/responses", json={**body, **modes}, headers=TRACEPARENT)
    calls = [span for span in collector.spans if span.name.startswith("execute_tool ")]
    turns = [span for span in collector.spans if span.name == "chat tiny"]
    assert len(turns) == len(calls) + 1 > 1
    assert all((call.attributes or {})["gen_ai.tool.call.id"] for call in calls)
    tree, parent = collector.tree(), "background run" if background else "POST /v1/responses"
    assert {tree[span.name] for span in (*turns, *calls)} == {"invoke_agent"}
    assert tree["invoke_agent"] == parent
    agent = collector.named("invoke_agent").attributes or {}
    tokens = "gen_ai.usage.output_tokens"
    assert agent[tokens] == sum((turn.attributes or {})[tokens] for turn in turns)  # type: ignore[misc]


async def test_chat_completions_are_traced(serve: Serve, collector: Collector) -> None:
    server = serve("Hello there!", tracer=collector.tracer)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    await server.client.post("/v1/chat/completions", json=body, headers=TRACEPARENT)
    assert collector.tree()["chat tiny"] == "POST /v1/chat/completions"


async def test_monitoring_is_not_traced(serve: Serve, collector: Collector) -> None:
    server = serve("Hello there!", tracer=collector.tracer)
    await server.client.get("/health")
    assert collector.spans == ()


def test_spans_reach_a_collector_over_http() -> None:
    received: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as collector:
        thread = Thread(target=collector.handle_request)
        thread.start()
        tracer = open_tracer(f"http://127.0.0.1:{collector.server_port}/")
        tracer.start("one", {}).end()
        tracer.close()
        thread.join(20)
    (resource,) = received[0].resource_spans
    assert resource.scope_spans[0].spans[0].name == "one"
    names = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert names["service.name"] == "antiphon"


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SetupError, match="OpenTelemetry"):
        open_tracer(None)


def test_names_are_those_of_the_semantic_conventions() -> None:
    """The library of the conventions is optional, so the code repeats its constants. ``newer``:
    names of the conventions that no release of the library has yet."""
    newer = {"gen_ai.execute_tool.duration", "gen_ai.invoke_agent.duration"}
    known = {
        value
        for module in (gen_ai_attributes, gen_ai_metrics)
        for value in vars(module).values()
        if isinstance(value, str) and value.startswith("gen_ai.")
    }
    used = {
        node.value
        for path in modules_with("gen_ai.")
        for node in nodes(path)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"gen_ai(\.[a-z_]+)+", node.value)
    }
    assert used and used <= known | newer
    assert not newer & known, "the library has these now"


async def test_model_call_has_the_options_of_the_request(
    serve: Serve, collector: Collector
) -> None:
    server = serve(tracer=collector.tracer)
    await server.post(temperature=0, top_p=0.5, seed=7, stop=["x"])
    attributes = collector.named("chat tiny").attributes or {}
    assert attributes["gen_ai.request.temperature"] == 0
    assert attributes["gen_ai.request.top_p"] == 0.5
    assert attributes["gen_ai.request.seed"] == 7
    assert attributes["gen_ai.request.stop_sequences"] == ("x",)
    assert "gen_ai.request.top_k" not in attributes

"""The WebSocket mode: streams, unstored responses, errors and lifetimes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import connect

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import BackendError
from antiphon.http.app import create_app
from antiphon.http.endpoint_context import EndpointDependencies
from antiphon.http.metrics import Metrics
from antiphon.http.middleware.auth import AuthConfig
from antiphon.http.middleware.request_context import RequestContext
from antiphon.http.routes.websocket import WebSocketEndpoint
from antiphon.http.server.listening import bind
from antiphon.http.server.serve import serve as serve_app
from antiphon.limits.admission import AdmissionQueue
from antiphon.limits.key_ring import AuthKey
from antiphon.limits.rate_limits import RateLimits
from antiphon.limits.requests import RequestLimits
from antiphon.stream.deltas import Close, Open, Text
from antiphon.support.logs import open_log
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.tracing.base import Span, Tracer
from antiphon.wire.items import Message
from tests.conformance.asgi_clients import WebSocketClient
from tests.conformance.conftest import Serve
from tests.conformance.scripts import finish
from tests.conformance.server import Server
from tests.conformance.stepped_backend import SteppedBackend

ANSWER = Open(Message(role="assistant", content=()))


async def last_frame(wire: WebSocketClient, **body: Any) -> dict[str, Any]:
    """Return the last frame of an answer."""
    wire.create(**body)
    return (await wire.events())[-1]


def prompt_texts(backend: ScriptedBackend, number: int = -1) -> list[str]:
    conversation, _ = backend.requests[number]
    return [i.content[0].text for i in conversation.items]  # type: ignore[union-attr]


# --- continuing ----------------------------------------------------------------------------------


@pytest.mark.requirement("API-WEBSOCKET")
async def test_unstored_response_can_be_continued_on_its_connection(serve: Serve) -> None:
    backend, store = ScriptedBackend(["one", "two", "three"]), MemoryStore()
    server = serve(backend, on=store)
    async with WebSocketClient(server.app) as wire:
        first = (await last_frame(wire, input="a", store=False))["response"]
        second = (await last_frame(wire, input="b", store=False, previous_response_id=first["id"]))[
            "response"
        ]
        assert second["previous_response_id"] == first["id"]
        await last_frame(wire, input="c", store=False, previous_response_id=second["id"])
        assert prompt_texts(backend) == ["a", "one", "b", "two", "c"]
    assert await store.load("default", first["id"]) is None
    async with WebSocketClient(server.app) as wire:
        rejection = await last_frame(wire, store=False, previous_response_id=second["id"])
    assert (rejection["status"], rejection["error"]["code"]) == (400, "previous_response_not_found")
    assert rejection["error"]["param"] == "previous_response_id"


async def test_stored_response_can_be_continued_elsewhere(serve: Serve) -> None:
    backend = ScriptedBackend(["one", "two", "three"])
    server = serve(backend)
    stored = (await server.post(input="a")).json()
    async with WebSocketClient(server.app) as wire:
        second = (await last_frame(wire, input="b", previous_response_id=stored["id"]))["response"]
    await server.post(input="c", previous_response_id=second["id"])
    assert prompt_texts(backend) == ["a", "one", "b", "two", "c"]


async def test_stored_child_of_unstored_parent_has_the_whole_history(serve: Serve) -> None:
    backend = ScriptedBackend(["one", "two", "three"])
    server = serve(backend)
    async with WebSocketClient(server.app) as wire:
        first = (await last_frame(wire, input="a", store=False))["response"]
        second = (await last_frame(wire, input="b", previous_response_id=first["id"]))["response"]
    await server.post(input="c", previous_response_id=second["id"])
    assert prompt_texts(backend) == ["a", "one", "b", "two", "c"]


async def test_stream_remembers_its_latest_response(serve: Serve) -> None:
    server = serve(ScriptedBackend(["one", "two", "three"]))
    async with WebSocketClient(server.app) as wire:
        first = (await last_frame(wire, store=False))["response"]
        await last_frame(wire, store=False, previous_response_id=first["id"])
        rejection = await last_frame(wire, store=False, previous_response_id=first["id"])
    assert rejection["error"]["code"] == "previous_response_not_found"


async def test_failed_continuation_evicts_the_parent(serve: Serve) -> None:
    server = serve(ScriptedBackend(["one", "two"]))
    bad = {
        "store": False,
        "input": [{"type": "function_call_output", "call_id": "c", "output": ""}],
    }
    async with WebSocketClient(server.app) as wire:
        first = (await last_frame(wire, store=False))["response"]
        rejection = await last_frame(wire, previous_response_id=first["id"], **bad)
        assert rejection["error"]["message"].startswith("No tool call found")
        again = await last_frame(wire, store=False, previous_response_id=first["id"])
        assert again["error"]["code"] == "previous_response_not_found"
        assert (await last_frame(wire, store=False))["type"] == "response.completed"


async def test_failed_fork_keeps_its_parent(serve: Serve) -> None:
    server = serve(ScriptedBackend(["one", "two"]))
    async with WebSocketClient(server.app) as wire:
        first = (await last_frame(wire, store=False))["response"]
        follow = {"store": False, "previous_response_id": first["id"]}
        rejection = await last_frame(wire, stream_id="fork", temperature=9, **follow)
        assert (rejection["type"], rejection["stream_id"]) == ("error", "fork")
        assert (await last_frame(wire, **follow))["type"] == "response.completed"


async def test_warm_up_has_no_output_and_can_be_continued(serve: Serve) -> None:
    backend = ScriptedBackend(["one", "two"])
    server = serve(backend)
    async with WebSocketClient(server.app) as wire:
        wire.create(generate=False, input="a", instructions="Be brief.", store=False)
        events = await wire.events()
        assert [event["type"] for event in events] == [
            "response.created",
            "response.in_progress",
            "response.completed",
        ]
        warm = events[-1]["response"]
        assert (warm["output"], warm["usage"]["output_tokens"]) == ([], 0)
        await last_frame(wire, input="b", store=False, previous_response_id=warm["id"])
    assert prompt_texts(backend) == ["a", "b"]


@pytest.mark.parametrize(
    "fields", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}]
)
async def test_warm_up_may_be_empty(serve: Serve, fields: dict[str, object]) -> None:
    """Some clients open their connection with it, before they know their instructions."""
    backend = ScriptedBackend(["one"])
    server = serve(backend)
    async with WebSocketClient(server.app) as wire:
        warm = (await last_frame(wire, input=[], store=False, **fields))["response"]
        assert (warm["status"], warm["output"]) == ("completed", [])
        assert (warm["usage"]["input_tokens"], warm["usage"]["output_tokens"]) == (0, 0)
        answer = await last_frame(wire, input="b", store=False, previous_response_id=warm["id"])
        assert answer["type"] == "response.completed"
    assert prompt_texts(backend) == ["b"]


# --- streams -------------------------------------------------------------------------------------


@pytest.mark.requirement("API-WEBSOCKET")
async def test_streams_run_concurrently_and_each_in_order(serve: Serve) -> None:
    gate = asyncio.Event()
    server = serve(SteppedBackend([ANSWER, Text("a"), gate, Close(), finish()]))
    async with WebSocketClient(server.app) as wire:
        for name in ("one", "one", "two"):
            wire.create(stream_id=name)
        begun = []
        while len(begun) < 2:
            event = await wire.event()
            if event["type"] == "response.output_text.delta":
                begun.append(event["stream_id"])
        assert sorted(begun) == ["one", "two"]
        assert server.service.active_runs == 2
        gate.set()
        ends = []
        while len(ends) < 3:
            event = await wire.event()
            assert event["stream_id"] in ("one", "two")
            if event["type"] == "response.completed":
                ends.append(event["stream_id"])
        assert sorted(ends) == ["one", "one", "two"]


async def test_at_most_sixteen_streams_run_concurrently(serve: Serve) -> None:
    gate = asyncio.Event()
    server = serve(SteppedBackend([ANSWER, Text("a"), gate, Close(), finish()]))
    async with WebSocketClient(server.app) as wire:
        for number in range(20):
            wire.create(stream_id=f"lane{number}")
        deltas = 0
        while deltas < 16:
            deltas += (await wire.event())["type"] == "response.output_text.delta"
        assert server.service.active_runs == 16
        gate.set()
        while deltas < 20:
            deltas += (await wire.event())["type"] == "response.output_text.delta"


async def test_at_most_thirty_two_stream_ids(serve: Serve) -> None:
    server = serve(ScriptedBackend(["one"]))
    async with WebSocketClient(server.app) as wire:
        for number in range(32):
            assert (await last_frame(wire, stream_id=f"{number}"))["type"] == "response.completed"
        rejection = await last_frame(wire, stream_id="32")
        assert rejection["error"]["code"] == "websocket_stream_limit_reached"
        assert (await last_frame(wire, stream_id="7"))["type"] == "response.completed"
        assert (await last_frame(wire))["type"] == "response.completed"


@pytest.mark.parametrize("name", ["", "a b", "x" * 257, "ä", 7])
async def test_stream_id_characters_are_checked(serve: Serve, name: object) -> None:
    async with WebSocketClient(serve().app) as wire:
        rejection = await last_frame(wire, stream_id=name)
        assert rejection["error"]["code"] == "invalid_stream_id"


async def test_too_many_queued_frames_return_429(serve: Serve) -> None:
    server = serve(SteppedBackend([ANSWER, Text("a"), asyncio.Event()]))
    async with WebSocketClient(server.app) as wire:
        for _ in range(140):
            wire.create()
        while (event := await wire.event())["type"] != "error":
            pass
        assert event["status"] == 429


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "param"),
    [
        ("{", None),
        ("[]", None),
        (b"{}", None),
        ("{}", "type"),
        ({"type": "response.cancel"}, "type"),
        ({"type": "response.create", "model": "tiny"}, "input"),
        ({"type": "response.create", "model": "tiny", "input": 7}, "input"),
        ({"type": "response.create", "input": "x", "background": True}, "background"),
        ({"type": "response.create", "input": "x", "generate": "no"}, "generate"),
        ({"type": "response.create", "input": "x", "model": "none"}, "model"),
    ],
    ids=str,
)
async def test_error_does_not_close_the_connection(
    serve: Serve, frame: Any, param: str | None
) -> None:
    async with WebSocketClient(serve().app) as wire:
        wire.send(frame)
        rejection = await wire.event()
        assert (rejection["type"], rejection["error"]["param"]) == ("error", param)
        assert rejection["status"] in (400, 404)
        assert (await last_frame(wire))["type"] == "response.completed"


async def test_failed_run_does_not_close_the_connection(serve: Serve) -> None:
    server = serve([BackendError("It broke."), "fine"])
    async with WebSocketClient(server.app) as wire:
        wire.create(stream_id="x")
        events = await wire.events()
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert events[-2]["status"] == 500
        assert {event["stream_id"] for event in events} == {"x"}
        assert (await last_frame(wire))["type"] == "response.completed"


# --- connections ---------------------------------------------------------------------------------


async def test_disconnect_stops_the_model(serve: Serve) -> None:
    backend = SteppedBackend([ANSWER, Text("a"), asyncio.Event()])
    server = serve(backend)
    async with WebSocketClient(server.app) as wire:
        wire.create()
        while (await wire.event())["type"] != "response.output_text.delta":
            pass
        wire.disconnect()
        await backend.closed.wait()


async def test_connection_has_a_maximum_lifetime(serve: Serve) -> None:
    gate = asyncio.Event()
    server = serve(SteppedBackend([ANSWER, Text("a"), gate, Close(), finish()]))
    log = open_log(io.StringIO())
    dependencies = EndpointDependencies(
        service=server.service,
        admission=AdmissionQueue(10, 10),
        rates=RateLimits(server.service.rates, owner="here", timer=time.monotonic),
        metrics=Metrics(),
        clock=time.monotonic,
        limits=RequestLimits(),
        log=log,
        tracer=Tracer(),
    )
    short = WebSocketEndpoint(dependencies, lifetime_s=0.05)
    async with WebSocketClient(_exchanged(short)) as wire:
        wire.create()
        while (await wire.event())["type"] != "response.output_text.delta":
            pass
        rejection = None
        while rejection != "websocket_connection_limit_reached":
            wire.create(stream_id="late", input=7)
            rejection = (await wire.event())["error"]["code"]
        gate.set()  # what ran may end
        while (await wire.event())["type"] != "response.completed":
            pass
        while (message := await wire.message())["type"] != "websocket.close":
            pass
        assert message["code"] == 1000


def _exchanged(app: Any) -> Any:
    """Wrap an app with an exchange in its scope, which the outer middleware provides."""

    async def tool_call(scope: Any, receive: Any, send: Any) -> None:
        scope["antiphon.context"] = RequestContext("req_1", 0.0, Span({}))
        await app(scope, receive, send)

    return tool_call


async def test_unauthorized_or_cross_site_handshake_is_rejected() -> None:
    server = Server(ScriptedBackend(["one"]), MemoryStore())
    key = AuthKey(name="k", tenant="t", sha256="0" * 64)
    guarded = create_app(
        server.service,
        AuthConfig(keys=(key,)),
        ids=lambda prefix: prefix,
        log=open_log(io.StringIO()),
    )
    async with WebSocketClient(guarded) as wire:
        rejection = await wire.message()
        assert (rejection["type"], rejection["status"]) == ("websocket.http.response.start", 401)
    async with WebSocketClient(server.app, origin="https://evil.example") as wire:
        assert (await wire.message())["status"] == 400
    async with WebSocketClient(server.app, origin="http://localhost") as wire:
        assert (await last_frame(wire))["type"] == "response.completed"
    await server.close()


# --- on a real socket ----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def listen(server: Server, **options: Any) -> AsyncIterator[str]:
    sockets = bind("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]

    async def drain(grace_s: float) -> None: ...

    task = asyncio.create_task(serve_app(server.app, sockets, drain=drain, grace_s=0, **options))
    try:
        yield f"ws://127.0.0.1:{port}/v1/responses"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for listener in sockets:
            listener.close()


@pytest.mark.requirement("API-WEBSOCKET")
async def test_real_client_compression_ping_and_frame_limit(serve: Serve) -> None:
    server = serve(ScriptedBackend(["one"]))
    async with (
        asyncio.timeout(60),
        listen(server, max_frame_bytes=10_000) as url,
        connect(url, compression="deflate") as wire,
    ):
        await (await wire.ping())
        assert "permessage-deflate" in wire.response.headers["sec-websocket-extensions"]  # type: ignore[union-attr]
        await wire.send(json.dumps({"type": "response.create", "model": "tiny", "input": "hi"}))
        while json.loads(await wire.recv())["type"] != "response.completed":
            pass
        await wire.send("x" * 20_000)
        with pytest.raises(websockets.ConnectionClosedError) as closed:
            await wire.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


async def test_server_closes_the_connection_when_both_sides_have_said_goodbye(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.http.server.websocket_protocol._CLOSE_S", 1e6)
    handshake = (
        b"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    goodbye = b"\x88\x82\0\0\0\0" + (1000).to_bytes(2, "big")  # with a mask of zeros
    async with asyncio.timeout(60), listen(serve(ScriptedBackend(["one"]))) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2][:-13]))
        writer.write(handshake)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(goodbye)
        assert await reader.read() == b"\x88\x02" + goodbye[-2:]  # to the end
        writer.close()

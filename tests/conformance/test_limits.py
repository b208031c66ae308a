"""Time and limits: disconnects, slow readers, idle streams, time-outs and output limits."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.stream.deltas import Close, Open, Text
from antiphon.wire.items import Message
from tests.conformance import oracle
from tests.conformance.asgi_clients import StreamingClient
from tests.conformance.conftest import Serve
from tests.conformance.scripts import finish, message_deltas
from tests.conformance.server import Ask, engine
from tests.conformance.stepped_backend import SteppedBackend

ANSWER = Open(Message(role="assistant", content=()))


@pytest.mark.requirement("D-28", "CL-KEEPALIVE", "API-KEEPALIVE")
async def test_idle_stream_sends_keepalive_events(serve: Serve) -> None:
    gate = asyncio.Event()
    server = serve(SteppedBackend([gate, *message_deltas("Hello"), finish()]), keepalive_s=0.005)
    async with StreamingClient(server.app) as line:
        first = await line.event()
        assert first["type"] == "response.created"
        observed = [first]
        while observed[-1]["type"] != "response.completed":
            observed.append(await line.event())
            if sum(event["type"] == "keepalive" for event in observed) == 3:
                gate.set()
    assert [event["sequence_number"] for event in observed] == list(range(len(observed)))
    beats = [event for event in observed if event["type"] == "keepalive"]
    assert all(set(event) == {"type", "sequence_number"} for event in beats)


@pytest.mark.requirement("API-KEEPALIVE-DIALECT")
async def test_open_responses_streams_have_no_keepalive_events(serve: Serve) -> None:
    server = serve(
        ScriptedBackend(("Hello there!",), wait_s=0.02),
        keepalive_s=0.005,
        reasoning_events="open_responses",
    )
    for background in (False, True):
        reply = await server.post(stream=True, background=background)
        assert ": keepalive\n\n" in reply.text or background
        events = oracle.stream(reply.content.replace(b": keepalive\n\n", b""))
        assert "keepalive" not in {event["type"] for event in events}
        assert events[-1]["type"] == "response.completed"
    chat = await server.client.post(
        "/v1/chat/completions",
        json={"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True},
    )
    assert ": keepalive\n\n" in chat.text and chat.text.startswith("data: ")


@pytest.mark.requirement("CL-KEEPALIVE-SKIPPED")
async def test_official_client_ignores_keepalives(serve: Serve) -> None:
    gate = asyncio.Event()
    server = serve(SteppedBackend([gate, *message_deltas("Hello"), finish()]), keepalive_s=0.005)
    observed: list[str] = []
    async with (
        asyncio.timeout(60),
        httpx.AsyncClient(transport=_Piecewise(server.app)) as transport,
        openai.AsyncOpenAI(
            api_key="none", base_url="http://localhost/v1", http_client=transport
        ) as client,
        client.responses.stream(model="tiny", input="hi") as result,
    ):
        async for event in result:
            observed.append(str(event.type))
            if observed.count("keepalive") == 2:
                gate.set()
        assert (await result.get_final_response()).output_text == "Hello"
    assert observed.index("keepalive") > observed.index("response.created")


class _Piecewise(httpx.AsyncBaseTransport):
    """A wrapper of the app that passes each piece of the answer on as it comes."""

    def __init__(self, app: object) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        line = StreamingClient(self._app, input="hi")  # type: ignore[arg-type]
        await line.__aenter__()
        return httpx.Response(
            200, headers={"content-type": "text/event-stream"}, stream=_CountingReply(line)
        )


class _CountingReply(httpx.AsyncByteStream):
    def __init__(self, line: StreamingClient) -> None:
        self._line = line

    async def __aiter__(self):  # type: ignore[no-untyped-def]
        async for piece in self._line.pieces():
            yield piece

    async def aclose(self) -> None:
        await self._line.__aexit__(None, None, None)


@pytest.mark.requirement("D-91", "GO-13", "HF-12", "API-DISCONNECT")
async def test_disconnect_stops_the_model(serve: Serve) -> None:
    backend = SteppedBackend([ANSWER, Text("Hel"), asyncio.Event()])
    server = serve(backend)
    async with StreamingClient(server.app) as line:
        while "delta" not in await line.event():
            pass
        line.disconnect()
        await backend.closed.wait()
        while server.service.active_runs:
            await asyncio.sleep(0)


@pytest.mark.requirement("D-91", "TR-13", "API-DISCONNECT")
async def test_disconnect_from_a_plain_request_stops_the_model(serve: Serve) -> None:
    backend = SteppedBackend([ANSWER, Text("Hel"), asyncio.Event()])
    server = serve(backend)
    async with StreamingClient(server.app, stream=False) as line:
        while not backend.delta_count:
            await asyncio.sleep(0)
        line.disconnect()
        await backend.closed.wait()
        while server.service.active_runs:
            await asyncio.sleep(0)


@pytest.mark.requirement("API-BACK-PRESSURE")
async def test_slow_reader_applies_backpressure(serve: Serve) -> None:
    ready = asyncio.Event()
    ready.set()
    backend = SteppedBackend([ANSWER, *([Text("word "), ready] * 100_000)])
    server = serve(backend)
    async with StreamingClient(server.app) as line:
        while "delta" not in await line.event():
            pass
        before = -1
        while backend.delta_count != before:  # until it goes no further by itself
            before = backend.delta_count
            for _ in range(20):
                await asyncio.sleep(0)
        assert before < 2_000
        for _ in range(1_000):
            await line.event()
        assert backend.delta_count > before


@pytest.mark.requirement("HF-13")
async def test_ready_events_are_sent_in_one_write(serve: Serve) -> None:
    gate = asyncio.Event()
    server = serve(SteppedBackend([ANSWER, Text("a"), gate, *([Text("b")] * 9), Close(), finish()]))
    async with StreamingClient(server.app) as line:
        while "delta" not in await line.event():
            pass
        pieces = line.pieces()
        gate.set()
        piece = await anext(pieces)
        assert piece.count(b"event: response.output_text.delta\n") == 9
        assert piece.count(b"event: response.output_item.done\n") == 1
        await pieces.aclose()


@pytest.mark.requirement("D-90", "GO-1", "API-CONCURRENT")
async def test_responses_run_concurrently(serve: Serve) -> None:
    gate = asyncio.Event()
    server = serve(SteppedBackend([ANSWER, Text("a"), gate, Close(), finish()]))
    lines = [StreamingClient(server.app) for _ in range(20)]
    async with asyncio.timeout(60):
        for line in lines:
            await line.__aenter__()
        for line in lines:
            while "delta" not in await line.event():
                pass
        assert server.service.active_runs == 20
        gate.set()
        for line in lines:
            while (await line.event())["type"] != "response.completed":
                pass
            await line.__aexit__(None, None, None)


@pytest.mark.requirement("D-92", "VN-41", "HF-4", "API-SAMPLING")
async def test_sampling_options_are_per_request(serve: Serve, ask: Ask) -> None:
    scripted_engine = engine(["one", "two"])
    server = serve(scripted_engine)
    wished = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 7,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": 1.1,
    }
    await ask(server, **wished, stop=["\n"], logit_bias={"65": -1}, prompt_cache_key="mine")
    await ask(server, temperature=1.5)
    (_, first), (_, second) = scripted_engine.requests
    assert {name: getattr(first, name) for name in wished} == wished
    assert (first.stop[-1], first.logit_bias, first.cache_key) == ("\n", {65: -1}, "mine")
    unset = dict.fromkeys(wished) | {"temperature": 1.5, "top_p": 1}
    assert {name: getattr(second, name) for name in wished} == unset
    assert (second.logit_bias, second.cache_key) == ({}, None)
    assert second.stop == first.stop[:-1]


@pytest.mark.requirement("VN-40", "TR-9", "GO-18", "HF-9", "D-62", "API-MAX-TOKENS")
async def test_output_limit_is_the_request_or_the_context(serve: Serve, ask: Ask) -> None:
    scripted_engine = engine(["Hello there"])
    server = serve(scripted_engine)
    cut = await ask(server, max_output_tokens=5)
    assert (cut.text, cut.terminal_response["usage"]["output_tokens"]) == ("Hello", 5)
    assert cut.terminal_response["incomplete_details"] == {"reason": "max_output_tokens"}
    await ask(server, max_output_tokens=100_000)
    await ask(server)
    for prompt, sampling in scripted_engine.requests[1:]:
        assert sampling.max_tokens == 4096 - len(prompt.ids)


@pytest.mark.requirement("API-CONTEXT-FULL")
async def test_full_context_makes_the_response_incomplete(serve: Serve, ask: Ask) -> None:
    answer = await ask(serve(engine(["word " * 2000], chunk=1000)))
    assert answer.terminal_response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer.terminal_response["usage"]["total_tokens"] == 4096


@pytest.mark.requirement("API-MAX-TOKENS-THINKING")
async def test_output_limit_includes_reasoning(serve: Serve, ask: Ask) -> None:
    answer = await ask(serve(engine(["<think>\nHm, so, well."])), max_output_tokens=14)
    assert [item["type"] for item in answer.output] == ["reasoning"]
    usage = answer.terminal_response["usage"]
    assert usage["output_tokens"] == 14
    assert usage["output_tokens_details"]["reasoning_tokens"] > 0
    assert answer.terminal_response["status"] == "incomplete"


@pytest.mark.requirement("API-TIMEOUT")
async def test_run_timeout_fails_the_response(serve: Serve, ask: Ask) -> None:
    server = serve(SteppedBackend([ANSWER, Text("Hel"), asyncio.Event()]), timeout_s=0.01)
    answer = await ask(server)
    assert answer.error is not None
    assert answer.error["message"] == "The response took longer than this server allows."


@pytest.mark.requirement("API-SHUTDOWN")
async def test_shutdown_ends_runs_and_rejects_requests(serve: Serve) -> None:
    server = serve(SteppedBackend([ANSWER, Text("Hel"), asyncio.Event()]))
    async with StreamingClient(server.app) as line:
        while "delta" not in await line.event():
            pass
        stopping = asyncio.create_task(server.service.drain(0))
        while (event := await line.event())["type"] != "response.failed":
            pass
        assert event["response"]["error"]["code"] == "server_error"
        await stopping
    rejection = await server.post()
    assert rejection.status_code == 503
    assert rejection.json()["error"]["code"] == "server_is_overloaded"
    assert rejection.headers["retry-after"]


@pytest.mark.requirement("VN-65", "TR-14", "API-NO-CONTENT-IN-LOGS")
async def test_content_is_never_logged(
    serve: Serve, ask_foreground: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(ScriptedBackend(["CANARY-OUT"]))
    with caplog.at_level("DEBUG"):
        await ask_foreground(server, input="CANARY-IN", instructions="CANARY-SYSTEM")
    assert "CANARY" not in caplog.text
    assert "CANARY" not in server.log.getvalue()
    assert '"output_tokens":' in server.log.getvalue()

"""The real server on a loopback socket: disconnects, big bodies, signals, graceful shutdown."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from gc import freeze, unfreeze
from typing import Any

import httpx
import pytest
import structlog

from antiphon.errors import ServerStopped, SetupError
from antiphon.http.middleware.auth import AuthConfig
from antiphon.http.middleware.errors import ErrorMiddleware
from antiphon.http.middleware.request_context import RequestContext, request_context
from antiphon.http.server import http_protocol
from antiphon.http.server.connections import ConnectionLimits
from antiphon.http.server.listening import bind, raise_file_limit
from antiphon.http.server.serve import serve
from antiphon.http.streaming.disconnect import DISCONNECT_EXTENSION, CancelOnDisconnect
from antiphon.limits.requests import RequestLimits
from antiphon.tracing.base import Span
from tests.http.middleware.test_auth import ACCESS

ASK = {"model": "tiny", "input": "hi"}
WAIT_S = 60

Serving = Callable[..., Any]


class RunningServer:
    """A running server: its address, a client, and a way to send signals."""

    def __init__(self, port: int, task: asyncio.Task[None], client: httpx.AsyncClient) -> None:
        self.port = port
        self.task = task
        self.client = client

    def signal(self, number: int = signal.SIGTERM) -> None:
        os.kill(os.getpid(), number)


@asynccontextmanager
async def run_server(
    app: Any,
    drain: Callable[[float], Awaitable[None]],
    grace_s: float = 30,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[RunningServer]:
    sockets = bind("127.0.0.1", 0)
    port = sockets[0].getsockname()[1]
    before = signal.getsignal(signal.SIGTERM)
    task = asyncio.create_task(serve(app, sockets, drain=drain, grace_s=grace_s, limits=limits))
    patience = httpx.Timeout(WAIT_S)
    async with (
        asyncio.timeout(WAIT_S),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=patience) as client,
    ):
        server = RunningServer(port, task, client)
        assert (await client.get("/health")).status_code == 200
        try:
            yield server
        finally:
            if not task.done():
                server.signal()
                server.signal()
            await task
    assert signal.getsignal(signal.SIGTERM) is before


async def test_disconnect_cancels_a_streamed_run(make_app: Any, service: Any) -> None:
    service.script = {"step": asyncio.Semaphore(0)}
    async with run_server(make_app().app, service.drain) as server:
        async with server.client.stream("POST", "/v1/responses", json={**ASK, "stream": True}) as s:
            lines = s.aiter_lines()
            assert await anext(lines) == "event: response.created"
        await service.runs[0].left.wait()


async def test_existing_objects_are_frozen_while_serving(
    make_app: Any, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in (freeze, unfreeze):
        monkeypatch.setattr(gc, function.__name__, function)
    before = gc.get_threshold()
    async with run_server(make_app().app, service.drain):
        assert gc.get_freeze_count() > 10_000
        assert gc.get_threshold()[0] > before[0]
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)
    freeze()  # the collected tests again


async def test_disconnect_cancels_a_run_without_streaming(make_app: Any, service: Any) -> None:
    service.script = {"step": asyncio.Semaphore(0)}
    async with run_server(make_app().app, service.drain) as server:
        requests = asyncio.create_task(server.client.post("/v1/responses", json=ASK))
        await service.created.wait()
        requests.cancel()
        await service.runs[0].left.wait()


async def test_disconnect_in_the_queue_starts_no_run(make_app: Any, service: Any) -> None:
    step = asyncio.Semaphore(0)
    service.script = {"step": step}
    app = make_app(limits=RequestLimits(max_concurrent_requests=1))
    async with run_server(app.app, service.drain) as server:
        first = asyncio.create_task(server.client.post("/v1/responses", json=ASK))
        await service.created.wait()
        second = asyncio.create_task(server.client.post("/v1/responses", json=ASK))
        await wait_for_gauge(server, "antiphon_num_requests_waiting", 1)
        second.cancel()
        await wait_for_gauge(server, "antiphon_num_requests_waiting", 0)
        step.release()
        step.release()
        assert (await first).status_code == 200
        assert len(service.runs) == 1


async def wait_for_gauge(server: RunningServer, name: str, value: float) -> None:
    while f"{name} {value:.1f}" not in (await server.client.get("/metrics")).text:
        await asyncio.sleep(0)


@pytest.mark.parametrize("declared", [True, False])
async def test_huge_body_is_refused_early(make_app: Any, service: Any, declared: bool) -> None:
    app = make_app(limits=RequestLimits(max_body_bytes=1000))
    async with run_server(app.app, service.drain) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        length = "content-length: 50000000" if declared else "transfer-encoding: chunked"
        head = f"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n{length}\r\n\r\n"
        writer.write(head.encode() + (b"" if declared else b"800\r\n" + b" " * 0x800 + b"\r\n"))
        status = await reader.readline()
        assert status.startswith(b"HTTP/1.1 413")
        writer.close()
        await writer.wait_closed()


async def test_client_that_sends_a_whole_huge_body_gets_the_error(
    make_app: Any, service: Any
) -> None:
    app = make_app(limits=RequestLimits(max_body_bytes=1000))
    async with run_server(app.app, service.drain) as server:
        answer = await server.client.post("/v1/responses", content=b" " * 20_000_000)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"
        assert (await server.client.get("/health")).status_code == 200


@pytest.mark.parametrize("piece", [b"x-many: " + b"y" * 1000 + b"\r\n", b"z" * 1000])
async def test_too_large_headers_are_431(make_app: Any, service: Any, piece: bytes) -> None:
    async with run_server(make_app().app, service.drain) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-one: " + piece * 70)
        head, body = (await reader.read()).split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 431")
        assert json.loads(body)["error"]["code"] == "headers_too_large"
        assert f"content-length: {len(body)}".encode() in head
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET /health HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_invalid_http_is_400_in_the_api_error_format(
    make_app: Any, service: Any, sent: bytes
) -> None:
    async with run_server(make_app().app, service.drain) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        head, body = (await reader.read()).split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 400")
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == "invalid_http"
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_pipelined_request_after_a_large_one_is_answered(make_app: Any, service: Any) -> None:
    """The head of the second request arrives, incomplete, in one packet with the first's body."""
    body = b" " * 100_000
    async with run_server(make_app().app, service.drain) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = f"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body + b"GET /health HTTP/1.1\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        writer.write(b"host: localhost\r\nconnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b'{"status":"ok"}')
        writer.close()
        await writer.wait_closed()


async def test_pipelined_requests_are_answered_in_order(make_app: Any, service: Any) -> None:
    paths = ["/health", "/one", "/two", "/three", "/health"]
    *requests, last = (f"GET {path} HTTP/1.1\r\nhost: localhost\r\n" for path in paths)
    sent = "\r\n".join([*requests, f"{last}connection: close\r\n\r\n"])
    async with run_server(make_app().app, service.drain) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent.encode())
        answers = await reader.read()
        writer.close()
        await writer.wait_closed()
    found = re.findall(rb'"status":"ok"|/one|/two|/three', answers)
    assert found == [b'"status":"ok"', b"/one", b"/two", b"/three", b'"status":"ok"']


async def test_headers_of_usual_size_are_accepted(make_app: Any, service: Any) -> None:
    async with run_server(make_app().app, service.drain) as server:
        for _ in range(3):
            answer = await server.client.get("/health", headers={"x-turn": "y" * 30_000})
            assert answer.status_code == 200


async def test_exception_during_a_stream_truncates_it(make_app: Any, service: Any) -> None:
    """A client must not take the events it got for a complete stream."""
    service.script = {"breaks": True}
    app = make_app()
    async with run_server(app.app, service.drain) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            await server.client.post("/v1/responses", json={**ASK, "stream": True})
    assert [line for line in app.lines() if line["event"] == "unexpected error"]


async def test_no_server_header_is_sent(make_app: Any, service: Any) -> None:
    async with run_server(make_app().app, service.drain) as server:
        assert "server" not in (await server.client.get("/health")).headers


# --- shutdown ------------------------------------------------------------------------------------


async def test_sigterm_drains_streams_and_refuses_connections(make_app: Any, service: Any) -> None:
    step = asyncio.Semaphore(0)
    service.script = {"step": step}
    graces: list[float] = []
    draining = asyncio.Event()

    async def drain(grace_s: float) -> None:
        graces.append(grace_s)
        draining.set()
        await service.runs[0].left.wait()

    async with run_server(make_app().app, drain, grace_s=12) as server:
        async with server.client.stream("POST", "/v1/responses", json={**ASK, "stream": True}) as s:
            lines = s.aiter_lines()
            assert await anext(lines) == "event: response.created"
            server.signal()
            await draining.wait()
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", server.port)
            step.release()
            step.release()
            rest = [line async for line in lines]
        assert "event: response.completed" in rest
        assert "data: [DONE]" in rest
        await server.task
    assert graces == [12]


async def test_second_signal_ends_the_grace_period(make_app: Any, service: Any) -> None:
    graces: list[float] = []
    draining = asyncio.Event()
    given_up = asyncio.Event()

    async def drain(grace_s: float) -> None:
        graces.append(grace_s)
        draining.set()
        if grace_s > 0:
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()

    async with run_server(make_app().app, drain, grace_s=600) as server:
        server.signal(signal.SIGINT)
        await draining.wait()
        server.signal(signal.SIGINT)
        await given_up.wait()
        await server.task
    assert graces == [600, 0]


async def test_request_without_a_run_gets_the_grace_period_and_then_the_reason() -> None:
    begun, stopping = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/long":
            begun.set()
            async with CancelOnDisconnect(scope, receive):
                await stopping.wait()
                await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def drain(grace_s: float) -> None:
        stopping.set()

    errors = ErrorMiddleware(app, log=structlog.get_logger())

    async def with_context(scope: Any, receive: Any, send: Any) -> None:
        scope["antiphon.context"] = RequestContext("req_1", 0.0, Span({}))
        await errors(scope, receive, send)

    async with run_server(with_context, drain, grace_s=0.1) as server:
        request = asyncio.create_task(server.client.get("/long"))
        await begun.wait()
        server.signal()
        answer = await request
        assert answer.status_code == 503
        assert "The server was stopped" in answer.json()["error"]["message"]


SCRIPT = """
import sys
from antiphon.http.server.listening import bind
from antiphon.http.server.serve import run, serve

async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})

async def drain(grace_s):
    pass

async def main():
    sockets = bind("127.0.0.1", 0)
    sys.stdout.write(f"{sockets[0].getsockname()[1]}\\n")
    sys.stdout.flush()
    await serve(app, sockets, drain=drain)

run(main())
"""


async def test_stopped_process_exits_with_0_silently() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WAIT_S):
            assert process.stdout is not None
            port = int(await process.stdout.readline())
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"http://127.0.0.1:{port}/")).status_code == 204
            process.terminate()
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, out, err) == (0, b"", b"")


# --- binding -------------------------------------------------------------------------------------


def test_port_in_use_is_a_one_line_error() -> None:
    (taken,) = bind("127.0.0.1", 0)
    with taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port} on 127.0.0.1 is in use") as error:
            bind("127.0.0.1", port)
    assert "\n" not in str(error.value)


def test_port_can_be_reused_at_once() -> None:
    (first,) = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port))
    accepted, _ = blocking(first).accept()
    accepted.close()  # this side is in TIME_WAIT now
    client.close()
    first.close()
    (second,) = bind("127.0.0.1", port)
    second.close()


def blocking(listener: socket.socket) -> socket.socket:
    listener.settimeout(WAIT_S)
    return listener


def test_host_name_is_bound_on_all_addresses_with_one_port() -> None:
    sockets = bind("localhost", 0)
    try:
        assert len({listener.getsockname()[1] for listener in sockets}) == 1
        assert len({listener.family for listener in sockets}) == len(sockets)
    finally:
        for listener in sockets:
            listener.close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "256.1.1.1"])
def test_foreign_host_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(SetupError, match=host):
        bind(host, 0)


def test_port_out_of_range_is_an_error() -> None:
    with pytest.raises(SetupError, match="70000 is not between 0 and 65535"):
        bind("127.0.0.1", 70000)


def test_missing_address_is_skipped_if_another_exists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, elsewhere = socket.SOCK_STREAM, "192.0.2.1"  # kept for documentation (RFC 5737)
    absent = (socket.AF_INET, stream, 6, "", (elsewhere, 0))
    present = (socket.AF_INET, stream, 6, "", ("127.0.0.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: [absent, present])
    (listener,) = bind("localhost", 0)
    with listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: [absent])
    with pytest.raises(SetupError, match="localhost"):
        bind("localhost", 0)


# --- limits of connections -----------------------------------------------------------------------


async def _exchange(port: int, data: bytes) -> bytes:
    """Send ``data`` and nothing more; return all that the server sends before it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.close()


async def test_headers_that_do_not_arrive_are_refused(make_app: Any, service: Any) -> None:
    limits = ConnectionLimits(head_s=0.05)
    request = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\n"
    async with (
        asyncio.timeout(WAIT_S),
        run_server(make_app().app, service.drain, limits=limits) as server,
    ):
        # On a busy machine, not a byte may arrive in time. Then the connection is closed.
        while not (answer := await _exchange(server.port, request)):
            pass
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"


async def test_a_connection_that_sends_nothing_is_closed(make_app: Any, service: Any) -> None:
    limits = ConnectionLimits(head_s=0.05)
    async with run_server(make_app().app, service.drain, limits=limits) as server:
        assert await _exchange(server.port, b"") == b""


async def test_a_body_that_trickles_is_refused(make_app: Any, service: Any) -> None:
    limits = ConnectionLimits(body_grace_s=0.05, body_bytes_per_s=1e9)
    head = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
    async with run_server(make_app().app, service.drain, limits=limits) as server:
        answer = await _exchange(server.port, head)
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_stream_outlives_the_deadlines(make_app: Any, service: Any) -> None:
    limits = ConnectionLimits(head_s=1, body_grace_s=0.05, body_bytes_per_s=1e9)
    service.script = {"step": asyncio.Semaphore(0)}
    async with run_server(make_app().app, service.drain, limits=limits) as server:
        idle = asyncio.create_task(_exchange(server.port, b""))
        async with server.client.stream("POST", "/v1/responses", json={**ASK, "stream": True}) as s:
            lines = s.aiter_lines()
            assert await anext(lines) == "event: response.created"
            await idle  # as long as every deadline, and longer
            for _ in range(100):
                service.script["step"].release()
            assert any([line.startswith("data:") async for line in lines])


STALLED = b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Endless:
    """An app that answers ``/long`` with more than a client without a reader can receive."""

    def __init__(self) -> None:
        self.begun, self.left = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/long":
            self.begun.set()
            connection = scope["extensions"][DISCONNECT_EXTENSION]["connection"]
            piece = {"type": "http.response.body", "body": bytes(1 << 20), "more_body": True}
            while not connection.is_lost:
                await send(piece)
            self.left.set()
        await send({"type": "http.response.body", "body": b""})

    async def drain(self, grace_s: float) -> None:
        """Wait for the end of the answer."""
        await self.left.wait()


async def test_client_that_receives_nothing_is_left(service: Any) -> None:
    app, limits = Endless(), ConnectionLimits(stall_s=0.05)
    async with run_server(app, service.drain, limits=limits) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(STALLED)
        await app.left.wait()
        writer.close()


async def test_client_that_receives_nothing_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.http.server.connections._LAST_STALL_S", 0.05)
    app, limits = Endless(), ConnectionLimits(stall_s=1e9)
    async with run_server(app, app.drain, limits=limits) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(STALLED)
        await app.begun.wait()
        server.signal()
        await server.task
        writer.close()


async def test_an_idle_connection_takes_little_memory(make_app: Any, service: Any) -> None:
    connections: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        connections.append(scope["extensions"][DISCONNECT_EXTENSION]["connection"])
        await make_app().app(scope, receive, send)

    async with run_server(app, service.drain):
        (connection,) = connections
        assert not hasattr(connection, "__dict__"), "it would take more than 1 KB"


async def test_a_reader_of_the_body_waits_for_each_piece(make_app: Any, service: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request" and message["more_body"]:
            body += message["body"]
            await send_more.put(None)
        body += message.get("body", b"")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    send_more: asyncio.Queue[None] = asyncio.Queue()

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"a", b"b", b"c"):
            yield piece
            await send_more.get()

    async with run_server(app, service.drain) as server:
        assert (await server.client.post("/", content=pieces())).content == b"abc"


@pytest.mark.parametrize(
    ("path", "access", "status", "code"),
    [
        (b"/v1/responses", ACCESS, b"401", b"invalid_api_key"),
        (b"/v1?model=tiny", AuthConfig(), b"404", b"Unknown request URL: WEBSOCKET /v1."),
    ],
)
async def test_refused_websocket_logs_no_error(
    make_app: Any,
    service: Any,
    caplog: pytest.LogCaptureFixture,
    path: bytes,
    access: AuthConfig,
    status: bytes,
    code: bytes,
) -> None:
    app = make_app(access=access).app
    lines = (
        b"GET %b HTTP/1.1" % path,
        b"Host: localhost",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    async with run_server(app, service.drain) as server:
        refused = await _exchange(server.port, b"\r\n".join((*lines, b"", b"")))
        assert refused.startswith(b"HTTP/1.1 %b " % status) and code in refused
    assert [record.message for record in caplog.records] == []


async def test_connections_of_one_address_are_limited(
    make_app: Any, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "is_loopback", lambda address: False)
    limits = ConnectionLimits(per_address=2)
    async with run_server(make_app().app, service.drain, limits=limits) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        refused = await _exchange(server.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 429 ") and b"too_many_connections" in refused
        writer.close()
        assert await reader.read() == b""
        assert (await server.client.get("/health")).status_code == 200


def test_the_limit_of_open_files_is_raised() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        raise_file_limit()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == hard or soft >= 2**20
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_cut_off_response_ends_without_a_complaint(
    service: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        request_context(scope).status = 200
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] != "/health":
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            raise ServerStopped("The server was stopped.")
        await send({"type": "http.response.body", "body": b""})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["antiphon.context"] = RequestContext("req_1", 0.0, Span({}))
        await ErrorMiddleware(fail, log=structlog.get_logger())(scope, receive, send)

    async with run_server(app, service.drain) as server:
        async with server.client.stream("GET", "/") as answer:
            pieces = answer.aiter_bytes()
            assert await anext(pieces) == b"begun"
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(pieces)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []

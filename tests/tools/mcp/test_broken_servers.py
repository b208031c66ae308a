"""MCP servers that send what is no message of the protocol. The call fails, and the log gets
neither a traceback nor what the server has sent."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import structlog
from mcp import Client

from antiphon.support.logs import capture_libraries, open_log
from antiphon.tools.mcp.endpoint import McpEndpoint
from antiphon.tools.mcp.sessions import McpFailure, SessionKey, SessionPool

RESULTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "initialize": lambda params: {
        "protocolVersion": params["protocolVersion"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "broken", "version": "1"},
    },
    "tools/list": lambda _: {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]},
    "tools/call": lambda _: {"content": []},
}
JSON, EVENTS = "application/json", "text/event-stream"
REQUEST = {"jsonrpc": "2.0", "id": 1, "method": "CANARY", "params": "CANARY"}
#: The type and the content of an answer.
GARBAGE: dict[str, tuple[str, bytes]] = {
    "no JSON": (JSON, b'{"CANARY" CANARY'),
    "no UTF-8": (JSON, b"\xff\xfe CANARY"),
    "no JSON-RPC": (JSON, b'{"a": "CANARY"}'),
    "list": (JSON, b'["CANARY"]'),
    "nested": (JSON, b"[" * 20_000),
    "wrong result": (JSON, b'{"jsonrpc": "2.0", "id": ID, "result": {"tools": 1, "content": 1}}'),
    "wrong error": (JSON, b'{"jsonrpc": "2.0", "id": ID, "error": "CANARY"}'),
    "wrong type": ("text/html; charset=CANARY", b"<html>"),
    "event without JSON": (EVENTS, b"data: {CANARY\n\n" * 3),
    "event of no JSON-RPC": (EVENTS, b'data: {"a": "CANARY"}\n\n' * 3),
    "unknown event": (EVENTS, b"event: CANARY\ndata: {}\n\n" * 3),
    "wrong request": (EVENTS, b"data: " + json.dumps(REQUEST).encode() + b"\n\n"),
    "no event": (EVENTS, b""),
}


class BrokenServer:
    """Answers requests of the method ``stage`` with garbage."""

    def __init__(self, stage: str, garbage: tuple[str, bytes]) -> None:
        self._stage, self._garbage = stage, garbage

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, _, rest = head.lower().partition(b"content-length:")
                body = await reader.readexactly(int(rest.partition(b"\r\n")[0] or 0))
                writer.write(self._answer(json.loads(body or b"{}")))
        writer.close()

    def _answer(self, message: dict[str, Any]) -> bytes:
        if self._stage == "GET" or (message and message["method"] == self._stage):
            kind, content = self._garbage
            number = json.dumps(message.get("id")).encode()
            return _http(200, kind, content.replace(b"ID", number))
        if "id" not in message:
            return _http(202 if message else 405, JSON, b"")
        return _http(200, JSON, json.dumps(answer(message)).encode())


def answer(message: dict[str, Any]) -> dict[str, Any]:
    end: dict[str, Any] = {"error": {"code": -32601, "message": "unknown"}}
    if (result := RESULTS.get(message["method"])) is not None:
        end = {"result": result(message.get("params", {}))}
    return {"jsonrpc": "2.0", "id": message["id"], **end}


def _http(status: int, kind: str, content: bytes) -> bytes:
    head = f"HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n\r\n"
    return head.encode() + content


@asynccontextmanager
async def serving(server: BrokenServer) -> AsyncIterator[str]:
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    capture_libraries(open_log(stream))
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


async def failure_of(endpoint: McpEndpoint) -> str:
    """Use the server, and return how that failed; "" if it did not."""

    async def use(client: Client) -> None:
        await client.list_tools()
        await client.call_tool("t", {})

    pool = SessionPool(connect_s=60, call_s=60)
    try:
        await pool.call(SessionKey("t", "", endpoint), use)
    except McpFailure as failure:
        return failure.details.message
    finally:
        await pool.close()
        gc.collect()  # lets asyncio log what nobody retrieved
    return ""


def is_quiet(log: io.StringIO) -> bool:
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    ours = {"an MCP server was not reached", "an MCP session ended"}
    return len(lines) <= 1 and all(
        line["event"] in ours and len(line.get("why", "")) <= 200 and "exception" not in line
        for line in lines
    )


@pytest.mark.parametrize("stage", ["server/discover", "initialize", "tools/list", "tools/call"])
@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_fails_the_call_and_leaves_the_log_alone(
    log: io.StringIO, name: str, stage: str
) -> None:
    async with asyncio.timeout(60), serving(BrokenServer(stage, GARBAGE[name])) as url:
        failure = await failure_of(McpEndpoint(url=url, transport="http"))
    # A server that cannot say which versions it speaks is asked in the old way.
    assert bool(failure) is (stage != "server/discover") or name == "wrong request"
    assert "validation error" not in failure and is_quiet(log), (failure, log.getvalue())


@pytest.mark.parametrize("name", ["no JSON", "unknown event", "no event"])
async def test_garbage_instead_of_an_event_stream(log: io.StringIO, name: str) -> None:
    async with asyncio.timeout(60), serving(BrokenServer("GET", GARBAGE[name])) as url:
        assert await failure_of(McpEndpoint(url=url, transport="sse"))
    assert is_quiet(log), log.getvalue()


async def test_process_that_writes_other_lines_is_used(log: io.StringIO) -> None:
    program = (
        "import json, sys\nfrom tests.tools.mcp.test_broken_servers import answer\n"
        "for line in sys.stdin:\n    print('CANARY {')\n    message = json.loads(line)\n"
        "    if 'id' in message:\n        print(json.dumps(answer(message)), flush=True)\n"
    )
    endpoint = McpEndpoint(
        command=sys.executable, args=("-c", program), env={"PYTHONPATH": ":".join(sys.path)}
    )
    async with asyncio.timeout(60):
        assert await failure_of(endpoint) == ""
    assert log.getvalue() == ""

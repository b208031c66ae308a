"""MCP servers of the protocol without sessions (2026-07-28): caching, tasks, and who we are."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from importlib.metadata import version
from typing import Any, Literal

import pytest
import uvicorn
from mcp import MCPError
from mcp.server.caching import CacheHint
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolRequestParams, RequestParams, ToolAnnotations
from msgspec.structs import replace
from pydantic import BaseModel

from antiphon.tools.base import CallContext, ResponseContext, ToolResult
from antiphon.tools.mcp.provider import McpProvider
from antiphon.tools.mcp.sessions import SessionPool
from antiphon.wire.tools import Mcp

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
CONTEXT = CallContext(
    tenant="t", response_id="resp_1", call_id="call_1", max_result_bytes=10_000, trace=TRACE
)


class Tasks(Extension):
    """Answers calls of ``long`` with a task. ``state`` is the answer to each question about it."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"status": "working"}
        self.names: list[str] = []
        self.asked, self.cancelled = asyncio.Event(), asyncio.Event()

    def methods(self) -> Sequence[MethodBinding]:
        class TaskParams(RequestParams):
            task_id: str

        async def get(context: Any, params: TaskParams) -> dict[str, Any]:
            self.names.append(context.request.headers["mcp-name"])
            self.asked.set()
            return {"resultType": "complete", "taskId": params.task_id, **_TIMES, **self.state}

        async def cancel(context: Any, params: TaskParams) -> dict[str, Any]:
            self.cancelled.set()
            return {"resultType": "complete"}

        return (
            MethodBinding("tasks/get", TaskParams, get),
            MethodBinding("tasks/cancel", TaskParams, cancel),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, context: Any, call_next: Any
    ) -> Any:
        capabilities = (params.meta or {}).get("io.modelcontextprotocol/clientCapabilities", {})
        if params.name != "long" or self.identifier not in capabilities.get("extensions", {}):
            return await call_next(context)
        return {"resultType": "task", "taskId": "task ü", "status": "working", **_TIMES}


_TIMES = {"createdAt": "2026-11-28T00:00:00Z", "lastUpdatedAt": "2026-11-28T00:00:00Z"} | {
    "ttlMs": None,
    "pollIntervalMs": 1,
}


class Name(BaseModel):
    name: str


class Server:
    """A running MCP server. ``requests``: method and ``_meta`` of each request."""

    def __init__(self, ttl_ms: int, scope: Literal["public", "private"]) -> None:
        hints = {"tools/list": CacheHint(ttl_ms, scope)}
        self.tasks = Tasks()
        self.mcp = MCPServer("m", cache_hints=hints, extensions=[self.tasks], log_level="CRITICAL")
        self.mcp.add_tool(self.greet, annotations=ToolAnnotations(read_only_hint=True))
        self.mcp.add_tool(self.ask)
        self.mcp.add_tool(self.fail)
        self.mcp.add_tool(self.long)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.is_legacy = self.refuses_calls = False
        self.error_code = 0
        self._app = self.mcp.streamable_http_app()

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.requests]

    async def greet(self) -> str:
        """Greet."""
        return "hello"

    async def ask(self, context: Context[Any]) -> str:
        """Ask the user."""
        await context.elicit("Who are you?", Name)
        return "asked"

    async def fail(self) -> str:
        """Fail with ``error_code``."""
        raise MCPError(self.error_code, "no luck")

    async def long(self) -> str:
        """Take long."""
        return "done at once"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        request = json.loads(body)
        self.requests.append((request["method"], (request.get("params") or {}).get("_meta", {})))
        status = 400 if self.is_legacy and "2026-07-28" in str(scope["headers"]) else 0
        if self.refuses_calls and request["method"] == "tools/call":
            status = status or 401
        if status:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Any:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, replay, send)


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[str]:
    config = uvicorn.Config(server, host="127.0.0.1", port=0, lifespan="on", log_level="error")
    host = uvicorn.Server(config)
    task = asyncio.create_task(host.serve())
    try:
        async with asyncio.timeout(20):
            while not host.started:
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{host.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        host.should_exit = True
        await task


class Host:
    """Antiphon's side."""

    def __init__(self, url: str) -> None:
        networks = (ipaddress.ip_network("127.0.0.1"),)
        self.provider = McpProvider({}, SessionPool(connect_s=20), networks=networks)
        self.tool = Mcp(server_label="m", server_url=url, require_approval="never")

    async def respond(
        self, name: str = "greet", context: CallContext = CONTEXT, *, tenant: str = "t"
    ) -> ToolResult:
        """Do what a new response does: list the tools and call one."""
        response_id = f"resp_{asyncio.get_running_loop().time()}"
        response = ResponseContext(tenant=tenant, response_id=response_id, items=(), trace=TRACE)
        async with self.provider.open(self.tool, response) as toolset:
            handler = next(each.handler for each in toolset.functions if each.tool.name == name)
            assert handler is not None
            async with aclosing(handler("{}", context)) as steps:
                (result,) = [step async for step in steps]
        assert isinstance(result, ToolResult)
        return result


@asynccontextmanager
async def server_and_host(
    ttl_ms: int = 60_000, scope: Literal["public", "private"] = "private"
) -> AsyncIterator[tuple[Server, Host]]:
    server = Server(ttl_ms, scope)
    async with running(server) as url, asyncio.timeout(60):
        host = Host(url)
        try:
            yield server, host
        finally:
            await host.provider.close()


ALL = ["server/discover", "tools/list", "tools/call"]


@pytest.mark.parametrize(
    ("ttl_ms", "scope", "second", "foreign"),
    [
        (60_000, "private", ALL[2:], ALL),
        (60_000, "public", ALL[2:], [ALL[0], ALL[2]]),
        (0, "public", ALL[1:], ALL),
    ],
)
async def test_known_server_needs_one_round_trip(
    ttl_ms: int, scope: Literal["public", "private"], second: list[str], foreign: list[str]
) -> None:
    async with server_and_host(ttl_ms, scope) as (server, host):
        for tenant, expected in (("t", ALL), ("t", second), ("u", foreign)):
            server.requests.clear()
            assert (await host.respond(tenant=tenant)).text == "hello"
            assert server.methods == expected


async def test_public_list_is_not_shared_where_credentials_are_sent() -> None:
    async with server_and_host(scope="public") as (server, host):
        host.tool = replace(host.tool, authorization="secret")
        await host.respond()
        await host.respond(tenant="u")
        assert server.methods.count("tools/list") == 2


async def test_requests_name_us_and_carry_the_trace() -> None:
    async with server_and_host() as (server, host):
        await host.respond()
        client = {"name": "antiphon", "title": "Antiphon", "version": version("antiphon")}
        for method, meta in server.requests:
            assert meta["io.modelcontextprotocol/clientInfo"] == client
            capabilities = meta["io.modelcontextprotocol/clientCapabilities"]
            assert "elicitation" not in capabilities
            assert method == "server/discover" or meta["traceparent"] == TRACE["traceparent"]


async def test_server_that_goes_back_to_sessions_is_followed() -> None:
    async with server_and_host() as (server, host):
        await host.respond()
        server.is_legacy = True
        server.requests.clear()
        assert (await host.respond()).text == "hello"
        assert server.methods[:3] == ["tools/call", "server/discover", "initialize"]
        server.requests.clear()
        assert (await host.respond()).text == "hello"
        assert server.methods[0] == "initialize"


@pytest.mark.parametrize("is_legacy", [False, True])
async def test_tool_has_certainly_not_run_only_if_each_attempt_was_refused(is_legacy: bool) -> None:
    """A server that answers 400 may be one of an older protocol, or one whose tool has run."""
    async with server_and_host() as (server, host):
        await host.respond()
        server.is_legacy, server.refuses_calls = is_legacy, True
        result = await host.respond()
        assert result.failed and "401" in result.text
        assert result.has_run is is_legacy


async def test_question_to_the_user_is_refused_by_name() -> None:
    async with server_and_host() as (_, host):
        result = await host.respond("ask")
        assert result.failed and "licitation" in result.text


@pytest.mark.parametrize("code", [-32602, -32603])  # the HTTP status is 400 or 200
async def test_failed_call_of_a_known_server_is_not_repeated(code: int) -> None:
    async with server_and_host() as (server, host):
        server.error_code = code
        await host.respond()
        server.requests.clear()
        assert (await host.respond("fail")).failed
        assert server.methods == ["tools/call"]


COMPLETED = {"content": [{"type": "text", "text": "42"}], "resultType": "complete"}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"status": "completed", "result": COMPLETED}, "42"),
        ({"status": "completed", "result": {**COMPLETED, "isError": True}}, "Error: {"),
        ({"status": "failed", "error": {"code": -32000, "message": "no luck"}}, "no luck"),
        ({"status": "cancelled"}, "The task is cancelled."),
        ({"status": "input_required", "inputRequests": {}}, "asks for input"),
    ],
)
async def test_task_is_awaited(state: dict[str, Any], text: str) -> None:
    notes: list[bytes] = []

    async def keep_note(note: bytes) -> bool:
        notes.append(note)
        return True

    async with server_and_host() as (server, host):
        call = asyncio.create_task(host.respond("long", replace(CONTEXT, keep_note=keep_note)))
        await server.tasks.asked.wait()
        server.tasks.state = state
        result = await call
        assert text in result.text and result.failed is (text != "42")
        assert notes == ["task ü".encode()]
        assert set(server.tasks.names) == {"=?base64?dGFzayDDvA==?="}


async def test_call_with_a_note_waits_for_its_task() -> None:
    async with server_and_host() as (server, host):
        server.tasks.state = {"status": "completed", "result": COMPLETED}
        result = await host.respond("long", replace(CONTEXT, note="task ü".encode()))
        assert result.text == "42" and "tools/call" not in server.methods


@pytest.mark.parametrize("is_noted", [False, True])
@pytest.mark.parametrize("is_durable", [False, True])
async def test_task_is_cancelled_with_a_call_that_nobody_continues(
    is_durable: bool, is_noted: bool
) -> None:
    """The call is cancelled while it waits for the task, or while the note is stored."""
    is_storing = asyncio.Event()

    async def keep_note(note: bytes) -> bool:
        is_storing.set()
        if not is_noted:
            await asyncio.Event().wait()
        return is_durable

    async def has_ended() -> bool:
        return True

    context = replace(CONTEXT, keep_note=keep_note, has_ended=has_ended)
    async with server_and_host() as (server, host):
        call = asyncio.create_task(host.respond("long", context))
        async with asyncio.timeout(20):
            await (server.tasks.asked if is_noted else is_storing).wait()
            call.cancel()
            await server.tasks.cancelled.wait()

"""Tools of real MCP servers, in every request mode."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from mcp import MCPError
from mcp_types import ListToolsResult
from mcp_types import Tool as McpTool
from msgspec.structs import replace

from antiphon.backends.local.backend import LocalBackend
from antiphon.runs.background.worker import LeaseConfig
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.records import NewRun
from antiphon.tools.mcp.calls import McpCaller
from antiphon.tools.mcp.endpoint import McpEndpoint, RequestTrace
from antiphon.tools.mcp.implementations import McpImplementation, code_interpreter, web_search
from antiphon.tools.mcp.provider import McpProvider
from antiphon.tools.mcp.results import McpFailure, describe_failure
from antiphon.tools.mcp.sessions import SessionKey, SessionPool
from tests.conformance import oracle
from tests.conformance.conftest import Serve
from tests.conformance.scripts import TOOL
from tests.conformance.server import Ask, Server, engine, local
from tests.conformance.test_tool_search import rendered_prompts, tool_call
from tests.tools.mcp.process import Toys

#: The tool "hang" as a conversation contains it.
LISTED_TOOL = {"name": "hang", "input_schema": {"type": "object"}}
HERE = (ipaddress.ip_network("127.0.0.1"),)


@pytest.fixture
async def mcp() -> AsyncIterator[McpProvider]:
    servers = McpProvider({}, SessionPool(), networks=HERE)
    yield servers
    await servers.close()


def tool(url: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "mcp",
        "server_label": "toys",
        "server_url": url,
        "require_approval": "never",
        **more,
    }


class ListingPool:
    """Lists one tool of every MCP server, with a long description, or raises ``error``.
    ``asked``: for whom."""

    def __init__(self, error: MCPError | None = None) -> None:
        self.asked: list[SessionKey] = []
        self._error = error

    async def call(self, key: SessionKey, question: Any) -> Any:
        self.asked.append(key)
        if self._error is not None:
            raise McpFailure(describe_failure(self._error, RequestTrace()))
        return await question(self)

    async def list_tools(self, cursor: str | None = None, meta: object = None) -> ListToolsResult:
        tool = McpTool(
            name="n" * 1_000, description="<b>" + "d" * 10_000, input_schema={"type": "object"}
        )
        return ListToolsResult(tools=[tool], ttl_ms=60_000)


def listing_provider(pool: Any = None) -> McpProvider:
    """Return a provider with the MCP server ``toys``, which a ``ListingPool`` stands for."""
    server = McpEndpoint(url="http://toys.example/mcp")
    return McpProvider({"toys": server}, pool or cast(Any, ListingPool()))


@pytest.mark.requirement("MCP-TEST")
async def test_server_of_the_operator_is_asked_for_its_tools(serve: Serve, toys: Toys) -> None:
    urls = {"toys": toys.url, "locked": f"{toys.root}/locked", "gone": "http://127.0.0.1:1/mcp"}
    servers = {label: McpEndpoint(url=url) for label, url in urls.items()}
    provider = McpProvider(servers, SessionPool(), fails_response=False)
    client = serve(providers={"mcp": provider}).client
    listed = (await client.get("/antiphon/mcp-servers/toys/tools")).json()["data"]
    assert listed[:2] == [
        {"name": "add", "description": "Add two numbers.", "read_only": True},
        {"name": "delete", "description": "Delete something.", "read_only": False},
    ]
    for label, status, why in (
        ("locked", 424, "Http status code: 401 (Unauthorized"),
        ("gone", 424, "The server is not available"),
        ("none", 404, "This server has no MCP server 'none'."),
    ):
        answer = await client.get(f"/antiphon/mcp-servers/{label}/tools")
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (status, None)
        assert why in error["message"]
    await provider.close()
    without = await serve().client.get("/antiphon/mcp-servers/toys/tools")
    assert without.status_code == 404


@pytest.mark.requirement("MCP-TEST")
async def test_test_of_a_server_that_is_silent_or_wordy_ends(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        silent = McpProvider({"toys": McpEndpoint(url=url)}, SessionPool(connect_s=0.2, call_s=0.2))
        pool = ListingPool(MCPError(-32603, "no " * 100_000))
        for provider, why in ((silent, "took too long"), (listing_provider(pool), "no no")):
            client = serve(providers={"mcp": provider}).client
            answer = await client.get("/antiphon/mcp-servers/toys/tools")
            assert answer.status_code == 424 and len(answer.content) < 3_000
            assert why in answer.json()["error"]["message"]
        await silent.close()


@pytest.mark.requirement("MCP-TEST")
async def test_test_of_a_server_asks_anew_and_shortens_texts(serve: Serve) -> None:
    pool = ListingPool()
    client = serve(providers={"mcp": listing_provider(pool)}).client
    for _ in range(2):
        answer = await client.get("/antiphon/mcp-servers/toys/tools")
        (listed,) = answer.json()["data"]
        assert len(listed["name"]) < 300 and len(listed["description"]) < 2_100
        assert listed["description"].startswith("<b>ddd")
    assert len(pool.asked) == 2


@pytest.mark.requirement("MCP-TEST")
async def test_test_of_a_server_sends_the_access_token_of_the_client(serve: Serve) -> None:
    pool = ListingPool()
    server = McpEndpoint(url="http://toys.example/mcp", headers={"authorization": "Bearer own"})
    program = McpEndpoint(command="toys")
    provider = McpProvider({"toys": server, "program": program}, cast(Any, pool))
    client = serve(providers={"mcp": provider}).client
    await client.get("/antiphon/mcp-servers/toys/tools")
    token = {"mcp-authorization": "secret"}
    await client.get("/antiphon/mcp-servers/toys/tools", headers=token)
    sent = [key.server.headers for key in pool.asked]
    assert sent == [{"authorization": "Bearer own"}, {"Authorization": "Bearer secret"}]
    answer = await client.get("/antiphon/mcp-servers/program/tools", headers=token)
    assert answer.status_code == 400 and "takes no headers" in answer.json()["error"]["message"]


@pytest.mark.requirement("D-75", "VN-85")
async def test_tools_are_listed_and_called(
    serve: Serve, ask: Ask, mcp: McpProvider, toys: Toys
) -> None:
    scripted_engine = engine([tool_call("toys__add", {"a": 2, "b": 3}), "Five."])
    server = serve(local(scripted_engine), providers={"mcp": mcp})
    answer = await ask(server, tools=[tool(toys.url, allowed_tools=["add"])])
    listed, ran, _ = answer.output
    assert [each["name"] for each in listed["tools"]] == ["add"] and "error" not in listed
    assert (ran["name"], ran["server_label"], ran["status"]) == ("add", "toys", "completed")
    assert ran["output"] == "5" and ran["error"] is None and json.loads(ran["arguments"])["a"] == 2
    assert answer.text == "Five."
    first, second = rendered_prompts(server)
    assert "toys__add" in first and "toys__delete" not in first
    assert second.startswith(first) and "5" in second[len(first) :]
    if answer.events:
        steps = [e["type"] for e in answer.events if "mcp" in e["type"]]
        steps = [step for step in steps if not step.endswith("delta")]
        assert steps == [
            "response.mcp_list_tools.in_progress",
            "response.mcp_list_tools.completed",
            "response.mcp_call.in_progress",
            "response.mcp_call_arguments.done",
            "response.mcp_call.completed",
        ]


@pytest.mark.requirement("API-TOOL-SEARCH")
async def test_deferred_server_is_searched(
    serve: Serve, ask_foreground: Ask, mcp: McpProvider, toys: Toys
) -> None:
    search = tool_call("tool_search", {"query": "add two numbers", "limit": 1})
    add = tool_call("toys__add", {"a": 2, "b": 3})
    server = serve(local(engine([search, add, "Five.", add, "Five."])), providers={"mcp": mcp})
    deferred = tool(toys.url, defer_loading=True, server_description="Toys that calculate")
    tools = [deferred, {"type": "tool_search"}]
    answer = await ask_foreground(server, tools=tools)
    kinds = [item["type"] for item in answer.output]
    assert kinds == [
        "mcp_list_tools",
        "tool_search_call",
        "tool_search_output",
        "mcp_call",
        "message",
    ]
    (found,) = answer.output[2]["tools"]
    assert (found["name"], [each["name"] for each in found["tools"]]) == ("toys", ["add"])
    assert (answer.output[3]["output"], answer.text) == ("5", "Five.")
    first, second, _ = rendered_prompts(server)
    assert "toys: Toys that calculate" in first and "toys__" not in first
    assert second.startswith(first) and "toys__add" in second and "toys__delete" not in second
    again = await ask_foreground(
        server, tools=tools, previous_response_id=answer.terminal_response["id"]
    )
    assert [item["type"] for item in again.output] == ["mcp_call", "message"]


@pytest.mark.requirement("API-TOOL-SEARCH")
async def test_tools_that_match_a_filter_are_deferred(
    serve: Serve, ask_foreground: Ask, mcp: McpProvider, toys: Toys
) -> None:
    server = serve(local(engine(["Hi."])), providers={"mcp": mcp})
    deferred = tool(toys.url, deferred_tools={"excluded_tool_names": ["add"]})
    answer = await ask_foreground(server, tools=[deferred, {"type": "tool_search"}])
    assert answer.terminal_response["tools"][0]["deferred_tools"] == deferred["deferred_tools"]
    (prompt,) = rendered_prompts(server)
    assert "toys__add" in prompt and "toys__delete" not in prompt
    wrong = {**deferred, "deferred_tools": {"a": 1}}
    for each in (wrong, {**wrong, "defer_loading": True}):
        body = {"model": "tiny", "input": "Hi", "tools": [each]}
        refused = await server.client.post("/v1/responses", json=body)
        assert refused.json()["error"]["param"] == "tools[0].deferred_tools.a"


@pytest.mark.requirement("API-TOOL-SEARCH")
async def test_deferred_server_is_shown_without_tool_search(
    serve: Serve, ask_foreground: Ask, mcp: McpProvider, toys: Toys
) -> None:
    server = serve(local(engine(["Hi."])), providers={"mcp": mcp})
    await ask_foreground(server, tools=[tool(toys.url, defer_loading=True)])
    assert "toys__add" in rendered_prompts(server)[0]


@pytest.mark.requirement("MCP-IMPLEMENTS")
async def test_server_implements_the_code_interpreter(serve: Serve, ask: Ask, toys: Toys) -> None:
    caller = McpCaller(SessionPool())
    provider = McpImplementation(code_interpreter, "py", McpEndpoint(url=toys.url), caller)
    scripted_engine = engine([tool_call("python", {"input": "print(1)"}), "Done."])
    server = serve(local(scripted_engine), providers={"code_interpreter": provider})
    answer = await ask(
        server,
        tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
        include=["code_interpreter_call.outputs"],
    )
    call, message = answer.output
    assert (call["type"], call["status"]) == ("code_interpreter_call", "completed")
    assert call["code"] == "print(1)"
    assert call["outputs"] == [{"type": "logs", "logs": "ran print(1)"}]
    assert message["content"][0]["text"] == "Done."
    await caller.close()


@pytest.mark.requirement("MCP-IMPLEMENTS")
async def test_server_implements_web_search(serve: Serve, ask: Ask, toys: Toys) -> None:
    caller = McpCaller(SessionPool())
    provider = McpImplementation(web_search, "browser", McpEndpoint(url=toys.url), caller)
    scripted_engine = engine([tool_call("browser__search", {"query": "rain"}), "Wet."])
    server = serve(local(scripted_engine), providers={"web_search": provider})
    answer = await ask(server, tools=[{"type": "web_search"}])
    call, _ = answer.output
    assert (call["type"], call["status"]) == ("web_search_call", "completed")
    assert call["action"]["query"] == "rain"
    assert "results of rain" in rendered_prompts(server)[-1]
    await caller.close()


@pytest.mark.requirement("MCP-SESSIONS")
async def test_conversation_has_a_session_of_its_own(
    serve: Serve, ask: Ask, mcp: McpProvider, toys: Toys
) -> None:
    tools = [tool(f"{toys.root}/sse")]

    async def remember(word: str, **fields: Any) -> tuple[str, str]:
        """Return the id of the response, and what its call returned."""
        replies[:] = [tool_call("toys__remember", {"word": word}), "Yes."]
        answer = (await ask(server, tools=tools, **fields)).terminal_response
        (call,) = (item for item in answer["output"] if item["type"] == "mcp_call")
        return answer["id"], call["output"]

    replies: list[Any] = []
    scripted_engine = engine(lambda prompt: replies.pop(0))
    server = serve(local(scripted_engine), providers={"mcp": mcp})
    conversation = (await server.client.post("/v1/conversations", json={})).json()["id"]
    first, words = await remember("a")
    assert words == "a"
    other, words = await remember("x")
    assert words == "x"
    second, words = await remember("b", previous_response_id=first)
    assert words == "a b"
    assert (await remember("y", previous_response_id=other))[1] == "x y"
    assert (await remember("c", previous_response_id=second))[1] == "a b c"
    assert (await remember("k", conversation=conversation))[1] == "k"
    assert (await remember("l", conversation=conversation))[1] == "k l"


@pytest.mark.parametrize(
    ("name", "error"),
    [("fail", "mcp_tool_execution_error"), ("absent", None), ("hang", "mcp_protocol_error")],
)
async def test_failed_calls_are_reported(
    serve: Serve, ask_foreground: Ask, toys: Toys, name: str, error: str | None
) -> None:
    # The time limit also applies to the list of tools, so the test that exceeds it knows the list.
    pool = SessionPool(call_s=0.5) if name == "hang" else SessionPool()
    known = {"type": "mcp_list_tools", "server_label": "toys", "tools": [LISTED_TOOL]}
    body = {"input": [known, {"role": "user", "content": "hi"}]} if name == "hang" else {}
    mcp = McpProvider({}, pool, networks=HERE)
    scripted_engine = engine([tool_call(f"toys__{name}", {}), "Sorry."])
    server = serve(local(scripted_engine), providers={"mcp": mcp})
    answer = await ask_foreground(server, tools=[tool(toys.url)], **body)
    await mcp.close()
    assert answer.terminal_response["status"] == "completed"
    if error is None:  # the model made it up: it is told, and nobody else
        assert [item["type"] for item in answer.output] == ["mcp_list_tools", "message"]
        assert "There is no tool 'toys__absent'" in rendered_prompts(server)[1]
        return
    (ran,) = (item for item in answer.output if item["type"] == "mcp_call")
    assert (ran["status"], ran["error"]["type"]) == ("failed", error)
    assert ran["output"] is None and answer.text == "Sorry."
    assert error in rendered_prompts(server)[1]
    if answer.events:
        assert "response.mcp_call.failed" in [e["type"] for e in answer.events]


@pytest.mark.requirement("MCP-UNREACHABLE")
async def test_failed_listing_ends_the_response(serve: Serve, mcp: McpProvider, toys: Toys) -> None:
    message = "Error retrieving tool list from MCP server: 'toys'. Http status code: 401"
    server = serve(local(engine(["Sorry."])), providers={"mcp": mcp})
    locked = [tool(f"{toys.root}/locked")]
    for stream in (False, True):
        reply = await server.post(tools=locked, stream=stream)
        error = oracle.error(reply)
        assert reply.status_code == 424 and error["message"].startswith(message)
        assert (error["type"], error["code"]) == ("external_connector_error", "http_error")
        assert error["param"] == "tools"


@pytest.mark.requirement("MCP-UNREACHABLE")
async def test_failed_listing_after_the_first_events_fails_the_response(
    serve: Serve, mcp: McpProvider, toys: Toys
) -> None:
    server = serve(local(engine(["Sorry."])), providers={"mcp": mcp}, first_delta_wait_s=0)
    reply = await server.post(tools=[tool(f"{toys.root}/locked")], stream=True)
    *_, error, failed = oracle.stream(reply.content)
    assert error["code"] == failed["response"]["error"]["code"] == "invalid_prompt"
    assert (error["type"], failed["type"]) == ("error", "response.failed")


@pytest.mark.requirement("MCP-UNREACHABLE")
async def test_failed_listing_is_reported_if_the_operator_wishes(
    serve: Serve, ask: Ask, toys: Toys
) -> None:
    mcp = McpProvider({}, SessionPool(), networks=HERE, fails_response=False)
    server = serve(local(engine(["Sorry."])), providers={"mcp": mcp})
    answer = await ask(server, tools=[tool(f"{toys.root}/locked")])
    listed, _ = answer.output
    assert listed["tools"] == [] and "Http status code: 401" in listed["error"]
    assert answer.terminal_response["status"] == "completed" and answer.text == "Sorry."
    await mcp.close()
    if answer.events:
        assert "response.mcp_list_tools.failed" in [e["type"] for e in answer.events]


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.requirement("D-75")
async def test_user_approves_or_denies_a_call(
    serve: Serve, ask_foreground: Ask, mcp: McpProvider, toys: Toys, store: Store, approve: bool
) -> None:
    before = toys.log.count("delete attic")
    replies = [tool_call("toys__delete", {"name": "attic"}), "So be it.", "As I said."]
    server = serve(local(engine(replies)), on=store, providers={"mcp": mcp})
    asks = tool(toys.url, require_approval={"never": {"read_only": True}})
    first = await ask_foreground(server, tools=[asks])
    assert [item["type"] for item in first.output] == ["mcp_list_tools", "mcp_approval_request"]
    request = first.output[1]
    assert first.terminal_response["status"] == "completed"
    assert (request["name"], request["arguments"]) == ("delete", '{"name": "attic"}')
    assert toys.log.count("delete attic") == before
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": approve,
        "reason": "Not that one.",
    }
    second = await ask_foreground(
        server, tools=[asks], previous_response_id=first.terminal_response["id"], input=[answer]
    )
    assert toys.log.count("delete attic") == before + approve
    assert second.text == "So be it."
    if approve:
        ran = second.output[0]
        assert (ran["type"], ran["output"]) == ("mcp_call", "attic is gone")
        assert ran["approval_request_id"] == request["id"]
        assert "attic is gone" in rendered_prompts(server)[-1]
    else:
        assert [item["type"] for item in second.output] == ["message"]
        assert "did not allow this call: Not that one." in rendered_prompts(server)[-1]
    third = await ask_foreground(
        server, tools=[asks], previous_response_id=second.terminal_response["id"], input="And?"
    )
    assert [item["type"] for item in third.output] == ["message"]
    assert toys.log.count("delete attic") == before + approve  # not once more


APPROVING = {"require_approval": {"never": {"read_only": True}}}


def approval(request_id: str, *, approve: bool = True) -> dict[str, Any]:
    return {
        "type": "mcp_approval_response",
        "approval_request_id": request_id,
        "approve": approve,
    }


async def request_approval(
    server: Server, toys: Toys, room: str, **more: Any
) -> tuple[dict[str, Any], str]:
    """Ask for a call that needs approval. Return the response and the approval request's id."""
    reply = await server.post(tools=[tool(toys.url, **APPROVING)], **more)
    assert reply.status_code == 200, reply.text
    (request,) = (each for each in reply.json()["output"] if each["type"].endswith("_request"))
    assert json.loads(request["arguments"]) == {"name": room}
    return reply.json(), request["id"]


def deleting(room: str) -> LocalBackend:
    return local(engine([tool_call("toys__delete", {"name": room}), "So be it."]))


def rejected(reply: httpx.Response, param: str) -> None:
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param, reply.text


async def ended(server: Server, response_id: str) -> dict[str, Any]:
    """Wait for the end of a background response and return it."""
    async with asyncio.timeout(60):
        while True:
            response: dict[str, Any] = (await server.get(f"responses/{response_id}")).json()
            if response["status"] not in ("queued", "in_progress"):
                return response
            await asyncio.sleep(0.01)


@pytest.mark.requirement("MCP-APPROVAL-ONCE")
async def test_approval_is_for_the_server_that_was_asked_about(
    serve: Serve, mcp: McpProvider, toys: Toys
) -> None:
    before = toys.log.count("delete attic")
    server = serve(deleting("attic"), providers={"mcp": mcp})
    first, request_id = await request_approval(server, toys, "attic")
    body = {"previous_response_id": first["id"], "input": [approval(request_id)]}
    elsewhere = tool(f"{toys.url}?other", **APPROVING)
    rejected(await server.post(**body, tools=[elsewhere]), "input[0].approval_request_id")
    assert toys.log.count("delete attic") == before


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.requirement("MCP-APPROVAL-ONCE")
async def test_approval_runs_once_however_often_it_is_sent(
    serve: Serve, mcp: McpProvider, toys: Toys, store: Store, background: bool
) -> None:
    before = toys.log.count("delete loft")
    server = serve(deleting("loft"), on=store, providers={"mcp": mcp})
    first, request_id = await request_approval(server, toys, "loft")
    body = {
        "tools": [tool(toys.url, **APPROVING)],
        "previous_response_id": first["id"],
        "input": [approval(request_id)],
        "background": background,
    }
    replies = await asyncio.gather(*(server.post(**body) for _ in range(4)))
    assert sorted(each.status_code for each in replies) == [200, 400, 400, 400]
    for reply in replies:
        if reply.status_code == 400:
            rejected(reply, "input[0].approval_request_id")
    (accepted,) = (each.json() for each in replies if each.status_code == 200)
    if background:
        accepted = await ended(server, accepted["id"])
    rejected(await server.post(**body), "input[0].approval_request_id")
    rejected(
        await server.post(**{**body, "previous_response_id": accepted["id"]}),
        "input[0].approval_request_id",
    )
    assert toys.log.count("delete loft") == before + 1


def _call(reply: httpx.Response) -> dict[str, Any]:
    """Return the call of the tool in a response."""
    (call,) = (item for item in reply.json()["output"] if item["type"] == "mcp_call")
    return dict(call)


@pytest.mark.parametrize("is_continued", [True, False])
@pytest.mark.requirement("MCP-APPROVAL-ONCE")
async def test_approval_stays_good_if_the_server_refuses_the_token(
    serve: Serve, mcp: McpProvider, toys: Toys, store: Store, is_continued: bool
) -> None:
    before = toys.log.count("delete hut")
    server = serve(deleting("hut"), on=store, providers={"mcp": mcp})
    locked = tool(f"{toys.root}/locked", **APPROVING)
    good, stale = {**locked, "authorization": "secret"}, {**locked, "authorization": "old"}
    reply = await server.post(tools=[good])
    first, request_id = reply.json(), reply.json()["output"][-1]["id"]
    body = {"previous_response_id": first["id"], "input": [approval(request_id)]}
    refused = await server.post(**body, tools=[stale])
    assert _call(refused)["error"]["code"] == 401 and _call(refused)["status"] == "failed"
    if is_continued:
        body["previous_response_id"] = refused.json()["id"]
        other = await server.post(**{**body, "input": "Go on."}, tools=[good])
        assert [item["type"] for item in other.json()["output"]] == ["message"]
    assert toys.log.count("delete hut") == before
    accepted = await server.post(**body, tools=[good])
    assert _call(accepted)["output"] == "hut is gone"
    rejected(await server.post(**body, tools=[good]), "input[0].approval_request_id")
    body["previous_response_id"] = accepted.json()["id"]
    rejected(await server.post(**body, tools=[good]), "input[0].approval_request_id")
    assert toys.log.count("delete hut") == before + 1


@asynccontextmanager
async def _breaking_proxy(toys: Toys, port: int) -> AsyncIterator[int]:
    """Yield the port of a proxy that breaks a connection off instead of passing a call on."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (data := await reader.read(65536)) and b"tools/call" not in data:
            writer.write(data)
        writer.close()

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", toys.port)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", port) as proxy:
        yield proxy.sockets[0].getsockname()[1]
        for writer in writers:
            writer.close()


@pytest.mark.requirement("MCP-APPROVAL-ONCE")
async def test_approval_stays_good_only_if_the_call_was_not_delivered(
    serve: Serve, mcp: McpProvider, toys: Toys
) -> None:
    before = toys.log.count("delete mill")
    server = serve(deleting("mill"), providers={"mcp": mcp})
    async with _breaking_proxy(toys, 0) as port:
        tools = [tool(f"http://127.0.0.1:{port}/mcp", **APPROVING)]
        reply = (await server.post(tools=tools)).json()
    answer = [approval(reply["output"][-1]["id"])]
    body = {"previous_response_id": reply["id"], "input": answer, "tools": tools}
    assert "could not be reached" in _call(await server.post(**body))["error"]["message"]
    async with _breaking_proxy(toys, port):
        assert "broke off" in _call(await server.post(**body))["error"]["message"]
        rejected(await server.post(**body), "input[0].approval_request_id")
    assert toys.log.count("delete mill") == before


@pytest.mark.requirement("MCP-APPROVAL-ONCE")
async def test_approval_in_a_conversation_runs_once(
    serve: Serve, mcp: McpProvider, toys: Toys
) -> None:
    before = toys.log.count("delete shed")
    server = serve(deleting("shed"), providers={"mcp": mcp})
    conversation = (await server.client.post("/v1/conversations", json={})).json()["id"]
    _, request_id = await request_approval(server, toys, "shed", conversation=conversation)
    body = {"tools": [tool(toys.url, **APPROVING)], "conversation": conversation}
    accepted = await server.post(**body, input=[approval(request_id)])
    assert accepted.status_code == 200, accepted.text
    rejected(
        await server.post(**body, input=[approval(request_id)]), "input[0].approval_request_id"
    )
    assert (await server.post(**body, input="Thanks.")).status_code == 200
    assert toys.log.count("delete shed") == before + 1


@pytest.mark.requirement("MCP-APPROVAL-ONCE")
async def test_approval_that_an_earlier_item_gives_runs_once(
    serve: Serve, mcp: McpProvider, toys: Toys
) -> None:
    """Later responses on a copy of the conversation leave the spent approval out."""
    before = toys.log.count("delete hall")
    server = serve(deleting("hall"), providers={"mcp": mcp})
    first, request_id = await request_approval(server, toys, "hall")
    items = [*first["output"], approval(request_id)]
    copies = [
        (await server.client.post("/v1/conversations", json={"items": items})).json()["id"]
        for _ in range(2)
    ]
    body = {"tools": [tool(toys.url, **APPROVING)], "input": "Go on."}
    outputs = [(await server.post(**body, conversation=each)).json()["output"] for each in copies]
    assert [[item["type"] for item in each] for each in outputs] == [
        ["mcp_call", "message"],
        ["message"],
    ]
    assert toys.log.count("delete hall") == before + 1


async def test_stateless_client_may_repeat_the_whole_history(
    serve: Serve, mcp: McpProvider, toys: Toys
) -> None:
    before = toys.log.count("delete barn")
    server = serve(deleting("barn"), providers={"mcp": mcp})
    first, request_id = await request_approval(server, toys, "barn", store=False)
    history = [*first["output"], approval(request_id)]
    body = {"tools": [tool(toys.url, **APPROVING)], "store": False}
    second = (await server.post(**body, input=history)).json()
    history += [*second["output"], {"role": "user", "content": "Thanks."}]
    third = await server.post(**body, input=history)
    assert third.status_code == 200, third.text
    assert toys.log.count("delete barn") == before + 1


@pytest.mark.requirement("MCP-APPROVAL-CHECKED")
async def test_invalid_answers_to_approval_requests_are_rejected_with_their_path(
    serve: Serve, mcp: McpProvider, toys: Toys
) -> None:
    before = toys.log.count("delete tower")
    server = serve(deleting("tower"), providers={"mcp": mcp})
    first, request_id = await request_approval(server, toys, "tower")
    tools = [tool(toys.url, **APPROVING)]

    async def send(*items: dict[str, Any], tools: list[dict[str, Any]] = tools) -> httpx.Response:
        return await server.post(tools=tools, previous_response_id=first["id"], input=[*items])

    yes, no = approval(request_id), approval(request_id, approve=False)
    hello = {"role": "user", "content": "Hello."}
    for pair in ((yes, no), (no, yes), (yes, yes)):
        rejected(await send(hello, *pair), "input[2].approval_request_id")
    rejected(await send(approval("mcpr_other")), "input[0].approval_request_id")
    rejected(await send(hello, yes, tools=[]), "input[1]")
    other = tool(toys.url, **APPROVING, server_label="other")
    rejected(await send(yes, tools=[other]), "input[0]")
    assert toys.log.count("delete tower") == before
    assert (await send(yes)).status_code == 200, "a rejected request does not spend the approval"
    assert toys.log.count("delete tower") == before + 1


async def test_denied_call_can_be_approved_later(
    serve: Serve, mcp: McpProvider, toys: Toys, store: Store
) -> None:
    before = toys.log.count("delete porch")
    server = serve(deleting("porch"), on=store, providers={"mcp": mcp})
    first, request_id = await request_approval(server, toys, "porch")
    body = {"tools": [tool(toys.url, **APPROVING)]}

    async def answer(previous: str, *, approve: bool) -> httpx.Response:
        items = [approval(request_id, approve=approve)]
        return await server.post(**body, previous_response_id=previous, input=items)

    denied = await answer(first["id"], approve=False)
    assert denied.status_code == 200 and toys.log.count("delete porch") == before
    allowed = await answer(denied.json()["id"], approve=True)
    assert allowed.status_code == 200 and allowed.json()["output"][0]["type"] == "mcp_call"
    rejected(await answer(allowed.json()["id"], approve=True), "input[0].approval_request_id")
    assert toys.log.count("delete porch") == before + 1


@pytest.mark.requirement("MCP-APPROVAL-BOUND")
async def test_approval_is_good_only_for_the_call_that_was_shown(
    serve: Serve, mcp: McpProvider, toys: Toys
) -> None:
    before = toys.log.count("delete shop")
    server = serve(deleting("shop"), providers={"mcp": mcp})
    first, request_id = await request_approval(server, toys, "shop", store=False)
    listed, request = first["output"]
    shown = tool(toys.url, **APPROVING)

    async def send(request: dict[str, Any], with_tool: dict[str, Any] = shown) -> httpx.Response:
        items = [listed, request, approval(request_id)]
        return await server.post(tools=[with_tool], store=False, input=items)

    path = "input[2].approval_request_id"
    rejected(await send({**request, "arguments": '{"name": "everything"}'}), path)
    rejected(await send({**request, "name": "hang"}), path)
    rejected(await send(request, tool(f"{toys.root}/sse", **APPROVING)), path)
    assert toys.log.count("delete shop") == before
    assert (await send(request)).status_code == 200
    assert toys.log.count("delete shop") == before + 1


async def test_refused_background_request_does_not_spend_its_approval(
    serve: Serve, mcp: McpProvider, toys: Toys
) -> None:
    """The request is refused after it was prepared."""
    before = toys.log.count("delete cabin")
    server = serve(deleting("cabin"), providers={"mcp": mcp})
    first, request_id = await request_approval(server, toys, "cabin")
    body = {
        "tools": [tool(toys.url, **APPROVING)],
        "previous_response_id": first["id"],
        "input": [approval(request_id)],
    }
    create = server.store.runs.create

    async def refuse(run: NewRun) -> bool:
        server.store.runs.create = create  # type: ignore[method-assign]
        return False

    server.store.runs.create = refuse  # type: ignore[method-assign]
    assert (await server.post(**body, background=True)).status_code == 400
    assert (await server.post(**body)).status_code == 200
    assert toys.log.count("delete cabin") == before + 1


async def test_approved_call_runs_in_the_process_that_takes_over(
    serve: Serve, mcp: McpProvider, toys: Toys, store: Store
) -> None:
    """The process that accepted the request has no room for the run."""
    before = toys.log.count("delete tent")
    full = LeaseConfig(max_runs=0)
    server = serve(deleting("tent"), on=store, providers={"mcp": mcp}, lease=full)
    first, request_id = await request_approval(server, toys, "tent")
    queued = await server.post(
        tools=[tool(toys.url, **APPROVING)],
        previous_response_id=first["id"],
        input=[approval(request_id)],
        background=True,
    )
    assert queued.status_code == 200, queued.text
    going_on = serve(local(engine(["So be it."])), on=store, providers={"mcp": mcp})
    found = await ended(going_on, queued.json()["id"])
    assert [item["type"] for item in found["output"]] == ["mcp_call", "message"], found
    assert toys.log.count("delete tent") == before + 1


async def test_refused_request_does_not_spend_its_approval(
    serve: Serve, mcp: McpProvider, toys: Toys
) -> None:
    before = toys.log.count("delete crypt")
    server = serve(deleting("crypt"), providers={"mcp": mcp})
    first, request_id = await request_approval(server, toys, "crypt")
    body = {
        "tools": [tool(toys.url, **APPROVING)],
        "previous_response_id": first["id"],
        "input": [approval(request_id), {"role": "user", "content": "word " * 5000}],
    }
    reply = await server.post(**body)
    assert reply.json()["error"]["code"] == "context_length_exceeded", reply.text
    body["input"] = [approval(request_id)]
    assert (await server.post(**body)).status_code == 200
    assert toys.log.count("delete crypt") == before + 1


async def test_mcp_and_client_tools_can_be_mixed(
    serve: Serve, ask: Ask, mcp: McpProvider, toys: Toys
) -> None:
    script = [tool_call("toys__add", {"a": 1, "b": 1}) + tool_call("get_weather", {"city": "Oslo"})]
    server = serve(local(engine(script)), providers={"mcp": mcp})
    answer = await ask(server, tools=[tool(toys.url, allowed_tools=["add"]), TOOL])
    kinds = [item["type"] for item in answer.output]
    assert kinds == ["mcp_list_tools", "mcp_call", "function_call"]
    assert answer.output[1]["output"] == "2"


async def test_two_servers_may_share_a_tool_name(
    serve: Serve, ask_foreground: Ask, mcp: McpProvider, toys: Toys
) -> None:
    replies = [tool_call("toys__whoami", {}) + tool_call("more__whoami", {}), "Fine."]
    server = serve(local(engine(replies)), providers={"mcp": mcp})
    both = [
        tool(toys.url, server_label=label, authorization=key, allowed_tools=["whoami"])
        for label, key in (("toys", "one"), ("more", "other"))
    ]
    answer = await ask_foreground(server, tools=both)
    ran = [item for item in answer.output if item["type"] == "mcp_call"]
    assert [(item["server_label"], item["output"]) for item in ran] == [
        ("toys", "Bearer one None"),
        ("more", "Bearer other None"),
    ]


async def test_secrets_are_sent_only_to_the_mcp_server(
    serve: Serve, ask: Ask, mcp: McpProvider, toys: Toys, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither answers nor logs contain them."""
    caplog.set_level(logging.DEBUG)
    replies = [tool_call("toys__add", {"a": 1, "b": 1}), "Two."]
    server = serve(local(engine(replies)), providers={"mcp": mcp})
    request = tool(
        f"{toys.root}/locked", authorization="secret", headers={"X-Toy": "canary-in-a-header"}
    )
    answer = await ask(server, tools=[request])
    assert answer.text == "Two."
    result = json.dumps([answer.terminal_response, list(answer.events)])
    for text in (result, server.log.getvalue(), caplog.text):
        assert "canary-in-a-header" not in text and "Bearer secret" not in text
    (echoed,) = answer.terminal_response["tools"]
    assert "headers" not in echoed and "authorization" not in echoed


@pytest.mark.parametrize(
    ("given", "param"),
    [({"server_url": "ftp://x"}, "server_url"), ({"server_label": "a b"}, "server_label")],
)
async def test_invalid_fields_are_rejected(
    serve: Serve, ask: Ask, mcp: McpProvider, given: Any, param: str
) -> None:
    server = serve(providers={"mcp": mcp})
    rejection = (await ask(server, tools=[TOOL, tool("http://x/") | given])).rejection
    assert (rejection["http"], rejection["param"]) == (400, f"tools[1].{param}")


async def test_label_must_be_unique(serve: Serve, ask_foreground: Ask, mcp: McpProvider) -> None:
    server = serve(providers={"mcp": mcp})
    rejection = (
        await ask_foreground(server, tools=[tool("http://x/"), tool("http://y/")])
    ).rejection
    assert (rejection["http"], rejection["param"]) == (400, "tools[1].server_label")


async def test_secrets_are_not_stored(
    serve: Serve, ask: Ask, mcp: McpProvider, toys: Toys, tmp_path: Path
) -> None:
    """No file of a store contains them."""
    store = await open_store(f"sqlite:{tmp_path}/kept.db")
    replies = [tool_call("toys__whoami", {}), "You."]
    server = serve(local(engine(replies)), on=store, providers={"mcp": mcp})
    request = tool(toys.url, headers={"Cookie": "canary-cookie"}, authorization="canary-token")
    request["allowed_tools"] = ["add", "whoami"]
    answer = await ask(server, tools=[request], input="Who am I? sentinel")
    assert answer.output[1]["output"] == "Bearer canary-token None"  # by the tool itself
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"sentinel" in stored and b"canary-cookie" not in stored
    assert stored.count(b"canary-token") == stored.count(b"Bearer canary-token None")


async def test_interrupted_call_is_not_repeated(
    serve: Serve, mcp: McpProvider, toys: Toys, store: Store
) -> None:
    """The process dies while a tool runs; the process that continues informs the model."""
    before = toys.log.count("hang crash")
    replies = [tool_call("toys__hang", {"name": "crash"}), "It broke off."]
    dying = serve(
        local(engine(replies)), on=store, providers={"mcp": mcp}, lease=LeaseConfig(lease_s=0.2)
    )
    queued = await dying.post(
        tools=[tool(toys.url, allowed_tools=["hang"])], background=True, stream=False
    )
    async with asyncio.timeout(60):
        while toys.log.count("hang crash") == before:
            await asyncio.sleep(0.01)
    await dying.service.drain(0)  # what is not done is given back
    scripted_engine = engine(["It broke off."])
    going_on = serve(local(scripted_engine), on=store, providers={"mcp": mcp})
    async with asyncio.timeout(60):
        while True:
            found = (await going_on.get(f"responses/{queued.json()['id']}")).json()
            if found["status"] not in ("queued", "in_progress"):
                break
            await asyncio.sleep(0.01)
    _, ran, message = found["output"]
    assert (ran["type"], ran["status"]) == ("mcp_call", "failed")
    assert "interrupted" in ran["error"]["message"]
    assert message["content"][0]["text"] == "It broke off."
    assert toys.log.count("hang crash") == before + 1


# --- large servers -------------------------------------------------------------------------------


def listing(count: int) -> dict[str, Any]:
    """Return the list of the tools of a server with so many tools."""
    schema = {
        "type": "object",
        "properties": {
            "repository": {"type": "string", "description": "Owner and name, such as a/b"},
            "number": {"type": "integer", "description": "Number of the issue"},
        },
        "required": ["repository"],
    }
    tools = [
        {
            "name": f"tool_{number}",
            "description": f"Does the thing number {number} with the issues of a repository.",
            "input_schema": schema,
        }
        for number in range(count)
    ]
    return {"type": "mcp_list_tools", "server_label": "toys", "tools": tools}


@pytest.mark.requirement("API-TOOL-SEARCH")
async def test_deferred_server_costs_few_tokens(serve: Serve, mcp: McpProvider) -> None:
    scripted_engine = engine([])
    scripted_engine.card = replace(scripted_engine.card, context_size=10**6)
    server = serve(local(scripted_engine), providers={"mcp": mcp})
    url = "http://127.0.0.1:1/mcp"

    async def count(*tools: dict[str, Any], listed: int = 90) -> int:
        body = {"model": "tiny", "input": [listing(listed)], "tools": tools}
        reply = await server.client.post("/v1/responses/input_tokens", json=body)
        return int(reply.json()["input_tokens"])

    search = {"type": "tool_search"}
    whole = await count(tool(url))
    deferred = await count(tool(url, defer_loading=True), search)
    assert deferred * 30 < whole, (deferred, whole)
    assert deferred == await count(tool(url, defer_loading=True), search, listed=1)

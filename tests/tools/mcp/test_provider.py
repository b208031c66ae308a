"""The provider against real servers over real transports."""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult

from antiphon.errors import InvalidRequest, ToolError
from antiphon.testing.tool_check import ToolTrial, check_tool
from antiphon.tools.base import CallContext, ResponseContext, ToolResult, Toolset
from antiphon.tools.mcp.provider import McpProvider
from antiphon.tools.mcp.request import ListedTool, to_function
from antiphon.tools.mcp.results import result_text
from antiphon.tools.mcp.sessions import SessionPool
from antiphon.tools.mcp.transport import McpServer
from antiphon.wire import items as it
from antiphon.wire.tools import Mcp

from .process import TOYS, Toys, running

HERE = (ipaddress.ip_network("127.0.0.1"),)


@pytest.fixture
async def servers() -> AsyncIterator[McpProvider]:
    found = McpProvider({}, SessionPool(connect_s=20, call_s=20), networks=HERE)
    yield found
    await found.close()


def tool(url: str, **more: Any) -> Mcp:
    return Mcp(server_label="toys", server_url=url, **{"require_approval": "never", **more})


def opening(*items: it.Item, tenant: str = "t") -> ResponseContext:
    return ResponseContext(tenant=tenant, response_id="resp_1", items=items)


async def call(found: Toolset, name: str, arguments: str = "{}", tenant: str = "t") -> ToolResult:
    """The result of a call, which is all that it tells."""
    run = next(offer.handler for offer in found.functions if offer.tool.name == name)
    assert run is not None
    context = CallContext(
        tenant=tenant, response_id="resp_1", call_id="call_1", max_result_bytes=10_000
    )
    async with aclosing(run(arguments, context)) as steps:
        told = [step async for step in steps]
    (result,) = told
    assert isinstance(result, ToolResult)
    return result


LISTED = it.McpListTools(
    id="mcpl_1",
    server_label="toys",
    tools=({"name": "add", "input_schema": {"type": "object"}},),
)


async def test_a_server_is_listed_and_called(servers: McpProvider, toys: Toys) -> None:
    async with servers.open(tool(toys.url), opening()) as found:
        listed = {each["name"]: each for each in found.fields["tools"]}
        assert listed["add"]["description"] == "Add two numbers."
        assert listed["add"]["annotations"] == {"readOnlyHint": True}
        assert "annotations" not in listed["delete"]
        assert set(listed["add"]["input_schema"]["properties"]) == {"a", "b"}
        assert {offer.namespace for offer in found.functions} == {"toys"}
        result = await call(found, "add", '{"a": 2, "b": 3}')
        assert result == ToolResult(text="5", fields={"output": "5"})


async def test_results_are_words(servers: McpProvider, toys: Toys) -> None:
    async with servers.open(tool(toys.url), opening()) as found:
        told = {name: (await call(found, name)).text for name in ("picture", "resources")}
        assert told["picture"] == "[image of type image/png, 8 bytes]"
        assert told["resources"].splitlines() == [
            "Here:",
            "inner text",
            "toy://b [contents of type x/y, 3 bytes]",
            "[more](toy://c): There is more",
        ]
        weather = (await call(found, "weather", '{"city": "Oslo"}')).text
        assert '"degrees": 21.5' in weather and '"city": "Oslo"' in weather


async def test_failures_are_told_by_kind(servers: McpProvider, toys: Toys) -> None:
    async with servers.open(tool(toys.url), opening()) as found:
        failed = await call(found, "fail")
        error = failed.fields["error"]
        assert error["type"] == "mcp_tool_execution_error" and failed.failed
        assert "the toy is broken" in error["content"][0]["text"]
        assert "the toy is broken" in failed.text
        for arguments in ("[1]", "{"):
            error = (await call(found, "add", arguments)).fields["error"]
            assert (error["type"], error["code"]) == ("mcp_protocol_error", -32602)


async def test_a_call_that_takes_too_long_is_given_up(toys: Toys) -> None:
    servers = McpProvider({}, SessionPool(call_s=0.3), networks=HERE)
    known = it.McpListTools(server_label="toys", tools=({"name": "hang"}, {"name": "add"}))
    try:
        async with servers.open(tool(toys.url), opening(known)) as found:
            error = (await call(found, "hang")).fields["error"]
            assert (error["code"], error["message"]) == (-32001, "The server took too long.")
    finally:
        await servers.close()


async def test_closing_a_call_cancels_it_at_the_server(servers: McpProvider, toys: Toys) -> None:
    async with servers.open(tool(toys.url), opening()) as found:
        task = asyncio.create_task(call(found, "hang", '{"name": "mine"}'))
        await _until(lambda: "hang mine" in toys.log)
        task.cancel()
        await _until(lambda: "cancelled mine" in toys.log)
        assert (await call(found, "add", '{"a": 1, "b": 1}')).text == "2"  # of the same session
    assert servers._pool.session_count == 1


async def _until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not what():
            await asyncio.sleep(0.01)


async def test_sse_is_found_by_trying(servers: McpProvider, toys: Toys) -> None:
    async with servers.open(tool(f"{toys.root}/sse"), opening()) as found:
        assert (await call(found, "add", '{"a": 2, "b": 2}')).text == "4"
        assert (await call(found, "fail")).failed
    only = McpProvider({"toys": McpServer(url=f"{toys.root}/sse", transport="http")}, SessionPool())
    with pytest.raises(ToolError, match="405"):
        async with only.open(Mcp(server_label="toys"), opening()):
            pass
    await only.close()


async def test_a_process_that_died_is_reached_again() -> None:
    """It is started again for the next call; the call it died of is not."""
    process = McpServer(command=sys.executable, args=(str(TOYS), "stdio"))
    servers = McpProvider({"toys": process}, SessionPool(connect_s=20))
    try:
        never = Mcp(server_label="toys", require_approval="never")
        async with servers.open(never, opening()) as found:
            died = await call(found, "die")
            assert died.fields["error"]["type"] == "mcp_protocol_error"
            assert (await call(found, "add", '{"a": 2, "b": 2}')).text == "4"
    finally:
        await servers.close()


async def test_a_session_that_is_found_to_be_over_is_made_anew() -> None:
    """Nobody hears of it: the server did not."""
    process = McpServer(command=sys.executable, args=(str(TOYS), "stdio"))
    pool = SessionPool(connect_s=20)
    servers = McpProvider({"toys": process}, pool)

    def is_over() -> bool:
        (entry,) = pool._entries.values()
        assert entry.session is not None
        dispatcher: Any = entry.session._ready.result().session._dispatcher
        return bool(dispatcher._closed)

    try:
        never = Mcp(server_label="toys", require_approval="never")
        async with servers.open(never, opening()) as found:
            assert (await call(found, "leave")).text == "bye"
            await _until(is_over)
            assert (await call(found, "add", '{"a": 2, "b": 2}')).text == "4"
    finally:
        await servers.close()


async def test_a_server_that_was_started_again_is_reached(tmp_path: Path) -> None:
    servers = McpProvider({}, SessionPool(), networks=HERE)
    with running(tmp_path / "log") as toys:
        asked = tool(toys.url)
        async with servers.open(asked, opening()) as found:
            assert (await call(found, "add", '{"a": 1, "b": 2}')).text == "3"
    async with servers.open(asked, opening(THREE)) as found:
        error = (await call(found, "add", '{"a": 1, "b": 2}')).fields["error"]
        assert "could not be reached" in error["message"]
        with running(tmp_path / "log", toys.port):
            assert (await call(found, "add", '{"a": 1, "b": 2}')).text == "3"
    await servers.close()


async def test_what_is_listed_is_not_listed_again(servers: McpProvider) -> None:
    """Nobody is dialled until a tool is called."""
    asked = tool("http://127.0.0.1:9/mcp")
    assert servers.leading_item(asked, opening(LISTED)) is None
    assert servers.leading_item(asked, opening()) is not None
    async with servers.open(asked, opening(LISTED)) as found:
        assert [offer.tool.name for offer in found.functions] == ["add"]
        assert servers._pool.session_count == 0
        error = (await call(found, "add")).fields["error"]
        assert "could not be reached" in error["message"]


async def test_what_cannot_be_listed_is_a_tool_error(servers: McpProvider, toys: Toys) -> None:
    for path, why in (("/locked", "401 (Unauthorized)"), ("/broken", "503 (Service Unavailable)")):
        with pytest.raises(ToolError, match=why.replace("(", r"\(").replace(")", r"\)")):
            async with servers.open(tool(toys.root + path), opening()):
                pass
    allowed = tool(f"{toys.root}/locked", authorization="secret", headers={"X-Toy": "yes"})
    async with servers.open(allowed, opening()) as found:
        assert (await call(found, "whoami")).text == "Bearer secret yes"


async def test_sessions_are_of_one_tenant_and_one_credential(
    servers: McpProvider, toys: Toys
) -> None:
    for tenant in ("a", "b"):
        for key in ("one", "two", "one"):
            asked = tool(toys.url, authorization=key)
            async with servers.open(asked, opening(tenant=tenant)) as found:
                assert (await call(found, "whoami", tenant=tenant)).text == f"Bearer {key} None"
    assert servers._pool.session_count == 4


async def test_unused_sessions_are_left(toys: Toys) -> None:
    pool = SessionPool(idle_s=0)
    servers = McpProvider({}, pool, networks=HERE)
    async with servers.open(tool(toys.url), opening()) as found:
        await _until(lambda: pool.session_count == 0)
        assert (await call(found, "add", '{"a": 1, "b": 2}')).text == "3"
    await servers.close()
    assert pool.session_count == 0


async def test_a_session_opened_by_one_task_is_used_and_left_by_others(
    servers: McpProvider, toys: Toys
) -> None:
    async def use() -> str:
        async with servers.open(tool(toys.url), opening()) as found:
            return (await call(found, "add", '{"a": 1, "b": 2}')).text

    tasks = [asyncio.create_task(use()) for _ in range(8)]
    assert await asyncio.gather(*tasks) == ["3"] * 8
    assert servers._pool.session_count == 1
    await asyncio.create_task(servers.close())


async def test_the_contract(servers: McpProvider, toys: Toys) -> None:
    await check_tool(
        servers,
        ToolTrial(
            tool=tool(toys.url),
            successful_call=("add", '{"a": 1, "b": 1}'),
            failing_call=("fail", "{}"),
            hanging_call=("hang", "{}"),
            long_call=("long", "{}"),
            rejected_tools=(Mcp(server_label="toys"), tool("file:///etc/passwd")),
        ),
    )


# --- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127。0。0。1", "2130706433"])
async def test_requests_do_not_reach_this_machine(toys: Toys, host: str) -> None:
    servers = McpProvider({}, SessionPool())
    with pytest.raises(ToolError, match=r"not a public one|could not be reached"):
        async with servers.open(tool(f"http://{host}:{toys.port}/mcp"), opening()):
            pass
    await servers.close()


async def test_redirects_elsewhere_are_not_followed(servers: McpProvider, toys: Toys) -> None:
    with pytest.raises(ToolError, match="307"):
        async with servers.open(tool(f"{toys.root}/elsewhere"), opening()):
            pass


# --- what requests say ---------------------------------------------------------------------------


def names(found: Toolset, *, asked: bool | None = None) -> set[str]:
    return {
        offer.tool.name
        for offer in found.functions
        if asked is None or (offer.handler is None) is asked
    }


THREE = it.McpListTools(
    server_label="toys",
    tools=(
        {"name": "add", "input_schema": {}, "annotations": {"readOnlyHint": True}},
        {"name": "delete", "input_schema": {}},
        {"name": "a.b", "input_schema": {"type": "object"}},
    ),
)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["add"], {"add"}),
        ({"tool_names": ["delete"]}, {"delete"}),
        ({"read_only": True}, {"add"}),
        ({"read_only": False}, {"delete", "a_b"}),
        ({"read_only": True, "tool_names": ["delete"]}, set()),
        ({}, {"add", "delete", "a_b"}),
        ([], set()),
    ],
)
@pytest.mark.requirement("VN-32")
async def test_allowed_tools(servers: McpProvider, given: Any, kept: set[str]) -> None:
    given = tuple(given) if isinstance(given, list) else given
    async with servers.open(tool("http://x/", allowed_tools=given), opening(THREE)) as found:
        assert names(found) == kept


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, {"add", "delete", "a_b"}),
        ({"require_approval": "always"}, {"add", "delete", "a_b"}),
        ({"require_approval": "never"}, set()),
        ({"require_approval": {"never": {"read_only": True}}}, {"delete", "a_b"}),
        ({"require_approval": {"never": {"tool_names": ["a.b"]}}}, {"add", "delete"}),
        ({"require_approval": {"always": {"tool_names": ["delete"]}}}, {"delete"}),
        (
            {
                "require_approval": {
                    "always": {"tool_names": ["add"]},
                    "never": {"tool_names": ["add", "delete"]},
                }
            },
            {"add", "a_b"},
        ),
    ],
)
async def test_require_approval(servers: McpProvider, given: Any, asked: set[str]) -> None:
    wanted = Mcp(server_label="toys", server_url="http://x/", **given)
    async with servers.open(wanted, opening(THREE)) as found:
        assert names(found, asked=True) == asked
        for offer in found.functions:
            kind = it.McpApprovalRequest if offer.handler is None else it.McpCall
            assert isinstance(offer.initial_item, kind)


async def test_what_was_allowed_is_run_once(servers: McpProvider, toys: Toys) -> None:
    asked = it.McpApprovalRequest(
        id="mcpr_1", server_label="toys", name="add", arguments='{"a": 1, "b": 4}'
    )
    allowed = it.McpApprovalResponse(approval_request_id="mcpr_1", approve=True)
    denied = it.McpApprovalResponse(approval_request_id="mcpr_1", approve=False)
    ran = it.McpCall(server_label="toys", name="add", arguments="", approval_request_id="mcpr_1")
    wanted = Mcp(server_label="toys", server_url=toys.url)
    async with servers.open(wanted, opening(THREE, asked, allowed)) as found:
        (first,) = found.pending_calls
        assert first.arguments == asked.arguments
        shell = first.function.initial_item
        assert isinstance(shell, it.McpCall) and shell.approval_request_id == "mcpr_1"
        ran_now = await call(Toolset(functions=(first.function,)), "add", first.arguments)
        assert ran_now.text == "5"
    for items in ((THREE, asked), (THREE, asked, denied), (THREE, asked, allowed, ran)):
        async with servers.open(wanted, opening(*items)) as found:
            assert found.pending_calls == ()
    narrow = Mcp(server_label="toys", server_url=toys.url, allowed_tools=("delete",))
    async with servers.open(narrow, opening(THREE, asked, allowed)) as found:
        (first,) = found.pending_calls
        refused = await call(Toolset(functions=(first.function,)), "add", first.arguments)
        assert refused.fields["error"]["code"] == -32601


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"server_label": "9"}, "server_label"),
        ({"server_label": "a b"}, "server_label"),
        ({"server_url": "ftp://x/"}, "server_url"),
        ({"server_url": "http://u:p@x/"}, "server_url"),
        ({"server_url": "http://[x/"}, "server_url"),
        ({"allowed_tools": {"names": []}}, "allowed_tools.names"),
        ({"allowed_tools": {"tool_names": "a"}}, "allowed_tools.tool_names"),
        ({"require_approval": "sometimes"}, "require_approval"),
        ({"require_approval": {"never": {"read_only": 1}}}, "require_approval.never.read_only"),
        ({"headers": {"a\nb": "c"}}, "headers"),
        ({"headers": {"a": "c\r\nd: e"}}, "headers"),
        ({"authorization": "a\nb"}, "headers"),
    ],
)
async def test_what_is_refused(servers: McpProvider, given: Any, param: str) -> None:
    wanted = Mcp(**{"server_label": "toys", "server_url": "https://example.org/mcp", **given})
    with pytest.raises(InvalidRequest) as refused:
        servers.check(wanted, "tools[0]")
    assert refused.value.param == f"tools[0].{param}"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "server_url"),
        ({"connector_id": "connector_gmail"}, "connector_id"),
        ({"tunnel_id": "tunnel_" + "a" * 32}, "tunnel_id"),
    ],
)
async def test_servers_that_are_not_here(servers: McpProvider, given: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        servers.check(Mcp(server_label="toys", **given), "tools[0]")
    assert refused.value.param == f"tools[0].{param}"


async def test_servers_of_requests_can_be_refused() -> None:
    mine = McpServer(url="http://intranet/mcp")
    servers = McpProvider({"mine": mine}, SessionPool(), urls=False)
    servers.check(Mcp(server_label="mine"), "tools[0]")
    servers.check(Mcp(server_label="other", connector_id="mine"), "tools[0]")
    with pytest.raises(InvalidRequest, match="only MCP servers of its own"):
        servers.check(tool("https://example.org/mcp"), "tools[0]")


# --- what models see -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, {"type": "object", "properties": {}}),
        (None, {"type": "object", "properties": {}}),
        ({"type": "array"}, {"type": "object", "properties": {}}),
        (
            {"$schema": "https://json-schema.org/", "properties": {"a": {"type": "string"}}},
            {"type": "object", "properties": {"a": {"type": "string"}}},
        ),
        ({"type": "object", "properties": {"a": {"not": {"type": "null"}}}}, {"type": "object"}),
    ],
)
def test_schemas_are_what_engines_can_enforce(given: Any, shown: Any) -> None:
    function = to_function(ListedTool(name="a/b", description="Does.", input_schema=given))
    assert (function.name, function.parameters) == ("a_b", shown)
    if shown == {"type": "object"}:  # told in words
        assert '"not"' in (function.description or "")


def test_structured_content_alone_is_written_out() -> None:
    assert (
        result_text(CallToolResult(content=[], structured_content={"a": ["é"]})) == '{"a": ["é"]}'
    )

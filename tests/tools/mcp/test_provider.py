"""The MCP provider, against real servers over real transports."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult
from msgspec.structs import replace

from antiphon.errors import InvalidRequest, ToolError
from antiphon.testing.tool_check import ToolCheckCase, check_tool
from antiphon.tools.base import CallContext, ResponseContext, ToolResult, Toolset
from antiphon.tools.mcp.endpoint import McpEndpoint
from antiphon.tools.mcp.provider import McpProvider
from antiphon.tools.mcp.request import ListedTool, to_function
from antiphon.tools.mcp.results import result_text
from antiphon.tools.mcp.sessions import SessionPool
from antiphon.wire import items as it
from antiphon.wire.tools import Mcp

from .process import TOYS, Toys, run_server

LOOPBACK = (ipaddress.ip_network("127.0.0.1"),)


@pytest.fixture
async def provider() -> AsyncIterator[McpProvider]:
    provider = McpProvider({}, SessionPool(connect_s=60, call_s=60), networks=LOOPBACK)
    yield provider
    await provider.close()


def tool(url: str, **fields: Any) -> Mcp:
    return Mcp(server_label="toys", server_url=url, **{"require_approval": "never", **fields})


def response_context(*items: it.Item, tenant: str = "t", conversation: str = "") -> ResponseContext:
    return ResponseContext(
        tenant=tenant, response_id="resp_1", items=items, conversation_id=conversation
    )


async def call_tool(
    toolset: Toolset, name: str, arguments: str = "{}", tenant: str = "t"
) -> ToolResult:
    """Run a call and return its result, its only event."""
    handler = next(function.handler for function in toolset.functions if function.tool.name == name)
    assert handler is not None
    context = CallContext(
        tenant=tenant,
        response_id="resp_1",
        call_id="call_1",
        idempotency_key="mcp_1",
        max_result_bytes=10_000,
    )
    async with aclosing(handler(arguments, context)) as steps:
        events = [step async for step in steps]
    (result,) = events
    assert isinstance(result, ToolResult)
    return result


LISTED_ONE = it.McpListTools(
    id="mcpl_1",
    server_label="toys",
    tools=({"name": "add", "input_schema": {"type": "object"}},),
)


async def test_server_tools_are_listed_and_called(provider: McpProvider, toys: Toys) -> None:
    async with provider.open(tool(toys.url), response_context()) as toolset:
        listed = {each["name"]: each for each in toolset.fields["tools"]}
        assert listed["add"]["description"] == "Add two numbers."
        assert listed["add"]["annotations"] == {"readOnlyHint": True}
        assert "annotations" not in listed["delete"]
        assert set(listed["add"]["input_schema"]["properties"]) == {"a", "b"}
        assert {function.namespace for function in toolset.functions} == {"toys"}
        result = await call_tool(toolset, "add", '{"a": 2, "b": 3}')
        assert result == ToolResult(text="5", fields={"output": "5"})


async def test_results_are_converted_to_text(provider: McpProvider, toys: Toys) -> None:
    async with provider.open(tool(toys.url), response_context()) as toolset:
        texts = {name: (await call_tool(toolset, name)).text for name in ("picture", "resources")}
        assert texts["picture"] == "[image of type image/png, 8 bytes]"
        assert texts["resources"].splitlines() == [
            "Here:",
            "inner text",
            "toy://b [contents of type x/y, 3 bytes]",
            "[more](toy://c): There is more",
        ]
        weather = (await call_tool(toolset, "weather", '{"city": "Oslo"}')).text
        assert '"degrees": 21.5' in weather and '"city": "Oslo"' in weather


async def test_failed_calls_have_typed_errors(provider: McpProvider, toys: Toys) -> None:
    async with provider.open(tool(toys.url), response_context()) as toolset:
        failed = await call_tool(toolset, "fail")
        error = failed.fields["error"]
        assert error["type"] == "mcp_tool_execution_error" and failed.failed
        assert "the toy is broken" in error["content"][0]["text"]
        assert "the toy is broken" in failed.text
        for arguments in ("[1]", "{"):
            error = (await call_tool(toolset, "add", arguments)).fields["error"]
            assert (error["type"], error["code"]) == ("mcp_protocol_error", -32602)


async def test_call_timeout_is_a_protocol_error(toys: Toys) -> None:
    provider = McpProvider({}, SessionPool(call_s=0.3), networks=LOOPBACK)
    known = it.McpListTools(server_label="toys", tools=({"name": "hang"}, {"name": "add"}))
    try:
        async with provider.open(tool(toys.url), response_context(known)) as toolset:
            error = (await call_tool(toolset, "hang")).fields["error"]
            assert (error["code"], error["message"]) == (-32001, "The server took too long.")
    finally:
        await provider.close()


async def test_closing_a_call_cancels_it_at_the_server(provider: McpProvider, toys: Toys) -> None:
    async with provider.open(tool(toys.url), response_context()) as toolset:
        task = asyncio.create_task(call_tool(toolset, "hang", '{"name": "mine"}'))
        await wait_until(lambda: "hang mine" in toys.log)
        task.cancel()
        await wait_until(lambda: "cancelled mine" in toys.log)
        assert (await call_tool(toolset, "add", '{"a": 1, "b": 1}')).text == "2"


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_sse_is_the_fallback_transport(provider: McpProvider, toys: Toys) -> None:
    async with provider.open(tool(toys.sse), response_context()) as toolset:
        assert (await call_tool(toolset, "add", '{"a": 2, "b": 2}')).text == "4"
        assert (await call_tool(toolset, "fail")).failed
    http_only = McpProvider({"toys": McpEndpoint(url=toys.sse, transport="http")}, SessionPool())
    with pytest.raises(ToolError, match="405"):
        async with http_only.open(Mcp(server_label="toys"), response_context()):
            pass
    await http_only.close()


@pytest.mark.e2e
async def test_dead_process_is_restarted_for_the_next_call() -> None:
    """The call that the process died of is not repeated."""
    process = McpEndpoint(command=sys.executable, args=(str(TOYS), "stdio"))
    provider = McpProvider({"toys": process}, SessionPool(connect_s=60))
    try:
        tool_ = Mcp(server_label="toys", require_approval="never")
        async with provider.open(tool_, response_context()) as toolset:
            died = await call_tool(toolset, "die")
            assert died.fields["error"]["type"] == "mcp_protocol_error"
            assert (await call_tool(toolset, "add", '{"a": 2, "b": 2}')).text == "4"
    finally:
        await provider.close()


@pytest.mark.e2e
async def test_ended_session_is_replaced() -> None:
    """The call is repeated in a new session, because the server did not receive it."""
    process = McpEndpoint(command=sys.executable, args=(str(TOYS), "stdio"))
    pool = SessionPool(connect_s=60)
    provider = McpProvider({"toys": process}, pool)

    def is_over() -> bool:
        (entry,) = pool._entries.values()
        assert entry.session is not None
        dispatcher: Any = entry.session._ready.result().session._dispatcher
        return bool(dispatcher._closed)

    try:
        tool_ = Mcp(server_label="toys", require_approval="never")
        async with provider.open(tool_, response_context()) as toolset:
            pid = json.loads((await call_tool(toolset, "process_id")).text or "")
            os.kill(pid, signal.SIGKILL)
            await wait_until(is_over)
            assert (await call_tool(toolset, "add", '{"a": 2, "b": 2}')).text == "4"
    finally:
        await provider.close()


@pytest.mark.e2e
async def test_restarted_server_is_reconnected(tmp_path: Path) -> None:
    provider = McpProvider({}, SessionPool(), networks=LOOPBACK)
    with run_server(tmp_path / "log") as toys:
        request = tool(toys.url)
        async with provider.open(request, response_context()) as toolset:
            assert (await call_tool(toolset, "add", '{"a": 1, "b": 2}')).text == "3"
    async with provider.open(request, response_context(LISTED_THREE)) as toolset:
        error = (await call_tool(toolset, "add", '{"a": 1, "b": 2}')).fields["error"]
        assert "could not be reached" in error["message"]
        with run_server(tmp_path / "log", toys.port):
            assert (await call_tool(toolset, "add", '{"a": 1, "b": 2}')).text == "3"
    await provider.close()


async def test_tools_listed_in_the_conversation_are_reused(provider: McpProvider) -> None:
    """The server is contacted only when a tool is called."""
    request = tool("http://127.0.0.1:9/mcp")
    assert provider.leading_item(request, response_context(LISTED_ONE)) is None
    assert provider.leading_item(request, response_context()) is not None
    async with provider.open(request, response_context(LISTED_ONE)) as toolset:
        assert [function.tool.name for function in toolset.functions] == ["add"]
        error = (await call_tool(toolset, "add")).fields["error"]
        assert "could not be reached" in error["message"]


async def test_failed_listing_raises_tool_error(provider: McpProvider, toys: Toys) -> None:
    wanted = (
        "401 (Unauthorized: give an access token of this MCP server in 'authorization'"
        " ('authorization_token' in the Messages API) (scopes play; metadata at https://toys.example/meta))"
    )
    for path, why in (("/locked", wanted), ("/broken", "503 (Service Unavailable)")):
        with pytest.raises(ToolError, match=re.escape(why)):
            async with provider.open(tool(toys.root + path), response_context()):
                pass
    authorized = tool(f"{toys.root}/locked", authorization="secret", headers={"X-Toy": "yes"})
    async with provider.open(authorized, response_context()) as toolset:
        assert (await call_tool(toolset, "whoami")).text == "Bearer secret yes"


async def test_sessions_are_separate_per_tenant_and_credential(
    provider: McpProvider, toys: Toys
) -> None:
    for tenant in ("a", "b"):
        for key in ("one", "two", "one"):
            request = tool(toys.sse, authorization=key)
            async with provider.open(request, response_context(tenant=tenant)) as toolset:
                assert (
                    await call_tool(toolset, "whoami", tenant=tenant)
                ).text == f"Bearer {key} None"
    assert toys.session_count == 4


async def remember(
    provider: McpProvider, request: Mcp, word: str, conversation: str, tenant: str = "t"
) -> str:
    """Return all words that the session of a conversation was told."""
    context = response_context(tenant=tenant, conversation=conversation)
    async with provider.open(request, context) as toolset:
        return (await call_tool(toolset, "remember", f'{{"word": "{word}"}}', tenant)).text


@pytest.mark.requirement("MCP-SESSIONS")
@pytest.mark.parametrize("transport", ["sse", "stdio"])
async def test_server_keeps_its_state_for_a_conversation(toys: Toys, transport: str) -> None:
    process = McpEndpoint(command=sys.executable, args=(str(TOYS), "stdio"))
    provider = McpProvider({"toys": process}, SessionPool(), networks=LOOPBACK)
    request = tool(toys.sse) if transport == "sse" else Mcp(server_label="toys")
    request = replace(request, require_approval="never")
    try:
        assert await remember(provider, request, "a", "one") == "a"
        assert await remember(provider, request, "x", "two") == "x"
        assert await remember(provider, request, "b", "one") == "a b"
        assert await remember(provider, request, "y", "one", tenant="other") == "y"
    finally:
        await provider.close()


async def test_conversations_may_share_the_session_of_a_tenant() -> None:
    process = McpEndpoint(command=sys.executable, args=(str(TOYS), "stdio"), shares_sessions=True)
    provider = McpProvider({"toys": process}, SessionPool())
    request = Mcp(server_label="toys", require_approval="never")
    try:
        assert await remember(provider, request, "a", "one") == "a"
        assert await remember(provider, request, "b", "two") == "a b"
    finally:
        await provider.close()


@pytest.mark.requirement("MCP-SESSIONS")
async def test_sessions_are_bounded_fairly(toys: Toys) -> None:
    """The tenant with most sessions loses the one that was not used for the longest time."""
    pool = SessionPool(max_sessions=3)
    provider = McpProvider({}, pool, networks=LOOPBACK)
    request = tool(toys.sse)
    try:
        await remember(provider, request, "a", "a", tenant="small")
        for word in ("b", "c", "b", "d", "e"):
            await remember(provider, request, word, word, tenant="large")
            await wait_until(lambda: toys.session_count <= 3)
        for word in ("d", "e"):
            assert await remember(provider, request, "x", word, tenant="large") == f"{word} x"
        assert await remember(provider, request, "f", "b", tenant="large") == "f"
        assert await remember(provider, request, "b", "a", tenant="small") == "a b"
    finally:
        await provider.close()


async def test_unused_sessions_are_closed(toys: Toys) -> None:
    pool = SessionPool(idle_s=0)
    provider = McpProvider({}, pool, networks=LOOPBACK)
    async with provider.open(tool(toys.sse), response_context()) as toolset:
        await wait_until(lambda: "session ends" in toys.log)
        assert (await call_tool(toolset, "add", '{"a": 1, "b": 2}')).text == "3"
    await provider.close()
    await wait_until(lambda: toys.session_count == 0)


async def test_session_is_shared_between_tasks(provider: McpProvider, toys: Toys) -> None:
    async def use() -> str:
        async with provider.open(tool(toys.sse), response_context()) as toolset:
            return (await call_tool(toolset, "add", '{"a": 1, "b": 2}')).text

    tasks = [asyncio.create_task(use()) for _ in range(8)]
    assert await asyncio.gather(*tasks) == ["3"] * 8
    assert toys.session_count == 1
    await asyncio.create_task(provider.close())


async def test_provider_meets_the_tool_contract(provider: McpProvider, toys: Toys) -> None:
    await check_tool(
        provider,
        ToolCheckCase(
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
async def test_loopback_urls_are_rejected(toys: Toys, host: str) -> None:
    provider = McpProvider({}, SessionPool())
    with pytest.raises(ToolError, match=r"mcp.allowed_networks|could not be reached"):
        async with provider.open(tool(f"http://{host}:{toys.port}/mcp"), response_context()):
            pass
    await provider.close()


async def test_redirects_are_not_followed(provider: McpProvider, toys: Toys) -> None:
    with pytest.raises(ToolError, match="307"):
        async with provider.open(tool(f"{toys.root}/elsewhere"), response_context()):
            pass


# --- fields of requests --------------------------------------------------------------------------


def function_names(toolset: Toolset, *, needs_approval: bool | None = None) -> set[str]:
    return {
        function.tool.name
        for function in toolset.functions
        if needs_approval is None or (function.handler is None) is needs_approval
    }


LISTED_THREE = it.McpListTools(
    server_label="toys",
    tools=(
        {"name": "add", "input_schema": {}, "annotations": {"readOnlyHint": True}},
        {"name": "delete", "input_schema": {}},
        {"name": "a.b", "input_schema": {"type": "object"}},
    ),
)


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        (["add"], {"add"}),
        ({"tool_names": ["delete"]}, {"delete"}),
        ({"excluded_tool_names": ["delete", "none"]}, {"add", "a_b"}),
        ({"tool_names": ["add", "delete"], "excluded_tool_names": ["delete"]}, {"add"}),
        ({"read_only": True}, {"add"}),
        ({"read_only": False}, {"delete", "a_b"}),
        ({"read_only": True, "tool_names": ["delete"]}, set()),
        ({}, {"add", "delete", "a_b"}),
        (["*"], {"add", "delete", "a_b"}),
        ({"tool_names": ["*"], "read_only": True}, {"add"}),
        ([], set()),
    ],
)
@pytest.mark.requirement("VN-32")
async def test_allowed_tools_limits_the_offered_functions(
    provider: McpProvider, value: Any, allowed: set[str]
) -> None:
    value = tuple(value) if isinstance(value, list) else value
    async with provider.open(
        tool("http://x/", allowed_tools=value), response_context(LISTED_THREE)
    ) as toolset:
        assert function_names(toolset) == allowed


@pytest.mark.parametrize(
    ("value", "needs_approval"),
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
async def test_require_approval_decides_which_functions_need_approval(
    provider: McpProvider, value: Any, needs_approval: set[str]
) -> None:
    tool_ = Mcp(server_label="toys", server_url="http://x/", **value)
    async with provider.open(tool_, response_context(LISTED_THREE)) as toolset:
        assert function_names(toolset, needs_approval=True) == needs_approval
        for function in toolset.functions:
            kind = it.McpApprovalRequest if function.handler is None else it.McpCall
            assert isinstance(function.initial_item, kind)


async def test_server_gets_the_idempotency_key(provider: McpProvider, toys: Toys) -> None:
    before = toys.log.count("key mcp_1")
    async with provider.open(tool(toys.url), response_context()) as toolset:
        await call_tool(toolset, "whoami")
    assert toys.log.count("key mcp_1") == before + 1


@pytest.mark.parametrize(
    ("annotations", "effects"),
    [
        ({"readOnlyHint": True}, "none"),
        ({"idempotentHint": True}, "idempotent"),
        ({"idempotentHint": "yes"}, "any"),
        (None, "any"),
    ],
)
async def test_annotations_tell_what_a_call_changes(
    provider: McpProvider, toys: Toys, annotations: Any, effects: str
) -> None:
    listed = it.McpListTools(
        server_label="toys", tools=({"name": "add", "annotations": annotations},)
    )
    async with provider.open(tool(toys.url), response_context(listed)) as toolset:
        assert [function.effects for function in toolset.functions] == [effects]


async def test_approved_call_runs_once(provider: McpProvider, toys: Toys) -> None:
    request = it.McpApprovalRequest(
        id="mcpr_1", server_label="toys", name="add", arguments='{"a": 1, "b": 4}'
    )
    approval = it.McpApprovalResponse(approval_request_id="mcpr_1", approve=True)
    denial = it.McpApprovalResponse(approval_request_id="mcpr_1", approve=False)
    earlier_call = it.McpCall(
        server_label="toys", name="add", arguments="", approval_request_id="mcpr_1"
    )
    tool_ = Mcp(server_label="toys", server_url=toys.url)
    async with provider.open(tool_, response_context(LISTED_THREE, request, approval)) as toolset:
        (pending,) = toolset.pending_calls
        assert pending.arguments == request.arguments
        initial_item = pending.function.initial_item
        assert isinstance(initial_item, it.McpCall) and initial_item.approval_request_id == "mcpr_1"
        result = await call_tool(Toolset(functions=(pending.function,)), "add", pending.arguments)
        assert result.text == "5"
    for items in (
        (LISTED_THREE, request),
        (LISTED_THREE, request, denial),
        (LISTED_THREE, request, approval, earlier_call),
    ):
        async with provider.open(tool_, response_context(*items)) as toolset:
            assert toolset.pending_calls == ()
    restricted = Mcp(server_label="toys", server_url=toys.url, allowed_tools=("delete",))
    async with provider.open(
        restricted, response_context(LISTED_THREE, request, approval)
    ) as toolset:
        (pending,) = toolset.pending_calls
        error = await call_tool(Toolset(functions=(pending.function,)), "add", pending.arguments)
        assert error.fields["error"]["code"] == -32601


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"server_label": "9"}, "server_label"),
        ({"server_label": "a b"}, "server_label"),
        ({"server_url": "ftp://x/"}, "server_url"),
        ({"server_url": "http://u:p@x/"}, "server_url"),
        ({"server_url": "http://[x/"}, "server_url"),
        ({"allowed_tools": {"names": []}}, "allowed_tools.names"),
        ({"allowed_tools": {"tool_names": "a"}}, "allowed_tools.tool_names"),
        ({"allowed_tools": {"excluded_tool_names": [1]}}, "allowed_tools.excluded_tool_names"),
        ({"require_approval": "sometimes"}, "require_approval"),
        ({"require_approval": {"never": {"read_only": 1}}}, "require_approval.never.read_only"),
        ({"headers": {"a\nb": "c"}}, "headers"),
        ({"headers": {"a": "c\r\nd: e"}}, "headers"),
        ({"headers": {"a": " c"}}, "headers"),
        ({"headers": {"a": "c "}}, "headers"),
        ({"authorization": "a\nb"}, "authorization"),
        ({"authorization": ""}, "authorization"),
        ({"authorization": "a "}, "authorization"),
    ],
)
async def test_invalid_fields_are_rejected(provider: McpProvider, value: Any, param: str) -> None:
    tool_ = Mcp(**{"server_label": "toys", "server_url": "https://example.org/mcp", **value})
    with pytest.raises(InvalidRequest) as error:
        provider.check(tool_, "tools[0]")
    assert error.value.param == f"tools[0].{param}"


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({}, "server_url"),
        ({"connector_id": "connector_gmail"}, "connector_id"),
        ({"tunnel_id": "tunnel_" + "a" * 32}, "tunnel_id"),
    ],
)
async def test_unknown_servers_are_rejected(provider: McpProvider, value: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        provider.check(Mcp(server_label="toys", **value), "tools[0]")
    assert error.value.param == f"tools[0].{param}"


async def test_request_urls_can_be_disabled() -> None:
    configured = McpEndpoint(url="http://intranet/mcp")
    provider = McpProvider({"mine": configured}, SessionPool(), allow_urls=False)
    provider.check(Mcp(server_label="mine"), "tools[0]")
    provider.check(Mcp(server_label="other", connector_id="mine"), "tools[0]")
    with pytest.raises(InvalidRequest, match="only the MCP servers it is configured with"):
        provider.check(tool("https://example.org/mcp"), "tools[0]")


# --- functions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "schema"),
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
def test_schemas_are_reduced_to_enforceable_ones(value: Any, schema: Any) -> None:
    function = to_function(ListedTool(name="a/b", description="Does.", input_schema=value))
    assert (function.name, function.parameters) == ("a_b", schema)
    if schema == {"type": "object"}:  # the schema moves into the description
        assert '"not"' in (function.description or "")


def test_structured_content_without_text_becomes_json() -> None:
    assert (
        result_text(CallToolResult(content=[], structured_content={"a": ["é"]})) == '{"a": ["é"]}'
    )

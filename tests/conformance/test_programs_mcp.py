"""Programs that call tools of MCP servers, with approvals and interruptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest

from antiphon.runs.background.worker import LeaseConfig
from antiphon.sandbox.javascript import JavaScript
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store.base import Store
from antiphon.tools.mcp.provider import McpProvider
from antiphon.tools.mcp.sessions import SessionPool
from antiphon.tools.programs.provider import ProgramProvider
from tests.conformance.conftest import Serve
from tests.conformance.server import NOW, Ask, Json, engine, local
from tests.conformance.test_mcp import HERE
from tests.conformance.test_tool_search import rendered_prompts, tool_call
from tests.tools.mcp.process import Toys

PROGRAMS = {"type": "programmatic_tool_calling"}


@pytest.fixture(scope="module")
def javascript() -> Iterator[JavaScript]:
    javascript = JavaScript()
    yield javascript
    javascript.close()


@pytest.fixture
async def program_options(javascript: JavaScript) -> AsyncIterator[Mapping[str, Any]]:
    servers = McpProvider({}, SessionPool(), networks=HERE)
    seal = Encryptor([EncryptionKey.from_secret(bytes(32))])
    programs = ProgramProvider(javascript, seal, clock=lambda: NOW)
    yield {
        "providers": {"mcp": servers, "programmatic_tool_calling": programs},
        "seal": seal,
    }
    await servers.close()


def tools(toys: Toys, **more: Any) -> list[Json]:
    server = {
        "type": "mcp",
        "server_label": "toys",
        "server_url": toys.url,
        "require_approval": "never",
        "allowed_callers": ["programmatic"],
        **more,
    }
    return [server, PROGRAMS]


def program(code: str) -> str:
    return tool_call("program", {"input": code})


def item_types(output: list[Json]) -> list[str]:
    return [item["type"] for item in output]


async def test_program_calls_mcp_tools(
    serve: Serve, ask: Ask, program_options: Mapping[str, Any], toys: Toys
) -> None:
    code = """const sums = await Promise.all([1, 2].map(n => tools.toys.add({a: n, b: 1})));
try { await tools.toys.fail({}) } catch (e) { text(sums, e.message) }"""
    server = serve(local(engine([program(code), "Done."])), **program_options)
    answer = await ask(server, tools=tools(toys))
    listed, created, *calls, output, _ = answer.output
    assert item_types(calls) == ["mcp_call"] * 3 and listed["type"] == "mcp_list_tools"
    assert [call["output"] for call in calls] == ["2", "3", None]
    assert {call["caller"]["caller_id"] for call in calls} == {created["call_id"]}
    assert output["result"].startswith('["2","3"] ') and "broken" in output["result"]
    before = rendered_prompts(server)[0]
    assert "tools.toys.add(args: { a: number; b: number }): Promise<string>" in before
    assert "toys__add" not in before


@pytest.mark.parametrize("approve", [True, False])
async def test_program_waits_for_approval(
    serve: Serve, ask_foreground: Ask, program_options: Mapping[str, Any], toys: Toys, approve: bool
) -> None:
    code = """const two = await tools.toys.add({a: 1, b: 1});
try { text(two, await tools.toys.delete({name: "cellar"})) } catch (e) { text(e.message) }"""
    before = toys.log.count("delete cellar")
    added = toys.log.count("add 1 1")
    server = serve(local(engine([program(code), "So be it.", "As I said."])), **program_options)
    asks = tools(toys, require_approval={"never": {"read_only": True}})
    first = await ask_foreground(server, tools=asks)
    assert item_types(first.output) == [
        "mcp_list_tools",
        "program",
        "mcp_call",
        "mcp_approval_request",
    ]
    request = first.output[-1]
    assert request["caller"] == first.output[2]["caller"]
    body: Json = {"tools": asks, "previous_response_id": first.terminal_response["id"]}
    rejection = (await ask_foreground(server, **body, input="And?")).rejection
    assert request["id"] in rejection["message"]
    answer = {
        "type": "mcp_approval_response",
        "approval_request_id": request["id"],
        "approve": approve,
    }
    second = await ask_foreground(server, **body, input=[answer])
    assert toys.log.count("delete cellar") == before + approve
    assert toys.log.count("add 1 1") == added + 1, "it does not run again"
    ran, messages = (
        (["mcp_call"], "2 cellar is gone") if approve else ([], "did not allow this call")
    )
    assert item_types(second.output) == [*ran, "program_output", "message"]
    if approve:
        assert second.output[0]["approval_request_id"] == request["id"]
        assert second.output[0]["caller"] == request["caller"]
    assert messages in second.output[-2]["result"] and messages in rendered_prompts(server)[1]
    third = await ask_foreground(
        server, tools=asks, previous_response_id=second.terminal_response["id"], input="And?"
    )
    assert item_types(third.output) == ["message"]
    assert toys.log.count("delete cellar") == before + approve


async def test_another_process_continues_a_program(
    serve: Serve, program_options: Mapping[str, Any], toys: Toys, store: Store
) -> None:
    """The process dies while a call runs; the program sees the failure and continues elsewhere."""
    code = """const two = await tools.toys.add({a: 20, b: 1});
try { await tools.toys.hang({name: "program"}) } catch (e) { text(two, e.message) }"""
    before = toys.log.count("hang program")
    script = [program(code), "It broke off."]
    dying = serve(
        local(engine(script)), on=store, lease=LeaseConfig(lease_s=0.2), **program_options
    )
    queued = await dying.post(tools=tools(toys), background=True, stream=False)
    async with asyncio.timeout(60):
        while toys.log.count("hang program") == before:
            await asyncio.sleep(0.01)
    await dying.service.drain(0)
    going_on = serve(local(engine(["It broke off."])), on=store, **program_options)
    async with asyncio.timeout(60):
        while True:
            found = (await going_on.get(f"responses/{queued.json()['id']}")).json()
            if found["status"] not in ("queued", "in_progress"):
                break
            await asyncio.sleep(0.01)
    assert item_types(found["output"]) == [
        "mcp_list_tools",
        "program",
        "mcp_call",
        "mcp_call",
        "program_output",
        "message",
    ]
    assert [item["status"] for item in found["output"][2:4]] == ["completed", "failed"]
    assert found["output"][4]["result"].startswith("21 unknown: The server was interrupted")
    assert toys.log.count("hang program") == before + 1

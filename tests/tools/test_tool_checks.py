"""The tool contract check, for all tools. Code runs in real boxes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from antiphon.errors import RunError, ToolError
from antiphon.sandbox.base import ExecutionResult
from antiphon.testing.sandbox import FakeSandbox
from antiphon.testing.tool_check import ToolCheckCase, check_tool
from antiphon.tools.base import CallContext, ResponseContext
from antiphon.tools.client_tools.provider import CLIENT_TOOLS
from antiphon.tools.code_interpreter import CodeInterpreterProvider
from antiphon.tools.file_search.provider import FileSearchProvider
from antiphon.tools.shell import ShellProvider
from antiphon.tools.web_search.index import PageDocument, PageIndex
from antiphon.tools.web_search.provider import WebSearchProvider
from antiphon.wire import tools as tl
from antiphon.wire.parsing.vector_stores import SearchRequest
from antiphon.wire.resources.vector_stores import TextPart, VectorStoreSearchResult
from tests.conformance.fake_containers import containers
from tests.sandbox.real_sandboxes import SMALL, sandbox

AUTO = {"type": "container_auto"}


async def test_code_interpreter_passes_the_tool_check() -> None:
    async with containers(await sandbox(SMALL), disk_bytes=SMALL.disk_bytes) as registry:
        await check_tool(
            CodeInterpreterProvider(registry),
            ToolCheckCase(
                tool=tl.CodeInterpreter(container={"type": "auto"}),
                successful_call=("python", "print(6 * 7)"),
                failing_call=("python", "import os; os._exit(1)"),
                hanging_call=("python", "while True: pass"),
                long_call=("python", "print('x' * 10_000_000)"),
                rejected_tools=(
                    tl.CodeInterpreter(container={"type": "manual"}),
                    tl.CodeInterpreter(container={"type": "auto", "skills": [{}]}),
                ),
            ),
        )


async def test_shell_in_a_container() -> None:
    async with containers(await sandbox(SMALL), disk_bytes=SMALL.disk_bytes) as registry:
        await check_tool(
            ShellProvider(registry),
            ToolCheckCase(
                tool=tl.Shell(environment=AUTO),
                successful_call=("shell", '{"commands": ["echo 1", "exit 3"]}'),
                failing_call=("shell", '{"commands": []}'),
                hanging_call=("shell", '{"commands": ["sleep 600"]}'),
                long_call=("shell", '{"commands": ["yes | head -c 10000000", "seq 100000"]}'),
                rejected_tools=(
                    tl.Shell(environment={**AUTO, "memory_limit": "64g"}),
                    tl.Shell(environment={**AUTO, "skills": [{"type": "x"}]}),
                ),
            ),
        )


async def test_shell_call_with_too_many_commands_fails_as_a_whole() -> None:
    arguments = msgspec.json.encode({"commands": ["true"] * 33}).decode()
    context = CallContext(tenant="t", response_id="r", call_id="c", max_result_bytes=1000)
    response = ResponseContext(tenant="t", response_id="r", items=())
    async with containers(FakeSandbox(lambda code, files: ExecutionResult(output=""))) as registry:
        async with ShellProvider(registry).open(tl.Shell(environment=AUTO), response) as toolset:
            handler = toolset.functions[0].handler
            assert handler is not None
            with pytest.raises(ToolError, match="at most 32 commands"):
                async for _ in handler(arguments, context):
                    pass


@pytest.mark.parametrize(
    ("tool", "successful_call"),
    [
        (tl.LocalShell(), ("local_shell", '{"command": ["ls"]}')),
        (tl.Shell(), ("shell", '{"commands": ["ls"]}')),
        (tl.ApplyPatch(), ("apply_patch", '{"type": "delete_file", "path": "a"}')),
        (tl.Computer(), ("computer", '{"actions": [{"type": "wait"}]}')),
        (
            tl.ComputerUsePreview(display_width=8, display_height=6, environment="browser"),
            ("computer", '{"action": {"type": "click", "x": 1, "y": 2}}'),
        ),
    ],
)
async def test_client_tools_pass_the_tool_check(
    tool: Any, successful_call: tuple[str, str]
) -> None:
    provider = CLIENT_TOOLS[str(tool.__struct_config__.tag)]
    await check_tool(provider, ToolCheckCase(tool=tool, successful_call=successful_call))


async def test_web_search_passes_the_tool_check() -> None:
    index = PageIndex(":memory:")
    text = "A fjord is a narrow inlet.\n" * 2_000
    await index.add([PageDocument(url="https://a.example/", title="Fjords", text=text)])
    await check_tool(
        WebSearchProvider(index, is_external=False),
        ToolCheckCase(
            tool=tl.WebSearch(),
            successful_call=("search", '{"query": "fjord"}'),
            failing_call=("open", '{"id": "https://nowhere.example/"}'),
            long_call=("open", '{"id": "https://a.example/", "num_lines": 100000}'),
            rejected_tools=(tl.WebSearch(filters={"allowed_domains": ["a b"]}),),
        ),
    )
    await index.close()


class FakeVectorSearch:
    """A vector search over one long file, controlled by words in the query."""

    async def check_searchable(self, *arguments: object) -> None: ...

    async def search(
        self, tenant: str, store_ids: Sequence[str], request: SearchRequest
    ) -> tuple[VectorStoreSearchResult, ...]:
        if "broken" in request.queries:
            raise RunError("The store does not answer.")
        if "slow" in request.queries:
            await asyncio.Event().wait()
        text = "A fjord. " * (5_000 if "long" in request.queries else 1)
        part = TextPart(text=text)
        return (
            VectorStoreSearchResult(file_id="file-1", filename="a.txt", score=1.0, content=(part,)),
        )


async def test_file_search_passes_the_tool_check() -> None:
    await check_tool(
        FileSearchProvider(FakeVectorSearch()),
        ToolCheckCase(
            tool=tl.FileSearch(vector_store_ids=("vs_1",)),
            successful_call=("file_search", '{"queries": ["fjord"]}'),
            failing_call=("file_search", '{"queries": ["broken"]}'),
            hanging_call=("file_search", '{"queries": ["slow"]}'),
            long_call=("file_search", '{"queries": ["long"]}'),
            rejected_tools=(tl.FileSearch(vector_store_ids=()),),
        ),
    )

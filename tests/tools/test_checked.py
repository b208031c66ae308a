"""What every tool must do, over those that are here; code in real boxes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.errors import RunError
from antiphon.testing.tool_check import Trial, check_tool
from antiphon.tools.client_tools.provider import CLIENT_TOOLS
from antiphon.tools.code_interpreter import CodeInterpreterProvider
from antiphon.tools.file_search.provider import FileSearchProvider
from antiphon.tools.shell import ShellProvider
from antiphon.tools.web_search.index import PageDocument, PageIndex
from antiphon.tools.web_search.provider import WebSearchProvider
from antiphon.wire import tools as tl
from antiphon.wire.parsing.vector_stores import Search
from antiphon.wire.vector_stores import Found, TextPart
from tests.conformance.boxes import containers
from tests.sandbox.boxes import SMALL, sandbox

AUTO = {"type": "container_auto"}


async def test_code_interpreter() -> None:
    async with containers(await sandbox(SMALL), disk_bytes=SMALL.disk_bytes) as held:
        await check_tool(
            CodeInterpreterProvider(held),
            Trial(
                tool=tl.CodeInterpreter(container={"type": "auto"}),
                works=("python", "print(6 * 7)"),
                fails=("python", "import os; os._exit(1)"),
                hangs=("python", "while True: pass"),
                long=("python", "print('x' * 10_000_000)"),
                refused=(
                    tl.CodeInterpreter(container={"type": "manual"}),
                    tl.CodeInterpreter(container={"type": "auto", "skills": [{}]}),
                ),
            ),
        )


async def test_a_shell_here() -> None:
    async with containers(await sandbox(SMALL), disk_bytes=SMALL.disk_bytes) as held:
        await check_tool(
            ShellProvider(held),
            Trial(
                tool=tl.Shell(environment=AUTO),
                works=("shell", '{"commands": ["echo 1", "exit 3"]}'),
                fails=("shell", '{"commands": []}'),
                hangs=("shell", '{"commands": ["sleep 600"]}'),
                long=("shell", '{"commands": ["yes | head -c 10000000", "seq 100000"]}'),
                refused=(
                    tl.Shell(environment={**AUTO, "memory_limit": "64g"}),
                    tl.Shell(environment={**AUTO, "skills": [{"type": "x"}]}),
                ),
            ),
        )


@pytest.mark.parametrize(
    ("tool", "works"),
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
async def test_what_clients_run(tool: Any, works: tuple[str, str]) -> None:
    provider = CLIENT_TOOLS[str(tool.__struct_config__.tag)]
    await check_tool(provider, Trial(tool=tool, works=works))


async def test_web_search() -> None:
    index = PageIndex(":memory:")
    text = "A fjord is a narrow inlet.\n" * 2_000
    await index.add([PageDocument(url="https://a.example/", title="Fjords", text=text)])
    await check_tool(
        WebSearchProvider(index, is_external=False),
        Trial(
            tool=tl.WebSearch(),
            works=("search", '{"query": "fjord"}'),
            fails=("open", '{"id": "https://nowhere.example/"}'),
            long=("open", '{"id": "https://a.example/", "num_lines": 100000}'),
            refused=(tl.WebSearch(filters={"allowed_domains": ["a b"]}),),
        ),
    )
    await index.close()


class Files:
    """Of one long file, which is found by any words but one."""

    async def check(self, *named: object) -> None: ...

    async def search(
        self, tenant: str, store_ids: Sequence[str], asked: Search
    ) -> tuple[Found, ...]:
        if "broken" in asked.queries:
            raise RunError("The store does not answer.")
        if "slow" in asked.queries:
            await asyncio.Event().wait()
        text = "A fjord. " * (5_000 if "long" in asked.queries else 1)
        part = TextPart(text=text)
        return (Found(file_id="file-1", filename="a.txt", score=1.0, content=(part,)),)


async def test_file_search() -> None:
    await check_tool(
        FileSearchProvider(Files()),
        Trial(
            tool=tl.FileSearch(vector_store_ids=("vs_1",)),
            works=("file_search", '{"queries": ["fjord"]}'),
            fails=("file_search", '{"queries": ["broken"]}'),
            hangs=("file_search", '{"queries": ["slow"]}'),
            long=("file_search", '{"queries": ["long"]}'),
            refused=(tl.FileSearch(vector_store_ids=()),),
        ),
    )

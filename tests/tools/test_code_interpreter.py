"""The code interpreter: cancelled code, tenants, and file citations."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

import pytest

from antiphon.sandbox.bubblewrap import importable_packages
from antiphon.testing.sandbox import FakeSandbox
from antiphon.tools.base import CallContext, ResponseContext, ToolProgress, ToolResult
from antiphon.tools.code_interpreter import CodeInterpreterProvider, file_citations
from antiphon.wire.items import CodeInterpreterCall
from antiphon.wire.resources.containers import AutoContainer, ContainerFile, CreateContainer
from antiphon.wire.tools import CodeInterpreter as Tool
from tests.conformance.fake_containers import containers, run_command
from tests.sandbox.real_sandboxes import SMALL, sandbox

CONTEXT = CallContext(tenant="t", response_id="r", call_id="c", max_result_bytes=1000)
AUTO = Tool(container={"type": "auto"})


def response_context(**fields: object) -> ResponseContext:
    return ResponseContext(tenant="t", response_id="r", items=(), **fields)  # type: ignore[arg-type]


async def test_cancelled_code_stops_and_the_container_stays() -> None:
    registry = containers(await sandbox(SMALL), disk_bytes=SMALL.disk_bytes)
    async with (
        registry,
        CodeInterpreterProvider(registry).open(AUTO, response_context()) as toolset,
    ):
        (function,) = toolset.functions
        assert function.handler is not None
        async with aclosing(function.handler("x = 5", CONTEXT)) as steps:
            events = [step async for step in steps]
        assert isinstance(events[-1], ToolResult) and not events[-1].failed
        (container,) = registry.local

        async def endless() -> None:
            assert function.handler is not None
            async with aclosing(function.handler("while True: pass", CONTEXT)) as steps:
                async for step in steps:
                    assert isinstance(step, ToolProgress)
                    started.set()

        started = asyncio.Event()
        running = asyncio.create_task(endless())
        await started.wait()
        for _ in range(20):  # until the code has been sent
            await asyncio.sleep(0)
        running.cancel()
        async with asyncio.timeout(60):
            with pytest.raises(asyncio.CancelledError):
                await running
            outcome, _ = await container.run_python("x")
        assert outcome.output == "5\n"


async def test_model_is_told_what_its_code_can_import() -> None:
    (numbers,) = importable_packages(sys.executable)[:1]
    registry = containers(packages=(numbers,))
    functions = await CodeInterpreterProvider(registry).declared_functions(AUTO, response_context())
    (tool,) = [function.tool for function in functions]
    assert f"It can import {numbers}." in tool.description
    assert importable_packages("/nowhere/python") == ()


async def test_container_of_another_tenant_is_not_found() -> None:
    box = FakeSandbox(run_command)
    registry = containers(box)
    container = await registry.create("a", CreateContainer(name="x"))
    with pytest.raises(Exception, match="not found"):
        async with CodeInterpreterProvider(registry).open(
            Tool(container=container.id), response_context()
        ):
            pass


async def test_resumed_response_uses_the_container_of_its_earlier_calls() -> None:
    registry = containers()
    provider = CodeInterpreterProvider(registry)
    container = await registry.acquire("t", AutoContainer(), ())
    await container.run_python("say hi")
    call = CodeInterpreterCall(container_id=container.id)
    async with provider.open(AUTO, response_context(interrupted_items=(call,))) as toolset:
        assert toolset.functions[0].initial_item == call


def citations_of(text: str, *paths: str) -> list[tuple[str, str]]:
    """Return the file name and the cited text of each citation."""
    files = {
        path: ContainerFile(
            id=f"cfile_{path}",
            bytes=1,
            container_id="cntr_1",
            created_at=1,
            path=path,
            source="assistant",
        )
        for path in paths
    }
    notes = file_citations(files, text)
    return [(n.filename, text[n.start_index : n.end_index]) for n in notes]  # type: ignore[union-attr]


def test_files_are_cited_where_they_are_mentioned() -> None:
    path = "/mnt/data/a.csv"
    assert citations_of("See [it](sandbox:/mnt/data/a.csv)!", path) == [
        ("a.csv", "sandbox:/mnt/data/a.csv")
    ]
    assert citations_of("It is in a.csv, and not in data.csv.", path) == [("a.csv", "a.csv")]
    assert citations_of("Nothing is named.", path) == [("a.csv", "")]
    assert citations_of("No file was made.") == []


def test_names_are_cited_as_whole_names() -> None:
    path = "/mnt/data/my report.csv"
    assert citations_of("See my report.csv.", path) == [("my report.csv", "my report.csv")]
    assert citations_of("See /mnt/data/my report.csv-old", path) == [("my report.csv", "")]
    assert citations_of("See xmy report.csv and a/my report.csv", path) == [("my report.csv", "")]
    assert citations_of("my report.csv", path) == [("my report.csv", "my report.csv")]

"""What becomes of code when nobody waits for it any more, and what a message cites."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from antiphon.testing.sandbox import FakeSandbox
from antiphon.tools.base import CallContext, ResponseContext, ToolProgress, ToolResult
from antiphon.tools.code_interpreter import CodeInterpreterProvider, file_citations
from antiphon.wire.containers import ContainerFile, CreateContainer
from antiphon.wire.tools import CodeInterpreter as Tool
from tests.conformance.boxes import containers, play
from tests.sandbox.boxes import SMALL, sandbox

CONTEXT = CallContext(tenant="t", response_id="r", call_id="c", max_result_bytes=1000)
AUTO = Tool(container={"type": "auto"})


def opening(**more: object) -> ResponseContext:
    return ResponseContext(tenant="t", response_id="r", items=(), **more)  # type: ignore[arg-type]


async def test_code_of_a_client_that_left_is_stopped_and_its_container_stays() -> None:
    held = containers(await sandbox(SMALL), disk_bytes=SMALL.disk_bytes)
    async with held, CodeInterpreterProvider(held).open(AUTO, opening()) as toolset:
        (offer,) = toolset.functions
        assert offer.handler is not None
        async with aclosing(offer.handler("x = 5", CONTEXT)) as steps:
            done = [step async for step in steps]
        assert isinstance(done[-1], ToolResult) and not done[-1].failed
        (container,) = held._containers.values()

        async def endless() -> None:
            assert offer.handler is not None
            async with aclosing(offer.handler("while True: pass", CONTEXT)) as steps:
                async for step in steps:
                    assert isinstance(step, ToolProgress)
                    begun.set()

        begun = asyncio.Event()
        leaving = asyncio.create_task(endless())
        await begun.wait()
        while not container._lock.locked():
            await asyncio.sleep(0)
        leaving.cancel()
        async with asyncio.timeout(15):
            with pytest.raises(asyncio.CancelledError):
                await leaving
            outcome, _ = await container.run_python("x")
        assert outcome.output == "5\n"


async def test_two_tenants_have_no_container_in_common() -> None:
    box = FakeSandbox(play)
    held = containers(box)
    mine = await held.create("a", CreateContainer(name="x"))
    with pytest.raises(Exception, match="not found"):
        async with CodeInterpreterProvider(held).open(Tool(container=mine.id), opening()):
            pass


def names(text: str, *paths: str) -> list[tuple[str, str]]:
    """The file and the text of each citation."""
    made = {
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
    notes = file_citations(made, text)
    return [(n.filename, text[n.start_index : n.end_index]) for n in notes]  # type: ignore[union-attr]


def test_files_are_cited_where_they_are_named() -> None:
    path = "/mnt/data/a.csv"
    assert names("See [it](sandbox:/mnt/data/a.csv)!", path) == [
        ("a.csv", "sandbox:/mnt/data/a.csv")
    ]
    assert names("It is in a.csv, and not in data.csv.", path) == [("a.csv", "a.csv")]
    assert names("Nothing is named.", path) == [("a.csv", "")]
    assert names("No file was made.") == []

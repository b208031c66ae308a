"""A container whose time ends while a response uses it."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.errors import ToolError
from antiphon.sandbox.base import Limits
from antiphon.testing.sandbox import FakeBox, FakeSandbox
from antiphon.wire.resources.containers import AutoContainer
from tests.conformance.fake_containers import Clock, containers, run_command

EXPIRED = "has expired"


class SlowSandbox(FakeSandbox):
    """A sandbox whose boxes open when the test says so."""

    def __init__(self) -> None:
        super().__init__(run_command)
        self.is_opening = asyncio.Event()
        self.may_open = asyncio.Event()

    async def open(self, limits: Limits) -> FakeBox:
        self.is_opening.set()
        await self.may_open.wait()
        return await super().open(limits)


async def test_response_gets_an_error_if_its_container_has_expired() -> None:
    """A new box would not have the files of the earlier calls."""
    clock, sandbox = Clock(), FakeSandbox(run_command)
    container = await containers(sandbox, clock=clock).acquire("t", AutoContainer(), ())
    await container.run_python("save note.txt hi")
    clock.now += 2000
    with pytest.raises(ToolError, match=EXPIRED):
        await container.run_python("list")
    assert len(sandbox.boxes) == 1


async def test_deleted_container_opens_no_box() -> None:
    sandbox = FakeSandbox(run_command)
    registry = containers(sandbox)
    container = await registry.acquire("t", AutoContainer(), ())
    await registry.delete("t", container.id)
    with pytest.raises(ToolError, match=EXPIRED):
        await container.run_python("list")
    assert not sandbox.boxes


async def test_box_that_opens_after_its_container_was_deleted_is_closed() -> None:
    sandbox = SlowSandbox()
    registry = containers(sandbox)
    container = await registry.acquire("t", AutoContainer(), ())
    call = asyncio.create_task(container.run_python("list"))
    async with asyncio.timeout(60):
        await sandbox.is_opening.wait()
        await registry.delete("t", container.id)
        sandbox.may_open.set()
        with pytest.raises(ToolError, match=EXPIRED):
            await call
    assert [box.is_alive for box in sandbox.boxes] == [False]

"""Requests of several workers share the slots of the supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from antiphon.errors import Overloaded
from antiphon.ipc.client import CallClient
from antiphon.ipc.server import CallServer
from antiphon.limits.requests import RequestLimits
from antiphon.workers import shared_admission
from antiphon.workers.hub import WorkerHub
from antiphon.workers.shared_admission import SharedAdmission


@asynccontextmanager
async def pair(
    folder: Path, limits: RequestLimits
) -> AsyncIterator[tuple[WorkerHub, SharedAdmission, SharedAdmission, CallClient]]:
    """Yield a hub, two workers, and the connection of the second."""
    hub = WorkerHub(limits)
    server = CallServer(hub.session)
    await server.open(folder / "hub")
    clients = [CallClient(folder / "hub") for _ in range(2)]
    waits: list[float] = []
    one, other = (
        SharedAdmission(client, clock=asyncio.get_running_loop().time, on_admitted=waits.append)
        for client in clients
    )
    try:
        yield hub, one, other, clients[1]
    finally:
        for client in clients:
            client.close()
        await server.close()


async def settled(hub: WorkerHub, running: int) -> None:
    async with asyncio.timeout(60):
        while hub.admission.running != running:
            await asyncio.sleep(0.01)


async def test_slots_count_for_all_workers(tmp_path: Path) -> None:
    limits = RequestLimits(max_concurrent_requests=2, max_queued_requests=1)
    async with pair(tmp_path, limits) as (hub, one, other, _), AsyncExitStack() as stack:
        await stack.enter_async_context(one.slot("t"))
        await stack.enter_async_context(other.slot("t"))
        waiting = asyncio.create_task(stack.enter_async_context(other.slot("t")))
        async with asyncio.timeout(60):
            while not hub.admission.waiting:
                await asyncio.sleep(0.01)
        assert (one.running, other.running, other.waiting_of("t")) == (1, 1, 1)
        with pytest.raises(Overloaded):
            async with one.slot("t"):
                pass
        waiting.cancel()
        await asyncio.wait([waiting])
        async with asyncio.timeout(60):
            while hub.admission.waiting:
                await asyncio.sleep(0.01)
    assert (one.running, other.running, other.waiting) == (0, 0, 0)


async def test_a_worker_that_is_gone_holds_no_slots(tmp_path: Path) -> None:
    limits = RequestLimits(max_concurrent_requests=2)
    async with pair(tmp_path, limits) as (hub, _, other, connection):
        async with other.slot("t"), other.slot("t"):
            assert hub.admission.running == 2
            connection.close()
            await settled(hub, 0)


async def test_slots_are_used_again_and_then_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_admission, "_REUSE_S", 0.2)
    async with pair(tmp_path, RequestLimits(max_concurrent_requests=100)) as (hub, one, _, _):
        for _ in range(20):
            async with one.slot("t"):
                assert one.running == 1
        assert hub.admission.running == 1 and one.running == 0
        async with one.slot("other"):
            assert hub.admission.running == 2
        await settled(hub, 0)


async def test_no_slot_is_kept_while_few_are_free(tmp_path: Path) -> None:
    async with pair(tmp_path, RequestLimits(max_concurrent_requests=2)) as (hub, one, other, _):
        async with one.slot("t"):
            pass
        await settled(hub, 0)
        async with other.slot("t"), other.slot("u"):
            assert hub.admission.running == 2

"""Containers of a server of several workers: one process owns them, and outlives its workers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from antiphon.errors import InvalidRequest, QuotaExceeded, ToolError
from antiphon.ipc.server import CallServer
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.tools.containers.hosted import (
    ContainerHostSession,
    HostedContainers,
    connect_to_host,
)
from antiphon.tools.containers.relay import ContainerRelay
from antiphon.tools.containers.remote import RemoteContainers
from antiphon.wire.cursors import PageParams
from antiphon.wire.items import CodeInterpreterCall
from antiphon.wire.resources.containers import (
    AutoContainer,
    CreateContainer,
    DomainSecret,
    NetworkPolicy,
)
from tests.tools.containers.processes import WorkerServer

WAIT_S = 60
AUTO = AutoContainer()


async def test_container_of_one_worker_is_used_by_the_next() -> None:
    async with asyncio.timeout(WAIT_S), WorkerServer.open() as server:
        one, two = server.worker(), server.worker()
        first = await one.acquire("t", AUTO, ())
        await first.run_python("save a.txt one")
        await first.release()
        created = await one.create("t", CreateContainer(name="mine", file_ids=("file-1",)))
        again = await two.acquire("t", AUTO, (CodeInterpreterCall(container_id=first.id),))
        assert again.id == first.id
        assert [file.path for file in await again.list_files()] == ["/mnt/data/a.txt"]
        assert [each.id for each in (await two.list("t", PageParams(order="asc"))).data] == [
            first.id,
            created.id,
        ]
        files = await (await two.get_active("t", created.id)).list_files()
        assert [file.path for file in files] == ["/mnt/data/numbers.csv"]
        await two.delete("t", created.id)
        assert [box.is_alive for box in server.host.sandbox.boxes] == [True, False]
        with pytest.raises(InvalidRequest, match="no network"):
            policy = NetworkPolicy(type="allowlist", allowed_domains=("example.com",))
            await two.create("t", CreateContainer(name="mine", network_policy=policy))


async def test_container_that_was_never_used_is_removed() -> None:
    async with asyncio.timeout(WAIT_S), WorkerServer.open() as server:
        worker = server.worker()
        await (await worker.acquire("t", AUTO, ())).release()
        while await worker.count_active("t"):
            await asyncio.sleep(0.01)
        assert list(server.host.registry.local) == []


async def test_host_counts_the_containers_of_all_workers() -> None:
    async with asyncio.timeout(WAIT_S), WorkerServer.open(max_containers=1) as server:
        one, two = server.worker(), server.worker()
        await one.create("t", CreateContainer(name="mine"))
        with pytest.raises(QuotaExceeded, match="max_containers = 1"):
            await two.acquire("t", AUTO, ())
        assert (await two.acquire("u", AUTO, ())).id


async def test_secrets_of_the_network_reach_the_host() -> None:
    domain = "api.example.com"
    policy = NetworkPolicy(
        type="allowlist",
        allowed_domains=(domain,),
        domain_secrets=(DomainSecret(domain=domain, name="KEY", value="sk-1"),),
    )
    async with asyncio.timeout(WAIT_S), WorkerServer.open(domains=frozenset({domain})) as server:
        container = await server.worker().acquire("t", AutoContainer(network_policy=policy), ())
        (local,) = server.host.registry.local
        assert local.id == container.id and local.request.network_policy == policy


async def test_crash_of_the_host_fails_its_calls_and_expires_its_containers() -> None:
    async with asyncio.timeout(WAIT_S), WorkerServer.open(max_containers=1) as server:
        worker = server.worker()
        first = await worker.acquire("t", AUTO, ())
        await first.ensure_ready()
        (box,) = server.host.sandbox.boxes
        started = asyncio.Event()

        async def endless(*code: Any, **limits: Any) -> Any:
            started.set()
            await asyncio.Event().wait()

        box.python = endless  # type: ignore[method-assign]
        call = asyncio.create_task(first.run_python("forever"))
        await started.wait()
        await server.kill_host()
        with pytest.raises(InvalidRequest) as lost:
            await call
        assert lost.value.code == "container_expired"
        await first.release()
        assert (await worker.retrieve("t", first.id)).status == "expired"

        waiting = asyncio.create_task(worker.create("t", CreateContainer(name="mine")))
        await server.start_host(max_containers=1)
        created = await waiting
        new = await worker.get_active("t", created.id)
        assert (await new.run_python("say hi"))[0].output == "hi\n"


async def test_containers_of_a_dead_host_do_not_count_after_its_restart() -> None:
    async with asyncio.timeout(WAIT_S), WorkerServer.open(max_containers=1) as server:
        worker = server.worker()
        old = await worker.create("t", CreateContainer(name="mine"))
        await server.kill_host()
        await server.start_host(max_containers=1)
        new = await worker.create("t", CreateContainer(name="mine"))
        assert {each.id: each.status for each in (await worker.list("t", PageParams())).data} == {
            old.id: "expired",
            new.id: "active",
        }


async def test_worker_learns_why_there_are_no_containers() -> None:
    with TemporaryDirectory(prefix="antiphon-") as folder:
        path = Path(folder, "host")
        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        server, client = CallServer(lambda: ContainerHostSession(opened)), connect_to_host(path)
        remote = RemoteContainers(MemoryStore().containers, ContainerRelay().connect)
        hosted = HostedContainers(client, remote)
        async with asyncio.timeout(WAIT_S):
            asking = asyncio.create_task(hosted.unavailable_reason())  # before the host listens
            await server.open(path)
            opened.set_result("No bubblewrap.")
            assert await asking == "No bubblewrap."
            with pytest.raises(ToolError, match="No bubblewrap"):
                await hosted.create("t", CreateContainer(name="mine"))
            client.close()
            await server.close()

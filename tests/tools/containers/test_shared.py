"""Containers of several processes: each process uses those of the others."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, suppress

import pytest

from antiphon.errors import InvalidRequest, NotFound, Overloaded, QuotaExceeded, ToolError
from antiphon.tools.containers.registry import ContainerRegistry
from antiphon.wire.cursors import PageParams
from antiphon.wire.items import CodeInterpreterCall
from antiphon.wire.resources.containers import AutoContainer, CreateContainer
from antiphon.wire.resources.skills import SkillReference
from tests.conformance.fake_containers import Clock
from tests.conformance.test_shells import library
from tests.tools.containers.processes import Process, over_http, over_sockets

AUTO = AutoContainer()


@pytest.fixture(params=["sockets", "http"])
def processes(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[list[Process]]:
    return over_sockets() if request.param == "sockets" else over_http()


async def ids(registry: ContainerRegistry) -> list[str]:
    return [each.id for each in (await registry.list("t", PageParams(order="asc"))).data]


async def test_every_operation_reaches_the_owner(
    processes: AbstractAsyncContextManager[list[Process]],
) -> None:
    async with asyncio.timeout(60), processes as (one, two):
        created = await one.registry.create("t", CreateContainer(name="x"))
        assert await ids(two.registry) == [created.id]
        assert await two.registry.retrieve("t", created.id) == created
        container = await two.registry.get_active("t", created.id)
        added = await container.write_file("a.bin", b"\x00\xff" * 9)
        copied = await container.write_file("c.txt", b"three")
        assert await container.list_files() == (added, copied)
        assert await container.get_file(added.id) == added
        assert await container.read_file(added.id) == b"\x00\xff" * 9
        await container.delete_file(added.id)
        with pytest.raises(NotFound, match="not found"):
            await container.read_file(added.id)
        outcome, files = await container.run_python("save b.txt two")
        assert outcome.end_reason == "done" and [file.path for file in files] == ["/mnt/data/b.txt"]
        heard: list[tuple[str, str]] = []
        ran = await container.run_command(
            "say hi", timeout_s=5, max_output=99, on_output=lambda *text: heard.append(text)
        )
        assert (ran.output, ran.exit_code, heard) == ("hi\n", 0, [("hi\n", "")])
        await container.ensure_ready()
        assert len(one.sandbox.boxes) == 1 and two.sandbox.boxes == []
        assert [file.bytes for file in await container.list_files()] == [3, 5]
        await two.registry.delete("t", created.id)
        assert not one.sandbox.boxes[0].is_alive and await ids(one.registry) == []
        for registry in (one.registry, two.registry):
            with pytest.raises(NotFound):
                await registry.get_active("t", created.id)


async def test_other_tenants_cannot_reach_a_container() -> None:
    async with asyncio.timeout(60), over_sockets() as (one, two):
        created = await one.registry.create("t", CreateContainer(name="x"))
        for call in (two.registry.retrieve, two.registry.get_active, two.registry.delete):
            with pytest.raises(NotFound):
                await call("u", created.id)
        assert (await two.registry.list("u", PageParams())).data == ()


async def test_auto_container_is_used_across_processes(
    processes: AbstractAsyncContextManager[list[Process]],
) -> None:
    async with asyncio.timeout(60), processes as (one, two):
        first = await one.registry.acquire("t", AUTO, ())
        await first.run_python("save a.txt x")
        await first.release()
        call = CodeInterpreterCall(container_id=first.id)
        request = AutoContainer(file_ids=("file-1",))
        second = await two.registry.acquire("t", request, (call,))
        assert second.id == first.id and two.sandbox.boxes == []
        outcome, _ = await second.run_python("list")
        assert outcome.output == "a.txt numbers.csv\n"
        (local,) = one.registry.local
        assert not local.is_replaceable  # as long as the other process uses it
        await second.release()
        async with asyncio.timeout(60):
            while not local.is_replaceable:
                await asyncio.sleep(0.01)


async def test_container_of_a_dead_owner_has_expired(
    processes: AbstractAsyncContextManager[list[Process]],
) -> None:
    async with asyncio.timeout(60), processes as (one, two):
        created = await one.registry.create("t", CreateContainer(name="x"))
        held = await two.registry.get_active("t", created.id)
        await one.end.aclose()
        with pytest.raises((InvalidRequest, ToolError, Overloaded)):
            await held.run_python("say hi")
        with pytest.raises(InvalidRequest) as refused:
            await two.registry.get_active("t", created.id)
        assert refused.value.code == "container_expired"
        assert (await two.registry.retrieve("t", created.id)).status == "expired"
        call = CodeInterpreterCall(container_id=created.id)
        new = await two.registry.acquire("t", AUTO, (call,))
        assert new.id != created.id
        # The owner was only cut off: it closes what others have declared expired.
        await one.registry.local.renew_lease()
        await one.registry.local.close_expired()
        assert not one.sandbox.boxes[0].is_alive


async def test_limit_counts_the_containers_of_all_processes() -> None:
    clock = Clock()
    async with (
        asyncio.timeout(60),
        over_sockets(max_containers=2, clock=clock) as (one, two),
    ):
        first = await one.registry.acquire("t", AUTO, ())
        await first.run_python("say hi")
        await one.registry.create("t", CreateContainer(name="x"))
        with pytest.raises(QuotaExceeded, match="max_containers = 2"):
            await two.registry.create("t", CreateContainer(name="y"))
        await first.release()
        await two.registry.create("t", CreateContainer(name="y"))
        assert (await two.registry.retrieve("t", first.id)).status == "expired"
        assert await one.registry.count_active("t") == await two.registry.count_active("t") == 2
        clock.now += 2000
        await one.registry.local.close_expired()
        assert await two.registry.count_active("t") == 0


async def test_deleted_container_is_closed_at_the_next_renewal() -> None:
    async with asyncio.timeout(60), over_sockets() as (one, two):
        created = await one.registry.create("t", CreateContainer(name="x"))
        await one.end.aclose()
        with suppress(NotFound):
            await two.registry.delete("t", created.id)
        assert await ids(one.registry) == []
        await one.registry.local.renew_lease()
        await one.registry.local.close_expired()
        assert not one.sandbox.boxes[0].is_alive


async def test_use_is_reported_with_the_lease() -> None:
    clock = Clock()
    async with asyncio.timeout(60), over_sockets(clock=clock) as (one, two):
        created = await one.registry.create("t", CreateContainer(name="x"))
        clock.now += 100
        await (await two.registry.get_active("t", created.id)).run_python("say hi")
        await one.registry.local.renew_lease()
        (shown,) = (await two.registry.list("t", PageParams())).data
        assert shown.last_active_at == created.last_active_at + 100


async def test_skills_travel_by_reference() -> None:
    skills = await library()
    async with asyncio.timeout(60), over_sockets(library=skills) as (one, two):
        first = await one.registry.acquire("default", AUTO, ())
        await first.ensure_ready()
        wanted = AutoContainer(skills=(SkillReference(skill_id="skill"),))
        call = CodeInterpreterCall(container_id=first.id)
        second = await two.registry.acquire("default", wanted, (call,))
        await second.ensure_ready()
        (skill,) = first.skills
        assert [*one.sandbox.boxes[0].shared_files] == [skill.name]


async def test_server_with_another_secret_is_refused() -> None:
    async with asyncio.timeout(60), over_http(secrets=(b"one", b"two")) as (one, two):
        created = await one.registry.create("t", CreateContainer(name="x"))
        with pytest.raises(Overloaded) as refused:
            await two.registry.get_active("t", created.id)
        assert (refused.value.status, refused.value.code) == (503, "container_unreachable")
        call = CodeInterpreterCall(container_id=created.id)
        new = await two.registry.acquire("t", AUTO, (call,))
        assert new.id != created.id
        assert (await one.registry.retrieve("t", created.id)).status == "active"

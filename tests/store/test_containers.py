"""The directory of containers after a restart of the machine, when monotonic time began anew."""

from __future__ import annotations

from antiphon.store.containers import ContainerDirectory, ContainerRecord
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.resources.containers import ContainerExpiresAfter, ContainerResource


def record(name: str, owner: str) -> ContainerRecord:
    resource = ContainerResource(
        id=name,
        created_at=1,
        name=name,
        status="active",
        expires_after=ContainerExpiresAfter(minutes=20),
        last_active_at=1,
        memory_limit="1g",
    )
    return ContainerRecord(tenant="t", resource=resource, owner=owner, url="http://host")


async def test_containers_of_before_a_restart_of_the_machine_expire() -> None:
    now = 1_000_000.0
    directory = ContainerDirectory(MemoryStore().values, timer=lambda: now)
    assert await directory.add(record("old", "dead"), max_active=1, lease_s=5)
    now = 10.0
    assert await directory.add(record("new", "alive"), max_active=1, lease_s=5)
    listed = {each.resource.id: each.is_active for each in await directory.list("t")}
    assert listed == {"old": False, "new": True}

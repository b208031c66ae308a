"""Checks that a store fulfils its contract for containers and for the processes that own
containers."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from antiphon.store.base import Store
from antiphon.store.containers import ContainerRecord, mark_expired
from antiphon.wire.resources.containers import ContainerExpiresAfter, ContainerResource

#: Lease in seconds that does not expire during a check.
_LONG_S = 3600.0


def _record(name: str, owner: str = "a", tenant: str = "t") -> ContainerRecord:
    resource = ContainerResource(
        id=f"cntr_{name}",
        created_at=1,
        name=name,
        status="active",
        expires_after=ContainerExpiresAfter(minutes=20),
        last_active_at=1,
        memory_limit="1g",
    )
    return ContainerRecord(tenant=tenant, resource=resource, owner=owner, url=f"http://{owner}")


async def _add(store: Store, record: ContainerRecord, max_active: int | None = None) -> bool:
    return await store.containers.add(record, max_active=max_active, lease_s=_LONG_S)


async def finds_containers_and_their_owners(store: Store) -> None:
    first, second = _record("2"), replace(_record("1", "b"), is_auto=True)
    assert await _add(store, first) and await _add(store, second)
    assert await _add(store, _record("3", tenant="u"))
    assert await store.containers.list("t") == (first, second)
    assert await store.containers.find("t", "cntr_1") == second
    assert await store.containers.find("u", "cntr_1") is None
    assert await store.containers.delete("t", "cntr_2")
    assert not await store.containers.delete("t", "cntr_2")
    assert not await store.containers.delete("u", "cntr_1")
    assert await store.containers.list("t") == (second,)


async def learns_from_owners(store: Store) -> None:
    assert await store.containers.renew("a", "http://a", lease_s=_LONG_S) == frozenset()
    for record in (_record("1"), _record("2"), _record("3", "b")):
        assert await _add(store, record)
    used = replace(_record("1").resource, last_active_at=9)
    not_own = replace(_record("3").resource, last_active_at=9)
    assert await store.containers.renew(
        "a", "http://new", lease_s=_LONG_S, used=[used, not_own]
    ) == {"cntr_1", "cntr_2"}
    await store.containers.expire("a", ["cntr_2", "cntr_3"])
    assert await store.containers.list("t") == (
        replace(_record("1"), resource=used, url="http://new"),
        replace(_record("2"), resource=mark_expired(_record("2").resource), url=""),
        _record("3", "b"),
    )
    assert await store.containers.renew("a", "", lease_s=_LONG_S) == {"cntr_1"}


async def what_expired_stays_expired(store: Store) -> None:
    """Check that containers expire when the lease of their owner ends or when the owner releases
    them. The owner cannot make an expired container active again."""
    for record in (_record("1"), _record("2", "b")):
        assert await _add(store, record)
    assert await store.containers.renew("a", "", lease_s=0) == {"cntr_1"}
    assert [each.is_active for each in await store.containers.list("t")] == [False, True]
    assert await store.containers.renew("a", "", lease_s=_LONG_S) == frozenset()
    await store.containers.release("b")
    assert [each.is_active for each in await store.containers.list("t")] == [False, False]
    found = await store.containers.find("t", "cntr_2")
    assert found is not None and (found.is_active, found.url) == (False, "")
    assert await store.containers.renew("b", "", lease_s=_LONG_S) == frozenset()


async def counts_active_containers_of_a_tenant(store: Store) -> None:
    added = [_add(store, _record(str(n), owner=str(n % 2)), 3) for n in range(6)]
    assert sorted(await asyncio.gather(*added)) == [False] * 3 + [True] * 3
    assert await _add(store, _record("9", tenant="u"), 1)
    assert await _add(store, _record("8"))  # without a limit
    (first, *_) = await store.containers.list("t")
    await store.containers.expire(first.owner, [first.resource.id])
    assert not await _add(store, _record("7"), 3)
    assert await _add(store, _record("7"), 4)


async def deletes_the_containers_of_a_tenant(store: Store) -> None:
    for record in (_record("1"), _record("2", "b"), other := _record("3", tenant="u")):
        assert await _add(store, record)
    assert await store.delete_tenant("t") == 2
    assert await store.containers.list("t") == ()
    assert await store.containers.list("u") == (other,)
    assert await store.containers.delete_tenant("u") == 1

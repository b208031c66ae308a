"""Checks that a store fulfils its contract for quotas and for the usage of tenants."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from antiphon.store.base import Retention, Store
from antiphon.store.files import FileLimits
from antiphon.store.records import ClaimQuery, NewRun, Reservation, TenantUsage

from .files import make_file
from .responses import make_response
from .runs import batch, job, queued_response
from .vectors import make_vector_store

_LEASE_S = 60.0


async def _reserve(
    store: Store,
    name: str,
    most: int | None = None,
    *,
    max_bytes: int | None = None,
    tenant: str = "t",
    owner: str = "server",
    lease_s: float = _LEASE_S,
) -> bool:
    """Reserve a place for the response ``resp_NAME`` in the quota of ``tenant``. Returns whether
    the quota had room. ``most``: maximum number of the tenant's responses. ``max_bytes``: maximum
    number of the tenant's stored bytes."""
    return await store.reserve_response(
        Reservation(
            tenant=tenant,
            response_id=f"resp_{name}",
            owner=owner,
            max_responses=most,
            max_bytes=max_bytes,
            lease_s=lease_s,
        )
    )


async def enforces_the_number_of_files(store: Store) -> None:
    two_files = FileLimits(max_files=2)
    for name in "ab":
        assert await store.files.put("t", make_file(name), b"x", two_files)
    assert not await store.files.put("t", make_file("c"), b"x", two_files)
    assert await store.files.get("t", "file-c") is None
    assert await store.files.put("u", make_file("c"), b"x", two_files)
    assert await store.files.delete("t", "file-a")
    files = [store.files.put("t", make_file(name), b"x", two_files) for name in "defg"]
    assert sorted(await asyncio.gather(*files)) == [False, False, False, True]
    assert (await store.usage("t")).files == 2


async def enforces_the_number_of_vector_stores(store: Store) -> None:
    vectors = store.vectors
    names = "abcde"
    stores = [vectors.put("t", make_vector_store(name), max_stores=2) for name in names]
    created = await asyncio.gather(*stores)
    assert sorted(created) == [False, False, False, True, True]
    listed = [each.id for each in await vectors.list_stores("t")]
    assert sorted(listed) == [f"vs_{name}" for name, new in zip(names, created, strict=True) if new]
    changed = replace((await vectors.list_stores("t"))[0], name="new")
    assert await vectors.put("t", changed, max_stores=2), (
        "changing a vector store must not count for the quota"
    )
    assert await vectors.get("t", changed.id) == changed
    assert await vectors.put("u", make_vector_store("f"), max_stores=2)
    assert await vectors.delete("t", listed[0])
    assert await vectors.put("t", make_vector_store("g"), max_stores=2)


async def reserves_no_more_responses_than_there_is_room_for(store: Store) -> None:
    await store.save("t", make_response("a"))
    names = [f"new{number}" for number in range(8)]
    granted = await asyncio.gather(*(_reserve(store, name, 3) for name in names))
    assert sum(granted) == 2
    assert await _reserve(store, "b", 3, tenant="u"), "another tenant"
    first, second = (name for name, new in zip(names, granted, strict=True) if new)
    await store.save("t", make_response(first))
    assert not await _reserve(store, "c", 3), "a reserved and saved response must count once"
    await store.release_reservation("t", f"resp_{first}", "server")
    assert not await _reserve(store, "c", 3)
    await store.release_reservation("t", f"resp_{second}", "server")
    assert await _reserve(store, "c", 3), "a released reservation must not count"
    assert not await _reserve(store, "d", 3)
    assert await store.delete("t", "resp_a")
    assert await _reserve(store, "d", 3)


async def a_stored_response_needs_no_more_room(store: Store) -> None:
    """Check that a response that is already stored can be reserved although the quota is used up.
    Example: a client repeats a request whose answer was lost."""
    assert await _reserve(store, "a", 1)
    await store.save("t", make_response("a"))
    assert await _reserve(store, "a", 1)
    await store.release_reservation("t", "resp_a", "server")
    assert await _reserve(store, "a", 1)
    assert not await _reserve(store, "b", 1)


async def a_dead_owner_reserves_nothing(store: Store) -> None:
    assert await _reserve(store, "a", 1, owner="crashed")
    assert not await _reserve(store, "b", 1)
    assert await _reserve(store, "b", 1, lease_s=0)


async def only_its_owner_releases_a_reservation(store: Store) -> None:
    """Check that only the current owner of a reservation (a place for a response in the tenant's
    quota) can release it. Example: one server reserves a place for a response, and then another
    server takes over this reservation. If the first server now releases the reservation, the place
    stays reserved."""
    assert await _reserve(store, "a", 1, owner="one")
    assert await _reserve(store, "a", 1, owner="two")
    await store.release_reservation("t", "resp_a", "one")
    assert not await _reserve(store, "b", 1)
    await store.save("t", make_response("old"))
    assert not await _reserve(store, "a", 1, owner="three"), "the quota is used up"
    await store.delete("t", "resp_old")
    await store.release_reservation("t", "resp_a", "three")
    assert not await _reserve(store, "b", 1), (
        "a refused reservation must not change other reservations"
    )
    await store.release_reservation("t", "resp_a", "two")
    assert await _reserve(store, "b", 1)


async def refuses_responses_when_their_bytes_are_used_up(store: Store) -> None:
    assert await _reserve(store, "a", max_bytes=1)
    await store.release_reservation("t", "resp_a", "server")
    await store.save("t", make_response("a", text="x" * 1_000))
    await store.save("t", make_response("b", "a", text="x" * 1_000))
    used = (await store.usage("t")).responses_bytes
    assert used > 2_000
    assert not await _reserve(store, "c", max_bytes=used)
    assert await _reserve(store, "c", max_bytes=used + 1)
    assert await store.delete("t", "resp_a")
    assert (await store.usage("t")).responses_bytes == used, (
        "a response that a later response needs must count"
    )
    assert await store.delete("t", "resp_b")
    assert await _reserve(store, "d", max_bytes=1)


async def counts_responses_after_each_change(store: Store) -> None:
    """Check that the number of a tenant's responses and their bytes are the sums over its
    responses, whatever changed them. A deleted response that a later one continues still counts
    with its bytes."""
    versions = {
        "a": make_response("a"),
        "b": make_response("b", text="b" * 90),
        "c": make_response("c", text="c" * 300),
        "longer c": make_response("c", text="c" * 9_000),
        "d after a": make_response("d", "a"),
    }
    sizes: dict[str, int] = {}
    for version, stored in versions.items():
        await store.save(version, stored)  # each in a tenant of its own
        sizes[version] = (await store.usage(version)).responses_bytes

    async def check(responses: int, *kept: str) -> None:
        usage = await store.usage("t")
        assert usage.responses == responses
        assert usage.responses_bytes == sum(sizes[version] for version in kept)

    for version in ("a", "b", "c", "d after a"):
        await store.save("t", versions[version])
    await check(4, "a", "b", "c", "d after a")
    await store.save("t", versions["longer c"])
    await check(4, "a", "b", "longer c", "d after a")
    assert await store.delete("t", "resp_b")
    assert not await store.delete("t", "resp_b")
    await check(3, "a", "longer c", "d after a")
    assert await store.delete("t", "resp_a")
    await check(2, "a", "longer c", "d after a")
    await store.save("t", versions["a"])
    await check(3, "a", "longer c", "d after a")
    assert await store.delete("t", "resp_a")
    assert await store.delete("t", "resp_d")
    await check(1, "longer c")
    await store.rewrite_rows()
    await check(1, "longer c")
    await store.sweep(Retention(max_age_s=0), 9_000)
    await check(0)
    await store.save("t", versions["a"])
    await store.sweep(Retention(max_bytes=0), 0)
    await check(0)
    await store.save("t", versions["b"])
    await store.delete_tenant("t")
    await check(0)
    await store.save("t", versions["c"])
    await check(1, "c")


async def reports_what_a_tenant_uses(store: Store) -> None:
    assert await store.usage("t") == TenantUsage()
    await store.save("t", make_response("a"))
    await store.save("u", make_response("b"))
    for name in "cd":
        await store.runs.create(NewRun(job=job(name), stored=queued_response(name), batch=batch(0)))
    (claim,) = await store.runs.claim(
        ClaimQuery(owner="server", models=["m"], limit=1, lease_s=_LEASE_S)
    )
    await store.files.put("t", make_file("e", b"123"), b"123")
    await store.vectors.put("t", make_vector_store())
    usage = await store.usage("t")
    assert usage.responses_bytes > 0
    assert usage == TenantUsage(
        responses=3,
        responses_bytes=usage.responses_bytes,
        queued_runs=1,
        running_runs=1,
        files=1,
        files_bytes=3,
        vector_stores=1,
    )
    assert (await store.usage("u")).responses == 1
    assert await store.delete("t", claim.job.id)
    usage = await store.usage("t")
    assert (usage.responses, usage.queued_runs, usage.running_runs) == (2, 1, 0)
    await store.sweep(Retention(), 9_000_000_000)
    assert (await store.usage("t")).responses == 2

"""Room for a response that is attempted repeatedly under one id, as with an idempotency key."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.errors import QuotaExceeded, StoreError
from antiphon.limits.quotas import Quotas, TenantQuotas
from antiphon.runs.response_quota import ResponseQuota
from antiphon.store.records import Reservation, TenantUsage
from antiphon.testing.memory_store.store import MemoryStore


class LostAnswers(MemoryStore):
    """Reserves room, but the next ``lost`` answers are lost."""

    lost = 0

    async def reserve_response(self, reservation: Reservation) -> bool:
        is_reserved = await super().reserve_response(reservation)
        if self.lost:
            self.lost -= 1
            raise StoreError("The store does not answer.")
        return is_reserved


@pytest.fixture
def store() -> LostAnswers:
    return LostAnswers()


def quota_of(store: LostAnswers, lease_s: float) -> ResponseQuota:
    limits = TenantQuotas(Quotas(max_responses=1))
    return ResponseQuota(store, limits, owner="one", lease_s=lease_s)


@pytest.fixture
def quota(store: LostAnswers) -> ResponseQuota:
    return quota_of(store, lease_s=3600)


async def is_full(store: LostAnswers) -> bool:
    return not await store.reserve_response(
        Reservation(
            tenant="t",
            response_id="resp_b",
            owner="two",
            max_responses=1,
            max_bytes=None,
            lease_s=3600,
        )
    )


async def test_given_up_attempt_leaves_the_room_of_a_newer_one(
    store: LostAnswers, quota: ResponseQuota
) -> None:
    store.lost = 1
    with pytest.raises(StoreError):
        await quota.reserve("t", "resp_a")
    release = await quota.reserve("t", "resp_a")
    for _ in range(3):
        await asyncio.sleep(0)  # the late release runs
    assert await is_full(store)
    await release()
    assert not await is_full(store)


async def test_given_up_attempt_is_released(store: LostAnswers) -> None:
    quota = quota_of(store, lease_s=0.001)  # it is released twice, a lease apart
    store.lost = 1
    with pytest.raises(StoreError):
        await quota.reserve("t", "resp_a")
    async with asyncio.timeout(60):
        while await is_full(store):
            await asyncio.sleep(0)


async def test_last_of_two_attempts_releases_the_room(
    store: LostAnswers, quota: ResponseQuota
) -> None:
    first, second = [await quota.reserve("t", "resp_a") for _ in range(2)]
    await first()
    await first()
    assert await is_full(store)
    await second()
    assert not await is_full(store)


async def test_refused_attempt_leaves_nothing_behind(
    store: LostAnswers, quota: ResponseQuota
) -> None:
    assert not await is_full(store)  # which takes the room
    with pytest.raises(QuotaExceeded):
        await quota.reserve("t", "resp_a")
    await store.release_reservation("t", "resp_b", "two")
    release = await quota.reserve("t", "resp_a")
    await release()  # the room is free: no attempt is left
    assert not await is_full(store)


class Counted(MemoryStore):
    """Counts what the quota asks. ``stored``: the responses that it reports."""

    def __init__(self) -> None:
        super().__init__()
        self.stored, self.reads, self.reservations = 0, 0, 0
        self.fails = False

    async def usage(self, tenant: str) -> TenantUsage:
        self.reads += 1
        if self.fails:
            raise StoreError("The store does not answer.")
        return TenantUsage(responses=self.stored)

    async def reserve_response(self, reservation: Reservation) -> bool:
        self.reservations += 1
        return await super().reserve_response(reservation)


async def test_tenant_far_from_a_large_quota_reserves_nothing() -> None:
    store, now = Counted(), 0.0
    tenants = TenantQuotas(Quotas(max_responses=1_000_000, max_responses_bytes=100 << 30))
    quota = ResponseQuota(store, tenants, owner="one", lease_s=5, timer=lambda: now)
    assert quota.applies_to("t")
    await (await quota.reserve("t", "resp_a"))()
    assert not quota.applies_to("t")
    assert (store.reads, store.reservations) == (1, 0)
    now += 61
    store.stored = 950_000
    assert quota.applies_to("t")
    await (await quota.reserve("t", "resp_b"))()
    assert quota.applies_to("t")
    assert (store.reads, store.reservations) == (2, 1)
    store.stored = 0
    await quota.reserve("t", "resp_c")
    tenants.update(TenantQuotas(Quotas(max_responses=5)))  # the settings were reloaded
    assert quota.applies_to("t")


async def test_large_quota_refuses_nothing_while_the_store_does_not_answer() -> None:
    store = Counted()
    store.fails = True
    tenants = TenantQuotas(Quotas(max_responses=1_000_000))
    quota = ResponseQuota(store, tenants, owner="one", lease_s=5)
    await quota.reserve("t", "resp_a")
    assert store.reservations == 0
    assert quota.applies_to("t")

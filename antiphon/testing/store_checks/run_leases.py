"""Checks of the contract of a run store, for authors of stores. The checks in this module cover
leases of runs, and locks of conversations.

No check waits: a lease of zero seconds has always expired, and a lease of an hour has not.
"""

from __future__ import annotations

import time

from msgspec.structs import replace

from antiphon.store.base import Store
from antiphon.store.records import (
    Append,
    Claim,
    ClaimQuery,
    ConversationLock,
    NewRun,
    RunEnd,
    Steering,
)

from .runs import batch, begin_run, ended_response, job, numbers, queued_response

LONG_S = 3600.0


class _RecordingListener:
    """A listener for a run store. It records every notification that the store sends to it."""

    def __init__(self) -> None:
        self.news: list[str | tuple[str, int]] = []

    def on_run_queued(self) -> None:
        self.news.append("queued")

    def on_run_lost(self, response_id: str, epoch: int) -> None:
        self.news.append((response_id, epoch))


async def claims_each_run_once_oldest_first(store: Store) -> None:
    for name in "abc":
        await store.runs.create(NewRun(job=job(name), stored=queued_response(name), batch=batch(0)))
    await store.runs.create(
        NewRun(job=job("x", model="other"), stored=queued_response("x"), batch=batch(0))
    )
    first = await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=2, lease_s=60))
    rest = await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=60))
    assert [claim.job for claim in (*first, *rest)] == [job("a"), job("b"), job("c")]
    assert [(claim.epoch, claim.attempts) for claim in first] == [(1, 1), (1, 1)]
    assert await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=60)) == ()
    assert (
        await store.runs.claim(ClaimQuery(owner="one", models=["other"], limit=0, lease_s=60)) == ()
    )


async def claims_runs_of_tenants_in_turn(store: Store) -> None:
    """Check that a tenant with many queued runs delays a run of another tenant by at most one
    run."""
    for name in "abcdef":
        await store.runs.create(NewRun(job=job(name), stored=queued_response(name), batch=batch(0)))
    await store.runs.create(NewRun(job=job("x", "u"), stored=queued_response("x"), batch=batch(0)))
    first = await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=2, lease_s=60))
    assert [claim.job for claim in first] == [job("a"), job("x", "u")]
    more = await store.runs.claim(ClaimQuery(owner="two", models=["m"], limit=2, lease_s=60))
    assert [claim.job for claim in more] == [job("b"), job("c")]
    for name in "yz":
        await store.runs.create(
            NewRun(job=job(name, "u"), stored=queued_response(name), batch=batch(0))
        )
    last = await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=60))
    order = ["y", "z", "d", "e", "f"]
    assert [claim.job.id for claim in last] == [f"resp_{name}" for name in order]


async def claims_a_limited_number_of_runs_of_a_tenant(store: Store) -> None:
    for name in "abcd":
        await store.runs.create(
            NewRun(job=job(name), stored=queued_response(name), batch=batch(0, 2))
        )

    async def claim(owner: str) -> tuple[Claim, ...]:
        query = ClaimQuery(owner=owner, models=["m"], limit=9, lease_s=60, tenant_limit=2)
        return await store.runs.claim(query)

    first = await claim("one")
    assert [each.job for each in first] == [job("a"), job("b")]
    await store.runs.create(NewRun(job=job("x", "u"), stored=queued_response("x"), batch=batch(0)))
    assert [each.job for each in await claim("one")] == [job("x", "u")]
    assert [each.job for each in await claim("two")] == [job("c"), job("d")]
    assert (
        await store.runs.end(first[0], RunEnd(stored=ended_response("a"), batch=batch(2))) is True
    )
    await store.runs.release("two")
    assert [each.job for each in await claim("one")] == [job("c")]


async def fences_former_owners(store: Store) -> None:
    claim, other = await begin_run(store), await begin_run(store, "b")
    assert await store.runs.take_over("u", "resp_a") is None
    seized = await store.runs.take_over("t", "resp_a")
    assert seized is not None and seized.epoch == claim.epoch + 1
    lost = await store.runs.append((Append(claim, batch(2)), Append(other, batch(2))))
    assert lost == {"resp_a"}
    assert await numbers(store, "b") == [0, 1, 2]
    assert await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(2))) is False
    assert await store.load("t", "resp_a") == queued_response("a")
    assert await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=60)) == ()
    assert await store.runs.end(seized, RunEnd(stored=ended_response("a"), batch=batch(2))) is True
    assert await numbers(store) == [0, 1, 2]


async def requeues_released_runs(store: Store) -> None:
    claim = await begin_run(store)
    await store.runs.append((Append(claim, batch(2)),))
    await store.runs.release("one")
    (taken,) = await store.runs.claim(ClaimQuery(owner="two", models=["m"], limit=9, lease_s=60))
    assert (taken.job, taken.epoch, taken.attempts) == (claim.job, claim.epoch + 1, 1)
    assert await store.runs.append((Append(claim, batch(3)),)) == {"resp_a"}
    assert await store.runs.append((Append(taken, batch(3)),)) == frozenset()
    assert [each.first for each in await store.runs.load_batches(taken)] == [0, 2, 3]


async def claims_again_what_its_owner_does_not_hold(store: Store) -> None:
    """Check that a server can claim a run again if it does not know that it has claimed the run.
    This happens if the store records the claim, but the store's answer does not reach the
    server."""
    for name in "ab":
        await store.runs.create(
            NewRun(job=job(name), stored=queued_response(name), batch=batch(0, 2))
        )
    first, lost = await store.runs.claim(
        ClaimQuery(owner="one", models=["m"], limit=9, lease_s=LONG_S, held=())
    )
    held = [first.job.id]
    assert (
        await store.runs.claim(
            ClaimQuery(owner="two", models=["m"], limit=9, lease_s=LONG_S, held=())
        )
        == ()
    )
    assert (
        await store.runs.claim(
            ClaimQuery(owner="one", models=["other"], limit=9, lease_s=LONG_S, held=held)
        )
        == ()
    )
    (again,) = await store.runs.claim(
        ClaimQuery(owner="one", models=["m"], limit=9, lease_s=LONG_S, held=held)
    )
    assert (again.job, again.epoch, again.attempts) == (lost.job, lost.epoch + 1, 2)
    held.append(again.job.id)
    assert (
        await store.runs.claim(
            ClaimQuery(owner="one", models=["m"], limit=9, lease_s=LONG_S, held=held)
        )
        == ()
    )
    assert await store.runs.append((Append(lost, batch(2)),)) == {"resp_b"}
    assert await store.runs.append((Append(again, batch(2)), Append(first, batch(2)))) == set()


async def heartbeats_tell_of_runs_to_claim(store: Store) -> None:
    async def beat(owner: str, **fields: object) -> bool:
        query = ClaimQuery(owner=owner, models=["m"], lease_s=60)
        return await store.runs.heartbeat(replace(query, **fields))

    assert await beat("one") is False
    await store.runs.create(
        NewRun(job=job("x", model="other"), stored=queued_response("x"), batch=batch(0))
    )
    assert await beat("one") is False
    await store.runs.create(NewRun(job=job("a"), stored=queued_response("a"), batch=batch(0)))
    assert await beat("one") is True
    (claim,) = await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=60))
    assert await beat("one") is await beat("two") is False
    assert await beat("one", held=[claim.job.id]) is False
    assert await beat("one", held=[]) is True
    assert await beat("two", lease_s=0) is True
    assert await beat("two", models=["other"]) is True
    await store.runs.release("one")
    assert await beat("two") is True
    (claim,) = await store.runs.claim(ClaimQuery(owner="two", models=["m"], limit=9, lease_s=60))
    await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(1)))
    assert await beat("one", lease_s=0) is await beat("two", held=[]) is False


async def counts_attempts_without_events(store: Store) -> None:
    await begin_run(store)
    for owner, attempts in (("two", 2), ("three", 3)):
        (claim,) = await store.runs.claim(ClaimQuery(owner=owner, models=["m"], limit=9, lease_s=0))
        assert claim.attempts == attempts
    await store.runs.release("three")  # no attempt: the owner did not die
    (claim,) = await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=60))
    assert claim.attempts == 3


async def claims_a_run_by_its_name(store: Store) -> None:
    """Check that a run outside of all queues is found only by its name, and is not counted."""
    job_a = job("a")
    run = NewRun(job=job_a, stored=queued_response("a"), batch=batch(0), by_name=True)
    await store.runs.create(run)
    await store.runs.create(NewRun(job=job("b"), stored=queued_response("b"), batch=batch(0)))
    anyone = ClaimQuery(owner="one", models=["m"], limit=9, lease_s=60, held=())
    named = replace(anyone, owner="two", name=job_a.id)
    assert await store.runs.count_unended("t") == 1
    assert await store.runs.heartbeat(replace(anyone, name="resp_other")) is False
    assert [each.job.id for each in await store.runs.claim(anyone)] == [job("b").id]
    assert await store.runs.heartbeat(replace(anyone, held=[job("b").id])) is False
    assert await store.runs.claim(replace(named, models=["other"])) == ()
    assert await store.runs.heartbeat(named) is True
    assert [each.job for each in await store.runs.claim(named)] == [job_a]
    assert await store.runs.claim(replace(named, owner="three")) == ()
    assert await store.runs.claim(replace(anyone, owner="four", lease_s=0)) != ()
    assert [
        each.job for each in await store.runs.claim(replace(named, owner="three", lease_s=0))
    ] == [job_a]


async def locks_a_conversation_for_one_run(store: Store) -> None:
    hold = store.runs.lock_conversation
    assert await hold("t", "resp_a", ConversationLock("conv_a", "one"), lease_s=60) is True
    assert await hold("t", "resp_a", ConversationLock("conv_a", "one"), lease_s=60) is True
    assert await hold("t", "resp_b", ConversationLock("conv_a", "one"), lease_s=60) is False
    assert await hold("u", "resp_b", ConversationLock("conv_a", "one"), lease_s=60) is True
    await store.runs.unlock_conversation("t", "conv_a", "resp_b")
    assert await hold("t", "resp_b", ConversationLock("conv_a", "one"), lease_s=60) is False
    await store.runs.unlock_conversation("t", "conv_a", "resp_a")
    assert await hold("t", "resp_b", ConversationLock("conv_a", "one"), lease_s=60) is True
    await store.runs.release("one")
    assert await hold("t", "resp_c", ConversationLock("conv_a", "two"), lease_s=60) is True


async def seizes_runs_of_dead_servers(store: Store) -> None:
    claim = await begin_run(store)
    await store.runs.append((Append(claim, batch(2)),))
    assert (
        await store.runs.claim(ClaimQuery(owner="two", models=["m"], limit=9, lease_s=LONG_S)) == ()
    )
    assert (
        await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=0)) == ()
    ), "a server must not claim its own run again"
    assert (
        await store.runs.claim(ClaimQuery(owner="two", models=["other"], limit=9, lease_s=0)) == ()
    )
    (taken,) = await store.runs.claim(ClaimQuery(owner="two", models=["m"], limit=9, lease_s=0))
    assert (taken.job, taken.epoch, taken.attempts) == (claim.job, claim.epoch + 1, 1)
    assert await store.runs.append((Append(claim, batch(3)),)) == {"resp_a"}
    assert await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(3))) is False
    await store.runs.release("one")  # a server cannot release a run that it has lost
    assert (
        await store.runs.claim(ClaimQuery(owner="three", models=["m"], limit=9, lease_s=LONG_S))
        == ()
    )
    assert await store.runs.append((Append(taken, batch(3)),)) == frozenset()
    assert await numbers(store) == [0, 1, 2, 3]


async def continues_seized_runs(store: Store) -> None:
    await begin_run(store)
    seized = await store.runs.take_over("t", "resp_a")
    assert seized is not None and (seized.epoch, seized.attempts) == (2, 2)
    assert (
        await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=LONG_S)) == ()
    )
    (taken,) = await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=0))
    assert (taken.epoch, taken.attempts) == (3, 3)
    assert await store.runs.end(seized, RunEnd(stored=ended_response("a"), batch=batch(2))) is False
    assert await store.runs.end(taken, RunEnd(stored=ended_response("a"), batch=batch(2))) is True


async def seized_runs_have_leases_of_their_own(store: Store) -> None:
    """Check that a process that dies while it ends a run leaves this run to others, even if other
    runs are being ended all the time."""
    await begin_run(store)
    await begin_run(store, "b")
    await store.runs.take_over("t", "resp_a")
    begun_s = time.monotonic()
    for _ in range(50):
        await store.runs.take_over("t", "resp_b")
    lease_s = time.monotonic() - begun_s
    taken = await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=lease_s))
    assert "resp_a" in {claim.job.id for claim in taken}


async def seizes_runs_without_an_owner(store: Store) -> None:
    await store.runs.create(NewRun(job=job("a"), stored=queued_response("a"), batch=batch(0, 2)))
    seized = await store.runs.take_over("t", "resp_a")
    assert seized is not None and seized.job == job("a")
    assert (
        await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=LONG_S)) == ()
    )
    assert await store.runs.end(seized, RunEnd(stored=ended_response("a"), batch=batch(2))) is True
    assert (
        await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=0)) == ()
    ), "an ended run was claimed"


async def fences_each_run_of_an_append(store: Store) -> None:
    """Check that one call of ``append`` with events of several runs refuses only the events of runs
    that the server has lost. A server has lost a run if the run was deleted, or if the run was
    claimed again after this server claimed it. With each claim, the epoch of the run increases."""
    first = await begin_run(store)
    await store.runs.release("one")
    (now,) = await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=1, lease_s=LONG_S))
    gone, other = await begin_run(store, "b"), await begin_run(store, "c")
    await store.delete("t", "resp_b")
    appends = (Append(now, batch(2)), Append(gone, batch(2)), Append(now, batch(3, 2)))
    assert await store.runs.append((*appends, Append(other, batch(2)))) == {"resp_b"}
    assert await numbers(store) == [0, 1, 2, 3, 4]
    assert await numbers(store, "c") == [0, 1, 2]
    assert await store.runs.append((Append(first, batch(5)),)) == {"resp_a"}
    assert await store.runs.append(()) == frozenset()
    assert await numbers(store) == [0, 1, 2, 3, 4]


async def ends_a_steered_run_with_its_successor(store: Store) -> None:
    """Check that a run does not end without the input with which it was steered, and that its
    successor exists as soon as it has ended."""
    if not store.runs.supports_steering:
        return
    assert await store.runs.steering("t", "resp_a") is None
    claim = await begin_run(store)
    assert await store.runs.steering("t", "resp_a") == Steering(0, b"")
    assert await store.runs.steer("u", "resp_a", Steering(0, b"x")) is False
    assert await store.runs.steered_runs("one") == ()
    assert await store.runs.steer("t", "resp_a", Steering(0, b"x")) is True
    assert await store.runs.steered_runs("one") == ("resp_a",)
    assert await store.runs.steered_runs("two") == ()
    assert await store.runs.steer("t", "resp_a", Steering(0, b"y")) is False
    assert await store.runs.steering("t", "resp_a") == Steering(1, b"x")
    end = RunEnd(
        stored=ended_response("a"),
        batch=batch(2),
        successor=NewRun(job=job("b"), stored=queued_response("b"), batch=batch(0)),
    )
    assert await store.runs.end(claim, end) is False
    assert await store.load("t", "resp_b") is None
    assert await store.runs.end(claim, replace(end, steering_count=1)) is True
    assert await store.runs.steered_runs("one") == ()
    assert await store.load("t", "resp_a") == ended_response("a")
    assert await store.load("t", "resp_b") == queued_response("b")
    assert await store.runs.steering("t", "resp_a") is None
    assert await store.runs.steer("t", "resp_a", Steering(1, b"y")) is False
    query = ClaimQuery(owner="one", models=["m"], limit=9, lease_s=LONG_S)
    assert [each.job for each in await store.runs.claim(query)] == [job("b")]


async def notifies_listeners(store: Store) -> None:
    told = _RecordingListener()
    store.runs.set_listener(told)
    told.news.clear()
    await store.runs.create(NewRun(job=job("a"), stored=queued_response("a"), batch=batch(0)))
    assert "queued" in told.news
    (claim,) = await store.runs.claim(
        ClaimQuery(owner="one", models=["m"], limit=9, lease_s=LONG_S)
    )
    told.news.clear()
    await store.runs.release("one")
    assert "queued" in told.news
    await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=LONG_S))
    assert ("resp_a", claim.epoch + 1) not in told.news, "the run had no owner"
    await store.runs.claim(ClaimQuery(owner="two", models=["m"], limit=9, lease_s=0))
    assert ("resp_a", claim.epoch + 2) in told.news
    await store.runs.take_over("t", "resp_a")
    assert ("resp_a", claim.epoch + 3) in told.news


async def conversation_lock_lasts_as_long_as_its_owner(store: Store) -> None:
    hold = store.runs.lock_conversation
    assert await hold("t", "resp_a", ConversationLock("conv_a", "one"), lease_s=LONG_S) is True
    assert await hold("t", "resp_b", ConversationLock("conv_a", "two"), lease_s=LONG_S) is False
    assert await hold("t", "resp_b", ConversationLock("conv_a", "two"), lease_s=0) is True
    await store.runs.unlock_conversation("t", "conv_a", "resp_a")
    assert await hold("t", "resp_a", ConversationLock("conv_a", "one"), lease_s=LONG_S) is False


async def conversation_lock_moves_with_its_run(store: Store) -> None:
    hold = store.runs.lock_conversation
    assert await hold("t", "resp_a", ConversationLock("conv_a", "one"), lease_s=LONG_S) is True
    await begin_run(store)
    await store.runs.release("one")
    assert await hold("t", "resp_b", ConversationLock("conv_a", "one"), lease_s=0) is False, (
        "the run of the lock is queued"
    )
    (claim,) = await store.runs.claim(
        ClaimQuery(owner="two", models=["m"], limit=1, lease_s=LONG_S)
    )
    await store.runs.release("one")
    assert await hold("t", "resp_b", ConversationLock("conv_a", "one"), lease_s=LONG_S) is False
    assert await hold("t", "resp_b", ConversationLock("conv_a", "one"), lease_s=0) is False, (
        "the run of the lock is running"
    )
    assert await hold("t", "resp_a", ConversationLock("conv_a", "two"), lease_s=LONG_S) is True
    assert await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(2))) is True
    assert await hold("t", "resp_a", ConversationLock("conv_a", "two"), lease_s=LONG_S) is False, (
        "the run has ended"
    )
    assert await hold("t", "resp_b", ConversationLock("conv_a", "one"), lease_s=LONG_S) is True


async def begins_no_run_without_the_lock(store: Store) -> None:
    """Check that a run is not created if its conversation lock has expired. Check also that the
    lock of a created run does not expire."""
    hold, lock = store.runs.lock_conversation, ConversationLock("conv_a", "one")
    assert (
        await store.runs.create(
            NewRun(job=job("a"), stored=queued_response("a"), batch=batch(0), lock=lock)
        )
        is False
    )
    assert await hold("t", "resp_a", ConversationLock("conv_a", "one"), lease_s=LONG_S) is True
    assert await hold("t", "resp_b", ConversationLock("conv_a", "two"), lease_s=0) is True
    assert (
        await store.runs.create(
            NewRun(job=job("a"), stored=queued_response("a"), batch=batch(0), lock=lock)
        )
        is False
    )
    assert await store.load("t", "resp_a") is None
    assert (
        await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=9, lease_s=LONG_S)) == ()
    )
    lock = ConversationLock("conv_a", "two")
    assert (
        await store.runs.create(
            NewRun(job=job("b"), stored=queued_response("b"), batch=batch(0), lock=lock)
        )
        is True
    )
    assert await hold("t", "resp_c", ConversationLock("conv_a", "three"), lease_s=0) is False, (
        "the run of the lock is queued"
    )


async def only_its_end_unlocks_the_conversation_of_a_run(store: Store) -> None:
    """Check that ``unlock_conversation`` has no effect while an unended run holds the lock. A
    server calls ``unlock_conversation`` if it got no answer to ``create``, but the store may have
    created the run."""
    hold, lock = store.runs.lock_conversation, ConversationLock("conv_a", "one")
    assert await hold("t", "resp_a", ConversationLock("conv_a", "one"), lease_s=LONG_S) is True
    assert (
        await store.runs.create(
            NewRun(job=job("a"), stored=queued_response("a"), batch=batch(0), lock=lock)
        )
        is True
    )
    await store.runs.unlock_conversation("t", "conv_a", "resp_a")
    assert await hold("t", "resp_b", ConversationLock("conv_a", "two"), lease_s=0) is False
    assert await hold("t", "resp_a", ConversationLock("conv_a", "two"), lease_s=0) is True, (
        "the server that continues the run needs the lock"
    )
    await store.runs.unlock_conversation("t", "conv_a", "resp_a")
    assert await hold("t", "resp_b", ConversationLock("conv_a", "two"), lease_s=0) is False
    (claim,) = await store.runs.claim(
        ClaimQuery(owner="two", models=["m"], limit=1, lease_s=LONG_S)
    )
    assert await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(1))) is True
    assert await hold("t", "resp_b", ConversationLock("conv_a", "two"), lease_s=LONG_S) is True
    await store.runs.unlock_conversation("t", "conv_a", "resp_b")
    assert await hold("t", "resp_c", ConversationLock("conv_a", "one"), lease_s=LONG_S) is True


async def a_run_keeps_all_its_locks(store: Store) -> None:
    """Check that a run keeps all conversation locks of its response until its end: the lock that is
    passed to ``RunStore.create``, the locks that the response acquired earlier, and the locks that
    it acquires later."""
    hold, lock = store.runs.lock_conversation, ConversationLock("conv_a", "one")
    for name in ("conv_a", "conv_b"):
        assert await hold("t", "resp_a", ConversationLock(name, "one"), lease_s=LONG_S) is True
    assert (
        await store.runs.create(
            NewRun(job=job("a"), stored=queued_response("a"), batch=batch(0), lock=lock)
        )
        is True
    )
    assert await hold("t", "resp_a", ConversationLock("conv_c", "one"), lease_s=LONG_S) is True
    for name in ("conv_a", "conv_b", "conv_c"):
        await store.runs.unlock_conversation("t", name, "resp_a")
        assert await hold("t", "resp_b", ConversationLock(name, "two"), lease_s=0) is False
    (claim,) = await store.runs.claim(
        ClaimQuery(owner="two", models=["m"], limit=1, lease_s=LONG_S)
    )
    assert await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(1))) is True
    for name in ("conv_a", "conv_b", "conv_c"):
        assert await hold("t", "resp_b", ConversationLock(name, "three"), lease_s=LONG_S) is True


async def only_its_run_releases_a_conversation_lock(store: Store) -> None:
    """Check that the end or deletion of a run releases only the locks of its own tenant, even if
    another tenant uses the same ids."""
    hold = store.runs.lock_conversation
    for tenant in "tu":
        assert (
            await hold(tenant, "resp_a", ConversationLock("conv_a", "one"), lease_s=LONG_S) is True
        )
    yours = await begin_run(store, tenant="u")
    assert await store.runs.end(yours, RunEnd(stored=ended_response("a"), batch=batch(2))) is True
    assert await hold("u", "resp_b", ConversationLock("conv_a", "two"), lease_s=LONG_S) is True
    assert await hold("t", "resp_b", ConversationLock("conv_a", "two"), lease_s=LONG_S) is False
    await begin_run(store)
    await store.delete("t", "resp_a")
    assert await hold("t", "resp_b", ConversationLock("conv_a", "two"), lease_s=LONG_S) is True

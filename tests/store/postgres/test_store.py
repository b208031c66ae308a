"""PostgreSQL for several processes: two stores over one database act as two processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import asyncpg
import msgspec
import pytest

from antiphon.errors import RunError
from antiphon.store import open_store
from antiphon.store.base import Retention, Store
from antiphon.store.common import claimable_runs
from antiphon.store.common.claimable_runs import ClaimableRuns
from antiphon.store.common.subscriptions import Subscription
from antiphon.store.postgres import store as postgres_store
from antiphon.store.records import (
    Append,
    ClaimQuery,
    ConversationLock,
    NewRun,
    Reservation,
    ResponseQuery,
    RunEnd,
    TenantUsage,
)
from antiphon.testing.store_checks.responses import make_response
from antiphon.testing.store_checks.runs import (
    batch,
    begin_run,
    ended_response,
    job,
    queued_response,
)
from tests.real.postgres import Postgres, postgres


class RecordingListener:
    """Records the notifications of a process."""

    def __init__(self) -> None:
        self.lost_ones: list[tuple[str, int]] = []
        self.news = asyncio.Event()

    def on_run_queued(self) -> None:
        self.news.set()

    def on_run_lost(self, response_id: str, epoch: int) -> None:
        self.lost_ones.append((response_id, epoch))
        self.news.set()


@asynccontextmanager
async def two(database: Postgres) -> AsyncIterator[tuple[Store, Store, RecordingListener]]:
    """Open two stores over one database; record the notifications of the second."""
    url = await database.create_migrated_database()
    one, other = await open_store(url), await open_store(url)
    listener = RecordingListener()
    one.runs.set_listener(RecordingListener())
    other.runs.set_listener(listener)
    try:
        async with asyncio.timeout(60):
            await listener.news.wait()  # it listens: "something may have been missed"
            yield one, other, listener
    finally:
        await one.close()
        await other.close()


async def read_events(store: Store, tail: Subscription, goal: int) -> list[int]:
    """Return the event numbers that a subscription reads, up to ``goal``."""
    numbers: list[int] = []
    tail.is_stale = True
    while not numbers or numbers[-1] < goal:
        after = numbers[-1] if numbers else -1
        if (found := tail.next_batch(after)) is not None:
            numbers += range(max(after + 1, found.first), found.last + 1)
        elif tail.is_stale:
            tail.is_stale = False
            page = await store.runs.events("t", "resp_a", after, limit=1_000)
            assert page is not None
            numbers += [n for b in page.batches for n in range(b.first, b.last + 1) if n > after]
        else:
            await tail.wait()
    return numbers


async def test_subscription_reads_a_run_of_another_process(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        claim = await begin_run(one)
        with other.runs.subscribe("t", "resp_a") as tail:
            reading = asyncio.create_task(read_events(other, tail, 200))
            for n in range(2, 200):
                await one.runs.append((Append(claim, batch(n)),))
            assert await one.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(200)))
            assert await reading == list(range(201))


async def test_many_subscriptions_at_once(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        names = [f"n{n}" for n in range(40)]
        claims = [await begin_run(one, name) for name in names]
        tails = [other.runs.subscribe("t", f"resp_{name}") for name in names]
        for n in range(2, 30):
            await one.runs.append([Append(claim, batch(n)) for claim in claims])
        for name, tail in zip(names, tails, strict=True):
            last = -1
            tail.is_stale = True
            while last < 29:
                if (found := tail.next_batch(last)) is not None:
                    assert found.first == last + 1
                    last = found.last
                elif tail.is_stale:
                    tail.is_stale = False
                    page = await other.runs.events("t", f"resp_{name}", last, limit=1_000)
                    assert page is not None
                    last = page.batches[-1].last if page.batches else last
                else:
                    await tail.wait()
            tail.__exit__(None, None, None)


async def test_owner_without_heartbeat_loses_its_runs(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        claim = await begin_run(one, owner="dead")
        assert (
            await other.runs.claim(ClaimQuery(owner="alive", models=["m"], limit=9, lease_s=60))
            == ()
        )
        await one.runs.heartbeat(ClaimQuery(owner="dead"))
        (taken,) = await other.runs.claim(
            ClaimQuery(owner="alive", models=["m"], limit=9, lease_s=0)
        )
        assert (taken.job, taken.epoch) == (claim.job, claim.epoch + 1)
        assert await one.runs.append((Append(claim, batch(2)),)) == {"resp_a"}  # a zombie
        assert (
            await one.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(2))) is False
        )
        assert await other.runs.append((Append(taken, batch(2)),)) == frozenset()


async def test_run_whose_row_was_locked_is_claimed_soon(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader locks the row for a moment, to mark that it follows the run."""
    url = await database.create_migrated_database()
    store = await open_store(url)
    await store.runs.create(NewRun(job=job("a"), stored=queued_response("a"), batch=batch(0)))
    listener = RecordingListener()
    monkeypatch.setattr(store.runs.notifications, "listener", listener)
    connection = await asyncpg.connect(url)
    async with asyncio.timeout(60):
        async with connection.transaction():
            await connection.execute("UPDATE antiphon.runs SET followed_until = now()")
            for _ in range(3):  # the row stays locked
                listener.news.clear()
                assert (
                    await store.runs.claim(
                        ClaimQuery(owner="one", models=["m"], limit=9, lease_s=60)
                    )
                    == ()
                )
                assert (
                    await store.runs.claim(
                        ClaimQuery(owner="one", models=["m"], limit=9, lease_s=60)
                    )
                    == ()
                )
                await listener.news.wait()
        (claim,) = await store.runs.claim(
            ClaimQuery(owner="one", models=["m"], limit=9, lease_s=60)
        )
    assert claim.job == job("a")
    await connection.close()
    await store.close()


async def test_takeover_in_progress_fences_an_append(database: Postgres) -> None:
    url = await database.create_migrated_database()
    store = await open_store(url)
    claim = await begin_run(store)
    connection = await asyncpg.connect(url)
    async with asyncio.timeout(60):
        async with connection.transaction():
            await connection.execute("UPDATE antiphon.runs SET epoch = epoch + 1")
            appending = asyncio.create_task(store.runs.append((Append(claim, batch(2)),)))
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while not appending.done() and not await connection.fetchval(waits):
                await asyncio.sleep(0)
        assert await appending == {"resp_a"}
    await connection.close()
    await store.close()


async def test_lock_is_refused_while_its_run_ends(database: Postgres) -> None:
    url = await database.create_migrated_database()
    store = await open_store(url)
    await begin_run(store)
    connection = await asyncpg.connect(url)
    async with asyncio.timeout(60):
        async with connection.transaction():
            await connection.execute("UPDATE antiphon.runs SET ended_at = 0")
            lock = store.runs.lock_conversation(
                "t", "resp_a", ConversationLock("conv_a", "one"), lease_s=60
            )
            locking = asyncio.create_task(lock)
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while not locking.done() and not await connection.fetchval(waits):
                await asyncio.sleep(0)
        assert await locking is False
    await connection.close()
    await store.close()


async def test_run_is_claimed_once(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        for n in range(40):
            await one.runs.create(
                NewRun(job=job(str(n)), stored=queued_response(str(n)), batch=batch(0))
            )
        taken = await asyncio.gather(
            *(
                store.runs.claim(ClaimQuery(owner=name, models=["m"], limit=5, lease_s=60))
                for store, name in ((one, "a"), (other, "b")) * 5
            )
        )
        names = [claim.job.id for claims in taken for claim in claims]
        assert len(names) == len(set(names))


async def test_owner_is_notified_of_a_takeover(database: Postgres) -> None:
    async with two(database) as (one, other, listener):
        await begin_run(other, owner="theirs")
        listener.news.clear()
        seized = await one.runs.take_over("t", "resp_a")
        assert seized is not None
        while not listener.lost_ones:
            await listener.news.wait()
            listener.news.clear()
        assert listener.lost_ones == [("resp_a", seized.epoch)]


async def test_all_processes_are_notified_of_a_queued_run(database: Postgres) -> None:
    async with two(database) as (one, _, listener):
        listener.news.clear()
        await one.runs.create(NewRun(job=job("a"), stored=queued_response("a"), batch=batch(0)))
        await listener.news.wait()


async def test_lock_passes_on_with_its_run(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        await one.runs.lock_conversation(
            "t", "resp_a", ConversationLock("conv_a", "dead"), lease_s=60
        )
        await begin_run(one, owner="dead")
        assert not await other.runs.lock_conversation(
            "t", "resp_b", ConversationLock("conv_a", "x"), lease_s=60
        )
        await other.runs.claim(ClaimQuery(owner="alive", models=["m"], limit=9, lease_s=0))
        await one.runs.release("dead")
        assert not await one.runs.lock_conversation(
            "t", "resp_b", ConversationLock("conv_a", "x"), lease_s=60
        )
        assert not await one.runs.lock_conversation(
            "t", "resp_b", ConversationLock("conv_a", "x"), lease_s=0
        ), "another owner continues its run"
        claim = await one.runs.take_over("t", "resp_a")
        assert claim is not None and await one.runs.end(
            claim, RunEnd(stored=ended_response("a"), batch=batch(9))
        )
        assert await one.runs.lock_conversation(
            "t", "resp_b", ConversationLock("conv_a", "x"), lease_s=0
        )


async def test_store_recovers_from_a_server_restart() -> None:
    with postgres() as database:
        await restart_server(database)


async def restart_server(database: Postgres) -> None:
    async with two(database) as (one, other, listener):
        claim = await begin_run(one)
        await one.runs.append((Append(claim, batch(2)),))
        await asyncio.to_thread(database.stop)
        with pytest.raises(RunError, match="does not answer"):
            await one.runs.append((Append(claim, batch(3)),))
        listener.news.clear()
        await asyncio.to_thread(database.start)
        await listener.news.wait()  # it listens again
        with other.runs.subscribe("t", "resp_a") as tail:
            assert await one.runs.append((Append(claim, batch(3)),)) == frozenset()
            assert await read_events(other, tail, 3) == [0, 1, 2, 3]


async def test_one_process_sweeps_at_a_time(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        for n in range(50):
            await one.save("t", make_response(str(n), created_at=n))
        swept = await asyncio.gather(
            *(store.sweep(Retention(max_age_s=10), 1_000) for store in (one, other) * 3)
        )
        assert sum(swept) == 50


async def query_number(url: str, query: str) -> int:
    """Run a query that returns a number."""
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(query))
    finally:
        await connection.close()


async def test_subscription_gets_batches_without_reading_the_store(database: Postgres) -> None:
    """Batches of another process arrive in order; only the first read uses the store."""
    async with two(database) as (one, other, _):
        claim = await begin_run(one)
        with other.runs.subscribe("t", "resp_a") as tail:
            last, fed = 1, 0
            for n in range(2, 40):
                await one.runs.append((Append(claim, batch(n)),))
                while last < n:
                    if (found := tail.next_batch(last)) is not None:
                        assert found.first == last + 1 and found.tokens == b""
                        last, fed = found.last, fed + 1
                    elif tail.is_stale:
                        tail.is_stale = False
                        page = await other.runs.events("t", "resp_a", last, limit=99)
                        assert page is not None
                        last = page.batches[-1].last if page.batches else last
                    else:
                        await tail.wait()
            assert fed >= 37, "read instead"


async def test_concurrent_deletion_of_siblings_frees_the_parent(database: Postgres) -> None:
    url = await database.create_migrated_database()
    one, other = await open_store(url), await open_store(url)
    for n in range(20):
        await one.save("t", make_response(f"p{n}"))
        for child in "abcd":
            await one.save("t", make_response(f"{child}{n}", f"p{n}"))
        await one.delete("t", f"resp_p{n}")
        await asyncio.gather(
            *(
                store.delete("t", f"resp_{c}{n}")
                for c, store in zip("abcd", (one, other) * 2, strict=True)
            )
        )
    assert await query_number(url, "SELECT count(*) FROM antiphon.responses") == 0
    assert await query_number(url, "SELECT count(*) FROM antiphon.items") == 0
    await one.close()
    await other.close()


async def test_siblings_that_expire_together_free_their_ancestors(database: Postgres) -> None:
    url = await database.create_migrated_database()
    store = await open_store(url)
    for name, parent in (("root", None), ("a", "root"), ("b", "root"), ("c", "b"), ("new", None)):
        created_at = 100 if name == "new" else 1
        stored = make_response(name, parent)
        response = msgspec.structs.replace(stored.response, created_at=created_at)
        await store.save("t", msgspec.structs.replace(stored, response=response))
    await store.delete("t", "resp_root")
    assert (await store.usage("t")).responses == 4
    assert await store.sweep(Retention(max_age_s=50), 100) == 3
    assert await query_number(url, "SELECT count(*) FROM antiphon.responses") == 1
    assert (await store.usage("t")).responses == 1
    await store.close()


async def test_totals_of_tenants_are_exact(database: Postgres) -> None:
    """Whatever changed responses, and whichever changes were added to the totals."""
    url = await database.create_migrated_database()
    store = await open_store(url)
    for n in range(6):
        await store.save(
            "t", make_response(str(n), str(n - 1) if n in (1, 2) else None, text="x" * n)
        )
    await store.save("t", make_response("5", text="longer than before"))
    await store.delete("t", "resp_0")  # its descendants keep it
    counted = "SELECT count(*) FROM antiphon.responses WHERE live"
    summed = "SELECT sum(bytes)::bigint FROM antiphon.responses"
    for _ in range(2):
        usage = await store.usage("t")
        assert usage.responses == await query_number(url, counted) == 5
        assert usage.responses_bytes == await query_number(url, summed)
        await store.sweep(Retention(), 0)
        assert await query_number(url, "SELECT count(*) FROM antiphon.response_changes") == 0
    await store.delete_tenant("t")
    assert await store.usage("t") == TenantUsage()
    await store.sweep(Retention(), 0)
    assert await query_number(url, "SELECT count(*) FROM antiphon.response_sums") == 0
    await store.close()


async def test_reservations_add_many_changes_to_the_totals(database: Postgres) -> None:
    url = await database.create_migrated_database()
    store = await open_store(url)
    for n in range(102):
        await store.save("t", make_response(str(n)))
    for name in "ab":
        assert await store.reserve_response(
            Reservation(
                tenant="t",
                response_id=name,
                owner="o",
                max_responses=104,
                max_bytes=None,
                lease_s=60,
            )
        )
    assert not await store.reserve_response(
        Reservation(
            tenant="t", response_id="c", owner="o", max_responses=104, max_bytes=None, lease_s=60
        )
    )
    assert await query_number(url, "SELECT count(*) FROM antiphon.response_changes") == 0
    assert (await store.usage("t")).responses == 102
    await store.close()


async def test_search_reads_the_list_in_steps(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "_LOOKED_ROWS", 2)
    store = await open_store(await database.create_migrated_database())
    for n in range(9):
        await store.save("t", make_response(str(n), "0" if n in (1, 4, 7, 8) else None))
    for newest_first, expected in ((True, [8, 7, 4]), (False, [1, 4, 7])):
        query = ResponseQuery(previous_response_id="resp_0", newest_first=newest_first, limit=3)
        found = await store.list_responses("t", query)
        assert found is not None and [each.id for each in found] == [f"resp_{n}" for n in expected]
    nothing = ResponseQuery(previous_response_id="resp_1", limit=3)
    assert await store.list_responses("t", nothing) == ()
    await store.close()


async def test_concurrent_appends_and_deletion_leave_no_rows(database: Postgres) -> None:
    """Concurrent appends, ends, takeovers and deletions are atomic and do not deadlock."""
    url = await database.create_migrated_database()
    one, other = await open_store(url), await open_store(url)
    async with asyncio.timeout(60):
        for n in range(25):
            claim = await begin_run(one, str(n))
            await one.runs.lock_conversation(
                "t", f"resp_{n}", ConversationLock(f"conv_{n}", "one"), lease_s=60
            )
            appended, ended_, deleted, _, _ = await asyncio.gather(
                one.runs.append((Append(claim, batch(2)),)),
                one.runs.end(claim, RunEnd(stored=ended_response(str(n)), batch=batch(3))),
                other.delete("t", f"resp_{n}"),
                other.sweep(Retention(max_age_s=10), 0),
                one.runs.heartbeat(ClaimQuery(owner="one")),
            )
            assert deleted and appended in (frozenset(), {f"resp_{n}"}) and ended_ in (True, False)
            assert await one.load("t", f"resp_{n}") is None
            assert await one.runs.lock_conversation(
                "t", "resp_x", ConversationLock(f"conv_{n}", "x"), lease_s=60
            )
    await one.sweep(Retention(), 1_000)
    for table in ("responses", "runs", "batches", "items"):
        assert await query_number(url, f"SELECT count(*) FROM antiphon.{table}") == 0, table
    await one.close()
    await other.close()


async def test_finished_run_keeps_no_job(database: Postgres) -> None:
    url = await database.create_migrated_database()
    store = await open_store(url)
    claim = await begin_run(store)
    stored = "SELECT sum(length(request) + length(prompt)) FROM antiphon.runs"
    assert await query_number(url, stored) > 0
    await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(2)))
    assert await query_number(url, stored) == 0
    await store.close()


async def test_append_of_more_runs_than_a_notice_can_name(database: Postgres) -> None:
    async with two(database) as (one, other, _):
        for n in range(400):
            await one.runs.create(
                NewRun(job=job(str(n)), stored=queued_response(str(n)), batch=batch(0))
            )
        claims = await one.runs.claim(ClaimQuery(owner="one", models=["m"], limit=400, lease_s=60))
        with other.runs.subscribe("t", "resp_399") as tail:
            for n in range(1, 4):
                await one.runs.append([Append(claim, batch(n)) for claim in claims])
            last = 0
            while last < 3:
                if (found := tail.next_batch(last)) is not None:
                    last = found.last
                elif tail.is_stale:
                    tail.is_stale = False
                    page = await other.runs.events("t", "resp_399", last, limit=99)
                    assert page is not None
                    last = page.batches[-1].last if page.batches else last
                else:
                    await tail.wait()


async def test_reader_sees_an_end_whose_answer_was_lost(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that ended the run does not know that it has."""
    async with two(database) as (one, _, _), asyncio.timeout(60):
        claim = await begin_run(one, "a")
        with one.runs.subscribe("t", "resp_a") as tail:
            monkeypatch.setattr(one.runs, "mark_stale", lambda tenant, response_id: None)
            assert await one.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(2, 0)))
            await tail.wait()
            assert tail.is_stale


def recorder(
    calls: list[tuple[str, list[str]]], method: Callable[..., None]
) -> Callable[..., None]:
    """Wrap a method of ``ClaimableRuns``: its name and the ids are added to ``calls``."""

    def record(self: ClaimableRuns, run_ids: Iterable[str]) -> None:
        ids = list(run_ids)
        if ids:
            calls.append((method.__name__, ids))
        method(self, ids)

    return record


async def test_claimed_run_wakes_no_other_process(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait before they claim what was queued elsewhere; a run that is claimed meanwhile
    does not wake them."""
    monkeypatch.setattr(claimable_runs, "_MIN_WAIT_S", 3600.0)
    calls: list[tuple[str, list[str]]] = []
    for name in ("add", "remove"):
        monkeypatch.setattr(ClaimableRuns, name, recorder(calls, getattr(ClaimableRuns, name)))
    async with two(database) as (one, _, listener):
        listener.news.clear()
        await one.runs.create(NewRun(job=job("a"), stored=queued_response("a"), batch=batch(0)))
        async with asyncio.timeout(60):
            while calls != [("add", ["resp_a"])]:
                await asyncio.sleep(0)
            (claim,) = await one.runs.claim(
                ClaimQuery(owner="one", models=["m"], limit=1, lease_s=60)
            )
            while calls[1:].count(("remove", ["resp_a"])) < 2:  # each of the two processes
                await asyncio.sleep(0)
            assert not listener.news.is_set()
            await one.runs.take_over("t", claim.job.id)
            await one.runs.release("one")  # others are told that there may be something to claim
            while calls[-1][0] != "add":
                await asyncio.sleep(0)

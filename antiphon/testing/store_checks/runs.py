"""Checks of the contract of a run store, for authors of stores. The checks in this module cover
event logs, readers of event logs, and webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from msgspec.structs import replace

from antiphon.errors import AntiphonError
from antiphon.store.base import Retention, Store
from antiphon.store.records import (
    Append,
    Claim,
    ClaimQuery,
    ConversationLock,
    DueWebhook,
    EventBatch,
    Job,
    NewRun,
    RunEnd,
    RunLimit,
    StoredResponse,
    WebhookEvent,
)
from antiphon.store.runs import RunLimitReached, RunStore
from antiphon.wire.resources.conversations import ConversationResource

from .responses import make_response

TIMEOUT_S = 30


def batch(first: int, count: int = 1, tokens: bytes = b"", at: float | None = None) -> EventBatch:
    """Return a batch of ``count`` consecutive events. Each event contains its sequence number.
    ``first``: number of the first event. ``tokens`` and ``at``: see ``EventBatch``."""
    lines = b"".join(b'{"n":%d}\n' % number for number in range(first, first + count))
    return EventBatch(first=first, count=count, lines=lines, tokens=tokens, at=at)


def job(name: str, tenant: str = "t", model: str = "m") -> Job:
    """Return a ``Job``, the stored request of a background run, for the response ``resp_NAME``."""
    return Job(tenant=tenant, id=f"resp_{name}", model=model, request=b"{}", prompt=b"\1\0\0\0")


def queued_response(
    name: str, *, store: bool = True, previous: str | None = None
) -> StoredResponse:
    """Return the response ``resp_NAME`` as it is when its background run is queued: with input and
    without output."""
    stored = make_response(name, previous)
    response = replace(
        stored.response, status="queued", output=(), store=store, usage=None, background=True
    )
    return StoredResponse(response=response, input=stored.input)


def ended_response(name: str, *, store: bool = True, previous: str | None = None) -> StoredResponse:
    """Return the response ``resp_NAME`` of a background run that has ended. ``store``: whether the
    response is stored. ``previous``: name of the previous response."""
    stored = make_response(name, previous)
    return replace(stored, response=replace(stored.response, store=store, background=True))


async def begin_run(
    store: Store, name: str = "a", *, owner: str = "one", tenant: str = "t", keep: bool = True
) -> Claim:
    """Create a run with two events, and let the server ``owner`` claim it. Returns the claim, i.e.
    the right to work on the run. ``keep``: whether the response is stored."""
    await store.runs.create(
        NewRun(job=job(name, tenant), stored=queued_response(name, store=keep), batch=batch(0, 2))
    )
    (claim,) = await store.runs.claim(ClaimQuery(owner=owner, models=["m"], limit=1, lease_s=60))
    return claim


async def numbers(store: Store, name: str = "a", after: int = -1, limit: int = 100) -> list[int]:
    """Read one page of a run's stored events. Return the sequence numbers of those events that
    follow the sequence number ``after``. ``limit``: the number of events after which the store
    ends the page."""
    page = await store.runs.events("t", f"resp_{name}", after, limit=limit)
    assert page is not None
    return [n for each in page.batches for n in range(each.first, each.last + 1) if n > after]


async def _read(
    store: Store, name: str = "a", *, after: int = -1, waits: asyncio.Event | None = None
) -> list[int]:
    """Read the events of a run in the way in which the server reads them for a client, until the
    run has ended or is deleted. Returns the numbers of the run's events. ``waits``: an
    ``asyncio.Event`` that is set when this function starts to wait for more events of the run."""
    received: list[int] = []
    with store.runs.subscribe("t", f"resp_{name}") as tail:
        tail.is_stale = True
        while True:
            over = False
            if (found := tail.next_batch(after)) is not None:
                batches: tuple[EventBatch, ...] = (found,)
            elif not tail.is_stale:
                if waits is not None:
                    waits.set()
                await tail.wait()
                continue
            else:
                tail.is_stale = False
                page = await store.runs.events("t", f"resp_{name}", after, limit=7)
                if page is None:
                    return received
                batches, over = page.batches, page.ended
                tail.is_stale = tail.is_stale or bool(batches)
            for each in batches:
                assert each.lines == batch(each.first, each.count).lines
                received += range(max(each.first, after + 1), each.last + 1)
                after = each.last
            if over:
                return received


async def stores_a_loadable_response_at_the_start(store: Store) -> None:
    await store.runs.create(NewRun(job=job("a"), stored=queued_response("a"), batch=batch(0, 2)))
    assert await store.load("t", "resp_a") == queued_response("a")
    assert await store.load("u", "resp_a") is None
    page = await store.runs.events("t", "resp_a", -1, limit=10)
    assert page is not None and not page.ended
    assert [(each.first, each.count, each.lines) for each in page.batches] == [
        (0, 2, batch(0, 2).lines)
    ]
    assert await store.runs.events("u", "resp_a", -1, limit=10) is None
    assert await store.runs.events("t", "resp_none", -1, limit=10) is None


async def stores_appended_events(store: Store) -> None:
    claim = await begin_run(store)
    two = Append(claim, batch(2, 3, b"\7\0\0\0", 1_000.25))
    assert await store.runs.append((two, Append(claim, batch(5)))) == frozenset()
    assert (
        await store.runs.append((two,)) == frozenset()
    )  # repeat the call, as after a lost confirmation
    assert await numbers(store) == [0, 1, 2, 3, 4, 5]
    history = await store.runs.load_batches(claim)
    assert b"".join(each.tokens for each in history) == b"\7\0\0\0"
    assert [each.at for each in history] == [None, 1_000.25, None]
    page = await store.runs.events("t", "resp_a", -1, limit=10)
    assert page is not None and all(each.tokens == b"" for each in page.batches)


async def reads_pages_from_any_event(store: Store) -> None:
    claim = await begin_run(store)
    await store.runs.append([Append(claim, batch(n, 2)) for n in range(2, 40, 2)])
    for after in range(-1, 42):
        assert await numbers(store, after=after) == list(range(after + 1, 40))
    for after, limit, last in ((-1, 1, 1), (-1, 4, 3), (4, 1, 5), (4, 2, 7), (38, 9, 39)):
        found = await numbers(store, after=after, limit=limit)
        assert found == list(range(after + 1, last + 1)), (
            "a page must have whole batches, and only as many as needed"
        )
    assert await numbers(store, after=2**70) == []
    at = -1
    while more := await numbers(store, after=at, limit=5):
        assert 5 <= len(more) <= 6 or more[-1] == 39
        at = more[-1]
    assert at == 39


async def ends_run_and_response_atomically(store: Store) -> None:
    claim = await begin_run(store)
    assert (
        await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(2, 2))) is True
    )
    assert await store.load("t", "resp_a") == ended_response("a")
    page = await store.runs.events("t", "resp_a", 1, limit=10)
    assert page is not None and page.ended and [each.first for each in page.batches] == [2]
    beyond = await store.runs.events("t", "resp_a", 99, limit=10)
    assert beyond is not None and beyond.ended and not beyond.batches
    assert await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(4))) is False
    assert await store.runs.append((Append(claim, batch(4)),)) == {"resp_a"}
    assert await store.runs.take_over("t", "resp_a") is None
    assert await numbers(store) == [0, 1, 2, 3]


async def ends_without_further_events(store: Store) -> None:
    claim = await begin_run(store)
    assert (
        await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(2, 0))) is True
    )
    page = await store.runs.events("t", "resp_a", -1, limit=10)
    assert page is not None and page.ended and [each.count for each in page.batches] == [2]


async def followers_miss_no_event(store: Store) -> None:
    claim = await begin_run(store)
    readers = [asyncio.create_task(_read(store)) for _ in range(3)]
    for n in range(2, 40):
        await store.runs.append((Append(claim, batch(n)),))
        if n % 10 == 0:  # some readers start later, some during an append
            readers.append(asyncio.create_task(_read(store, after=n - 5)))
    await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(40, 2)))
    readers.append(asyncio.create_task(_read(store)))
    async with asyncio.timeout(TIMEOUT_S):
        found = await asyncio.gather(*readers)
    assert found == [list(range(first, 42)) for first in (0, 0, 0, 6, 16, 26, 0)]


async def slow_followers_use_no_memory(store: Store) -> None:
    claim = await begin_run(store)
    with store.runs.subscribe("t", "resp_a") as tail:
        for n in range(2, 300):
            await store.runs.append((Append(claim, batch(n)),))
        async with asyncio.timeout(TIMEOUT_S):
            await tail.wait()
            while (kept := tail.next_batch(1)) is not None:
                assert kept.first == 2
            assert tail.is_stale, "events are missing, but the reader is not marked as stale"
    assert (await numbers(store, after=1, limit=1_000)) == list(range(2, 300))


async def notifies_followers_of_the_end(store: Store) -> None:
    claim, other = await begin_run(store), await begin_run(store, "b")
    waiting = [asyncio.Event() for _ in "ab"]
    readers = [
        asyncio.create_task(_read(store, name, waits=waits))
        for name, waits in zip("ab", waiting, strict=True)
    ]
    async with asyncio.timeout(TIMEOUT_S):
        for waits in waiting:
            await waits.wait()
        await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(2, 0)))
        await store.delete("t", other.job.id)
        assert await asyncio.gather(*readers) == [[0, 1], [0, 1]]


async def hides_items_of_running_or_unstored_responses(store: Store) -> None:
    claim = await begin_run(store)
    assert await store.load_item("t", "msg_i_a") is None
    await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(2)))
    assert await store.load_item("t", "msg_i_a") is not None
    passing = await begin_run(store, "b", keep=False)
    await store.runs.end(
        passing, RunEnd(stored=ended_response("b", store=False), batch=batch(2), expires_at=2_000)
    )
    assert await store.load_item("t", "msg_o_b") is None
    assert await store.load("t", "resp_b") is not None
    await store.sweep(Retention(), 1_999)
    assert await store.load("t", "resp_b") is not None
    assert await store.sweep(Retention(), 2_000) == 1
    assert await store.load("t", "resp_b") is None
    assert await store.runs.events("t", "resp_b", -1, limit=10) is None


async def expires_logs_of_ended_runs_only(store: Store) -> None:
    over = await begin_run(store)
    await begin_run(store, "b")
    await store.runs.end(over, RunEnd(stored=ended_response("a"), batch=batch(2)))
    retention = Retention(max_log_age_s=100)
    await store.sweep(retention, 10_000)
    assert await numbers(store) == [0, 1, 2]
    await store.sweep(retention, 10_100)
    assert await numbers(store) == [0, 1, 2]
    await store.sweep(retention, 10_101)
    assert await store.runs.events("t", "resp_a", -1, limit=10) is None
    assert await store.load("t", "resp_a") is not None
    await store.sweep(Retention(max_age_s=1, max_responses=0), 99_999)
    assert await store.load("t", "resp_a") is None
    assert await store.load("t", "resp_b") is not None, "a running response was deleted"
    assert await numbers(store, "b") == [0, 1]


async def counts_running_responses_towards_the_limit(store: Store) -> None:
    await store.save("t", make_response("old", created_at=1))
    await begin_run(store, "a")
    await store.save("t", make_response("new", created_at=2_000))
    assert await store.sweep(Retention(max_responses=2), 3_000) == 1
    assert await store.load("t", "resp_old") is None
    assert await store.load("t", "resp_a") is not None
    assert await store.sweep(Retention(max_responses=1), 3_000) == 1
    assert await store.load("t", "resp_new") is None


async def deletes_a_run_with_its_response(store: Store) -> None:
    claim = await begin_run(store)
    with store.runs.subscribe("t", "resp_a") as tail:
        assert await store.delete("t", "resp_a") is True
        async with asyncio.timeout(TIMEOUT_S):
            while not tail.is_stale:
                await tail.wait()
    assert await store.runs.events("t", "resp_a", -1, limit=10) is None
    assert await store.runs.append((Append(claim, batch(2)),)) == {"resp_a"}
    assert await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(2))) is False
    assert await store.load("t", "resp_a") is None


async def counts_unended_runs_of_a_key(store: Store) -> None:
    for name, key in (("a", "k"), ("b", "k"), ("c", "")):
        await store.runs.create(
            NewRun(job=job(name), stored=queued_response(name), batch=batch(0), api_key=key)
        )
    (claim, *_) = await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=3, lease_s=60))
    assert [await store.runs.count_unended("t", key) for key in ("k", "", "x", None)] == [
        2,
        1,
        0,
        3,
    ]
    assert await store.runs.end(claim, RunEnd(stored=ended_response("a"), batch=batch(1)))
    assert [await store.runs.count_unended("t", key) for key in ("k", None)] == [1, 2]
    assert await store.runs.count_unended("u") == 0


async def claims_runs_that_can_wait_last(store: Store) -> None:
    """Check that runs with ``start_by`` are claimed after those of all tenants that have none, and
    not after that time."""
    for name, tenant, start_by in (
        ("late", "t", 200),
        ("soon", "t", 100),
        ("one", "t", 0),
        ("two", "t", 0),
        ("other", "u", 300),
        ("three", "t", 0),
    ):
        queued = queued_response(name)
        await store.runs.create(
            NewRun(job=job(name, tenant), stored=queued, batch=batch(0), start_by=start_by)
        )

    async def claim(limit: int, now: int = 0) -> list[str]:
        query = ClaimQuery(owner="one", models=["m"], limit=limit, lease_s=60, now=now)
        await store.runs.heartbeat(query)
        return [each.job.id.removeprefix("resp_") for each in await store.runs.claim(query)]

    assert await claim(2) == ["one", "two"]
    assert await claim(1, now=150) == ["soon"]  # it is older than ``three``
    assert await claim(1) == ["three"]
    assert await claim(2) == ["other", "late"]  # the tenant with fewer runs comes first


async def creates_no_more_runs_than_a_limit_permits(store: Store) -> None:
    """Check that concurrent calls of ``create`` cannot exceed the limits on the number of
    background runs that have not ended."""
    limits = (RunLimit(4), RunLimit(3, "k"))

    async def create(name: str, key: str) -> RunLimit | None:
        own = [limit for limit in limits if limit.api_key in (None, key)]
        try:
            await store.runs.create(
                NewRun(
                    job=job(name),
                    stored=queued_response(name),
                    batch=batch(0),
                    api_key=key,
                    limits=own,
                )
            )
        except RunLimitReached as reached:
            return reached.limit
        return None

    refused = await asyncio.gather(*(create(f"k{n}", "k") for n in range(8)))
    assert refused.count(None) == 3 and set(refused) == {None, limits[1]}
    refused = await asyncio.gather(*(create(f"o{n}", "other") for n in range(4)))
    assert refused.count(None) == 1 and set(refused) == {None, limits[0]}
    assert await store.runs.count_unended("t") == 4
    assert await store.load("t", f"resp_o{refused.index(limits[0])}") is None
    (claim,) = await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=1, lease_s=60))
    assert await store.runs.end(
        claim, RunEnd(stored=ended_response(claim.job.id.removeprefix("resp_")), batch=batch(1))
    )
    assert await create("again", "other") is None


async def adds_a_turn_and_releases_the_conversation(store: Store) -> None:
    await store.save_conversation("t", ConversationResource(id="conv_a", created_at=1))
    claim = await begin_run(store)
    assert (
        await store.runs.lock_conversation(
            "t", "resp_a", ConversationLock("conv_a", "one"), lease_s=60
        )
        is True
    )
    assert (
        await store.runs.lock_conversation(
            "t", "resp_b", ConversationLock("conv_a", "two"), lease_s=60
        )
        is False
    )
    await store.runs.end(
        claim, RunEnd(stored=ended_response("a"), batch=batch(2), conversation="conv_a")
    )
    items = await store.load_conversation_items("t", "conv_a")
    assert [item.id for item in items] == ["msg_i_a", "msg_o_a"]
    assert (
        await store.runs.lock_conversation(
            "t", "resp_b", ConversationLock("conv_a", "two"), lease_s=60
        )
        is True
    )


async def begins_each_id_once(store: Store) -> None:
    claim = await begin_run(store)
    await store.runs.append((Append(claim, batch(2)),))
    try:
        await store.runs.create(
            NewRun(job=job("a"), stored=queued_response("a", store=False), batch=batch(0))
        )
    except AntiphonError:
        pass
    else:
        raise AssertionError("a second run was created with the same id")
    assert await store.load("t", "resp_a") == queued_response("a")
    assert await numbers(store) == [0, 1, 2]
    await store.delete("t", "resp_a")
    await begin_run(store)  # an id can be reused after its run was deleted
    assert await numbers(store) == [0, 1]


async def appends_batches_atomically(store: Store) -> None:
    claim = await begin_run(store)
    large = EventBatch(
        first=2, count=1, lines=b'"' + b"x" * 300_000 + b'"\n', tokens=bytes(range(256))
    )
    await store.runs.append((Append(claim, large),))
    page = await store.runs.events("t", "resp_a", 1, limit=1)
    assert page is not None and page.batches == (replace(large, tokens=b""),)
    assert (await store.runs.load_batches(claim))[-1] == large


class _Parts:
    """A batch of events in parts, as ``stores_batches_in_parts`` stores it: an iterable of three
    long batches, which together contain the events 2 to 6. Each batch is created when the iteration
    reaches it."""

    def __iter__(self) -> Iterator[EventBatch]:
        for first, count in ((2, 2), (4, 1), (5, 2)):
            lines = batch(first, count).lines.replace(b"}", b" " * 1_200_000 + b"}")
            yield EventBatch(first=first, count=count, lines=lines, tokens=b"\1\0\0\0")


async def stores_batches_in_parts(store: Store) -> None:
    """Check that a store accepts a batch of events whose content is an iterable of several parts.
    Batches that are too large to be held in memory have this form. Readers that wait for events do
    not get such a batch from memory: they are told to read the events from the store."""
    large = EventBatch(first=2, count=5, parts=_Parts())
    one, two = await begin_run(store), await begin_run(store, "b")
    with store.runs.subscribe("t", "resp_a") as tail:
        for _ in range(2):
            assert await store.runs.append((Append(one, large), Append(two, batch(2)))) == set()
        assert tail.next_batch(1) is None and tail.is_stale
    assert (
        await store.runs.end(
            two, RunEnd(stored=ended_response("b"), batch=replace(large, first=3, parts=_Shifted()))
        )
        is True
    )
    for name, claim, last in (("a", one, 6), ("b", two, 7)):
        seen, after = [], -1
        while page := await _page(store, name, after):
            seen += page
            after = page[-1]
        assert seen == list(range(last + 1))
        stored = await store.runs.load_batches(claim)
        assert b"".join(each.tokens for each in stored) == b"\1\0\0\0" * 3


class _Shifted:
    """The batches of ``_Parts`` with all event numbers increased by 1, i.e. the events 3 to 7. They
    fit a run whose last stored event has the number 2."""

    def __iter__(self) -> Iterator[EventBatch]:
        for each in _Parts():
            yield replace(each, first=each.first + 1)


async def _page(store: Store, name: str, after: int) -> list[int]:
    """Return the numbers of the events of the response ``resp_NAME`` that follow the event with the
    number ``after``. The result has at most one page of events."""
    page = await store.runs.events("t", f"resp_{name}", after, limit=100)
    assert page is not None
    return [n for each in page.batches for n in range(each.first, each.last + 1)]


async def isolates_runs_by_tenant(store: Store) -> None:
    mine = await begin_run(store)
    yours = await begin_run(store, tenant="u")
    await store.runs.append((Append(mine, batch(2)),))
    await store.runs.end(yours, RunEnd(stored=ended_response("a"), batch=batch(2, 5)))
    assert await numbers(store) == [0, 1, 2]
    assert await store.load("t", "resp_a") == queued_response("a")
    assert await store.load("u", "resp_a") == ended_response("a")


async def supports_concurrent_runs(store: Store) -> None:
    names = [str(n) for n in range(100)]
    for name in names:
        await store.runs.create(NewRun(job=job(name), stored=queued_response(name), batch=batch(0)))
    claims = await store.runs.claim(ClaimQuery(owner="one", models=["m"], limit=100, lease_s=60))
    assert len(claims) == 100
    for n in range(1, 6):
        assert not await store.runs.append([Append(claim, batch(n)) for claim in claims])
    for name in names:
        assert await numbers(store, name) == [0, 1, 2, 3, 4, 5]


async def leases_a_webhook_until_it_is_settled(store: Store) -> None:
    claim, due = await begin_run(store), store.runs.take_due_webhooks
    body = bytes(range(256))
    later = WebhookEvent("evt_b", body, 1e9, "t", "endpoint")
    await store.runs.end(
        claim,
        RunEnd(
            stored=ended_response("a"),
            batch=batch(2),
            webhooks=(WebhookEvent("evt_a", body, 100.5), later),
        ),
    )
    await store.delete("t", "resp_a")  # the webhook is still delivered
    assert await due(100.25, 160, limit=9) == ()
    found = await asyncio.gather(*(due(100.5, 160, limit=9) for _ in range(4)))
    assert sorted(map(len, found)) == [0, 0, 0, 1]
    assert sum(found, ()) == (DueWebhook("evt_a", body, 1),)
    assert await due(159.75, 200, limit=9) == ()
    assert await due(160, 220, limit=9) == (DueWebhook("evt_a", body, 2),)  # its server has stopped
    await store.runs.settle_webhook("evt_a", 300)
    assert await due(299.75, 400, limit=9) == ()
    assert await due(300, 360, limit=9) == (DueWebhook("evt_a", body, 3),)
    await store.runs.settle_webhook("evt_a", None)
    await store.runs.settle_webhook("evt_a", 0)
    assert await due(1e12, 1e12, limit=9) == (DueWebhook("evt_b", body, 1, "t", "endpoint"),)
    await store.runs.settle_webhook("evt_b", None)
    assert await due(1e12, 1e12, limit=9) == ()


async def keeps_added_webhooks_once(store: Store) -> None:
    if type(store.runs).add_webhooks is RunStore.add_webhooks:
        return  # a store need not keep them
    event = WebhookEvent("evt_a", b"{}", 5.0, "t", "endpoint")
    await store.runs.add_webhooks((event, WebhookEvent("evt_b", b"{}", 6.0)))
    assert [each.attempts for each in await store.runs.take_due_webhooks(5, 60, limit=9)] == [1]
    await store.runs.add_webhooks((event,))
    assert await store.runs.take_due_webhooks(5, 60, limit=9) == ()
    assert len(await store.runs.take_due_webhooks(60, 90, limit=9)) == 2


async def leases_webhooks_oldest_first(store: Store) -> None:
    ids = {f"evt_{n}" for n in range(40)}
    for n in range(40):
        webhook = WebhookEvent(f"evt_{n}", b"{}", 40.0 - n)
        await store.runs.end(
            await begin_run(store, f"{n}"),
            RunEnd(stored=ended_response(f"{n}"), batch=batch(2), webhooks=(webhook,)),
        )
    given = [each.id for each in await store.runs.take_due_webhooks(50, 90, limit=2)]
    assert set(given) == {"evt_39", "evt_38"}
    for _ in ids:  # each round leases some of them
        found = await asyncio.gather(
            *(store.runs.take_due_webhooks(50, 90, limit=3) for _ in range(8))
        )
        given += [each.id for some in found for each in some]
    assert len(given) == len(ids) and set(given) == ids


async def drops_webhooks_of_lost_runs(store: Store) -> None:
    claim = await begin_run(store)
    seized = await store.runs.take_over("t", "resp_a")
    assert seized is not None
    assert not await store.runs.end(
        claim,
        RunEnd(
            stored=ended_response("a"),
            batch=batch(2),
            webhooks=(WebhookEvent("evt_1", b"late", 1.0),),
        ),
    )
    assert await store.runs.take_due_webhooks(9, 9, limit=9) == ()
    assert await store.runs.end(
        seized,
        RunEnd(
            stored=ended_response("a"),
            batch=batch(2),
            webhooks=(WebhookEvent("evt_2", b"cancelled", 1.0),),
        ),
    )
    assert await store.runs.take_due_webhooks(9, 19, limit=9) == (
        DueWebhook("evt_2", b"cancelled", 1),
    )


async def shares_one_secret(store: Store) -> None:
    first = await store.get_or_create_secret("seal", b"one\0")
    assert first == b"one\0"
    assert await store.get_or_create_secret("seal", b"two") == first
    assert await store.get_or_create_secret("other", b"two") == b"two"

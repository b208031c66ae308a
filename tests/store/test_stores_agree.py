"""Whatever is asked of a store, in whatever order: all of them answer as the one in memory."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import AntiphonError
from antiphon.store import open_store
from antiphon.store.base import Retention, Store
from antiphon.store.records import Append, Claim, EventBatch, StoredResponse
from antiphon.store.subscriptions import Subscription
from antiphon.testing.postgres import Postgres
from antiphon.testing.run_check import batch, ended, job, queued
from antiphon.testing.store_check import turn
from antiphon.wire.conversations import ConversationResource
from tests.searching import examples

NAMES = st.sampled_from("abc")
TENANTS = st.sampled_from("tttttu")
OWNERS = st.sampled_from(["one", "two"])
#: Nothing waits for time to pass: the one lease is over at once, the other never.
LEASES = st.sampled_from([0, 10_000])
PICKS = st.integers(0, 5)
COUNTS = st.integers(1, 3)


class World(Struct):
    """A store, and its followers: how far each has come."""

    store: Store
    readers: dict[tuple[str, str], tuple[Subscription, int]] = {}

    def leave(self, tenant: str, name: str) -> None:
        """The next reader of this run is another."""
        if (tenant, name) in self.readers:
            self.readers.pop((tenant, name))[0].__exit__(None, None, None)


class Agreement(RuleBasedStateMachine):
    """The same is asked of every store; the one in memory is the reference."""

    database: ClassVar[Postgres]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.worlds = self.loop.run_until_complete(self.opened())
        #: What each response built on when it was first kept: no response is its own ancestor.
        self.parents: dict[tuple[str, str], str | None] = {}
        self.claims: list[Claim] = []
        self.asked: tuple[Append, ...] = ()
        self.clock = 0

    async def opened(self) -> list[World]:
        urls = ["memory:", f"sqlite:{self.folder.name}/a.db", await self.database.fresh()]
        return [World(await open_store(url)) for url in urls]

    def teardown(self) -> None:
        async def close() -> None:
            for world in self.worlds:
                for key in list(world.readers):
                    world.leave(*key)
                await world.store.close()
            self.database.give_back()

        try:
            for tenant in "tu":
                for name in "abc":
                    self.look(tenant, name)
                    self.read_on(tenant, name)
        finally:
            self.loop.run_until_complete(close())
            self.loop.close()
            self.folder.cleanup()

    def each(self, ask: Callable[[World], Awaitable[Any]]) -> Any:
        """What each of them answers, which is the same."""

        async def one(world: World) -> Any:
            try:
                async with asyncio.timeout(20):
                    return await ask(world)
            except AntiphonError as error:
                return type(error)

        async def asked() -> list[Any]:
            return [await one(world) for world in self.worlds]

        first, *others = self.loop.run_until_complete(asked())
        for other in others:
            assert other == first
        return first

    def all(self, method: str, *arguments: Any, **named: Any) -> Any:
        return self.each(lambda world: getattr(world.store, method)(*arguments, **named))

    def run_all(self, method: str, *arguments: Any, **named: Any) -> Any:
        return self.each(lambda world: getattr(world.store.runs, method)(*arguments, **named))

    def parent(self, tenant: str, name: str, wished: str | None) -> str | None:
        if wished == name or self.all("load", tenant, f"resp_{wished}") is None:
            wished = None
        return self.parents.setdefault((tenant, name), wished)

    def aged(self, stored: StoredResponse) -> StoredResponse:
        """As old as nothing before it, so that what is oldest is no matter of luck."""
        self.clock += 1
        return replace(stored, response=replace(stored.response, created_at=self.clock))

    # --- responses -------------------------------------------------------------------------------

    @rule(tenant=TENANTS, name=NAMES, on=st.none() | NAMES, added=NAMES, talk=st.none() | NAMES)
    def save(self, tenant: str, name: str, on: str | None, added: str, talk: str | None) -> None:
        """Save it, again perhaps, in a conversation perhaps, with an item of another perhaps."""
        items = () if added == name else turn(added).input
        stored = self.aged(turn(name, self.parent(tenant, name, on), added=items))
        self.all("save", tenant, stored, conversation=None if talk is None else f"conv_{talk}")

    @rule(tenant=TENANTS, name=NAMES)
    def delete(self, tenant: str, name: str) -> None:
        self.all("delete", tenant, f"resp_{name}")

    @rule(
        most=st.none() | st.integers(0, 6),
        age=st.none() | st.integers(0, 9),
        log_age=st.none() | st.integers(0, 6),
        empty=st.booleans(),
    )
    def sweep(self, most: int | None, age: int | None, log_age: int | None, empty: bool) -> None:
        retention = Retention(
            max_responses=most,
            max_age_s=age,
            max_log_age_s=log_age,
            max_bytes=0 if empty else None,
        )
        self.clock += 1
        self.all("sweep", retention, self.clock)

    @rule(tenant=TENANTS, name=NAMES)
    def look(self, tenant: str, name: str) -> None:
        self.all("load", tenant, f"resp_{name}")
        self.all("chain", tenant, f"resp_{name}")
        self.all("item", tenant, f"msg_i_{name}")
        self.all("item", tenant, f"msg_o_{name}")
        self.all("conversation", tenant, f"conv_{name}")
        self.all("conversation_items", tenant, f"conv_{name}")
        self.run_all("history", Claim(job=job(name, tenant), epoch=0))
        self.events(tenant, name, -1, 1_000)

    # --- conversations ---------------------------------------------------------------------------

    @rule(tenant=TENANTS, name=NAMES, added=NAMES)
    def talk(self, tenant: str, name: str, added: str) -> None:
        label = ConversationResource(
            id=f"conv_{name}", created_at=1, metadata={"at": str(self.clock)}
        )
        self.all("put_conversation", tenant, label, turn(added).input)

    @rule(tenant=TENANTS, name=NAMES, added=NAMES, gone=st.booleans())
    def say(self, tenant: str, name: str, added: str, gone: bool) -> None:
        if gone:
            self.all("remove_item", tenant, f"conv_{name}", f"msg_i_{added}")
        else:
            self.all("add_items", tenant, f"conv_{name}", turn(added).input)

    @rule(tenant=TENANTS, name=NAMES)
    def drop(self, tenant: str, name: str) -> None:
        self.all("drop_conversation", tenant, f"conv_{name}")

    # --- runs ------------------------------------------------------------------------------------

    @rule(tenant=TENANTS, name=NAMES, on=st.none() | NAMES, model=st.sampled_from("mmn"))
    def begin(self, tenant: str, name: str, on: str | None, model: str) -> None:
        stored = self.aged(queued(name, previous=self.parent(tenant, name, on)))
        begun = self.run_all("begin", job(name, tenant, model), stored, batch(0, 2))
        if begun is None:  # who followed what had the id before follows no more
            for world in self.worlds:
                world.leave(tenant, f"resp_{name}")

    @rule(name=NAMES, on=st.none() | NAMES, owner=OWNERS, talk=st.none() | NAMES, count=COUNTS)
    def work(self, name: str, on: str | None, owner: str, talk: str | None, count: int) -> None:
        """As a run begins that nothing goes wrong with."""
        if talk is not None:
            self.hold("t", talk, name, owner, 10_000)
        self.begin("t", name, on, "m")
        self.claim(owner, 9, 10_000, True)
        self.read_on("t", name)
        self.append([(0, count)])

    @rule(pick=PICKS, name=NAMES, seized=st.booleans(), count=COUNTS, ends=st.booleans())
    def lose(self, pick: int, name: str, seized: bool, count: int, ends: bool) -> None:
        """A run is taken away, and whoever had it goes on as if it had not been."""
        if not self.claims:
            return
        former = self.claims[-1 - pick % len(self.claims)]
        if seized:
            self.seize(former.job.tenant, former.job.id.removeprefix("resp_"))
        else:
            self.claim("three", 9, 0, True)
        self.claims.append(former)
        if ends:
            self.end(0, count, True, name, None)
        else:
            self.append([(0, count)])
            self.append_again()

    @rule(owner=OWNERS, limit=st.integers(0, 3), lease_s=LEASES, both=st.booleans())
    def claim(self, owner: str, limit: int, lease_s: float, both: bool) -> None:
        models = ["m", "n"] if both else ["m"]
        self.claims += self.run_all("claim", owner, models, limit=limit, lease_s=lease_s)

    @rule(tenant=TENANTS, name=NAMES)
    def seize(self, tenant: str, name: str) -> None:
        claim = self.run_all("seize", tenant, f"resp_{name}")
        if claim is not None:
            self.claims.append(claim)

    @rule(owner=OWNERS, alive=st.booleans())
    def beat(self, owner: str, alive: bool) -> None:
        self.run_all("beat" if alive else "release", owner)

    @rule(picks=st.lists(st.tuples(PICKS, COUNTS), min_size=1, max_size=4))
    def append(self, picks: list[tuple[int, int]]) -> None:
        """By whoever once had a claim, whether or not it still holds."""
        appends: list[Append] = []
        ends: dict[tuple[str, str], int] = {}
        for pick, count in picks:
            if self.claims:
                claim = self.claims[-1 - pick % len(self.claims)]
                key = (claim.job.tenant, claim.job.id)
                if key in ends and self.one_epoch(appends, claim):
                    first = ends[key]
                elif key not in ends:
                    first = self.number(claim)
                else:
                    continue
                appends.append(Append(claim, batch(first, count, b"\1\0\0\0")))
                ends[key] = first + count
        self.asked = tuple(appends)
        self.run_all("append", self.asked)

    @rule()
    def append_again(self) -> None:
        """As whoever got no answer."""
        self.run_all("append", self.asked)

    @rule(
        pick=st.integers(0, 3),
        count=st.integers(0, 2),
        kept=st.booleans(),
        talk=st.none() | NAMES,
        expires=st.none() | st.integers(1, 5),
    )
    def end(self, pick: int, count: int, kept: bool, talk: str | None, expires: int | None) -> None:
        if not self.claims:
            return
        claim = self.claims[-1 - pick % len(self.claims)]
        tenant, name = claim.job.tenant, claim.job.id.removeprefix("resp_")
        stored = self.aged(ended(name, store=kept, previous=self.parents[tenant, name]))
        self.run_all(
            "end",
            claim,
            stored,
            batch(self.number(claim), count),
            conversation=None if talk is None else f"conv_{talk}",
            expires_at=None if expires is None else self.clock + expires,
        )

    @rule(tenant=TENANTS, name=NAMES, after=st.integers(-1, 20), limit=st.integers(1, 9))
    def events(self, tenant: str, name: str, after: int, limit: int) -> None:
        self.run_all("events", tenant, f"resp_{name}", after, limit=limit)

    @rule(tenant=TENANTS, talk=NAMES, name=NAMES, owner=OWNERS, lease_s=LEASES)
    def hold(self, tenant: str, talk: str, name: str, owner: str, lease_s: float) -> None:
        kept = self.all("load", tenant, f"resp_{name}")
        if kept is None or kept.response.status == "queued":  # what is over holds nothing
            self.run_all("hold", tenant, f"conv_{talk}", f"resp_{name}", owner, lease_s=lease_s)

    @rule(tenant=TENANTS, talk=NAMES, name=NAMES)
    def let_go(self, tenant: str, talk: str, name: str) -> None:
        self.run_all("let_go", tenant, f"conv_{talk}", f"resp_{name}")

    @rule(tenant=TENANTS, name=NAMES)
    def read_on(self, tenant: str, name: str) -> None:
        """A follower takes what there is. Some are slow: they were last here long ago."""
        self.each(lambda world: read_on(world, tenant, f"resp_{name}"))

    def number(self, claim: Claim) -> int:
        """Of the next event of its run."""
        history: tuple[EventBatch, ...] = self.run_all("history", claim)
        return history[-1].last + 1 if history else 0

    def one_epoch(self, appends: list[Append], claim: Claim) -> bool:
        """Whether the others of its run were claimed as this one was."""
        return all(
            each.claim.epoch == claim.epoch for each in appends if each.claim.job == claim.job
        )


async def read_on(world: World, tenant: str, name: str) -> list[int] | None:
    """The numbers of the events that a follower finds, as readers read them, until it would have to
    wait. None: the run is gone, and what a follower still got of it is luck."""
    runs, numbers = world.store.runs, list[int]()
    if (tenant, name) not in world.readers:
        world.readers[tenant, name] = (runs.subscribe(tenant, name), -1)
        world.readers[tenant, name][0].is_stale = True
    tail, after = world.readers[tenant, name]
    while True:
        batches: tuple[EventBatch, ...] = ()
        if (found := tail.next_batch(after)) is not None:
            batches = (found,)
        elif not tail.is_stale:
            break
        else:
            tail.is_stale = False
            page = await runs.events(tenant, name, after, limit=5)
            if page is None or page.ended:
                world.leave(tenant, name)
            if page is None:
                return None
            batches = page.batches
            tail.is_stale = tail.is_stale or bool(batches)
        for each in batches:
            numbers += range(max(each.first, after + 1), each.last + 1)
            after = each.last
        if (tenant, name) not in world.readers:
            return numbers
        world.readers[tenant, name] = (tail, after)
    return numbers


def test_all_stores_agree(database: Postgres) -> None:
    Agreement.database = database
    run_state_machine_as_test(
        Agreement,
        settings=examples(
            12, fuzz=200, stateful_step_count=50, suppress_health_check=list(HealthCheck)
        ),
    )

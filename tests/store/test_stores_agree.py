"""Any sequence of calls gives the same results in every store as in the memory store."""

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
from antiphon.store.common.subscriptions import Subscription
from antiphon.store.journal import JournalEntry
from antiphon.store.records import (
    Append,
    Claim,
    ClaimQuery,
    ConversationLock,
    EventBatch,
    NewRun,
    RunEnd,
    StoredResponse,
    TenantUsage,
)
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.store_checks.responses import make_response
from antiphon.testing.store_checks.runs import batch, ended_response, job, queued_response
from antiphon.wire.resources.conversations import ConversationResource
from tests.hypothesis_settings import examples
from tests.real.postgres import Postgres

NAMES = st.sampled_from("abc")
TENANTS = st.sampled_from("tttttu")
OWNERS = st.sampled_from(["one", "two"])
#: Tests do not wait: a lease of 0 has expired at once, the other one never expires.
LEASES = st.sampled_from([0, 10_000])
PICKS = st.integers(0, 5)
COUNTS = st.integers(1, 3)


class StoreUnderTest(Struct):
    """A store, its subscriptions with the last event that each has read, and its rows of runs, by
    tenant, id and epoch.

    Tests create runs with the id of a deleted run. For a claim of the deleted run, the row of the
    new run is used, because the memory store and SQLite find runs by their ids.
    """

    store: Store
    readers: dict[tuple[str, str], tuple[Subscription, int]] = {}
    rows: dict[tuple[str, str, int], int] = {}

    def without_row(self, claim: Claim) -> Claim:
        """Remember the claim's row, which differs between stores."""
        self.rows[_row_key(claim)] = claim.row
        return replace(claim, row=0)

    async def claim(self, query: ClaimQuery) -> tuple[Claim, ...]:
        claims = await self.store.runs.claim(query)
        return tuple(map(self.without_row, claims))

    async def take_over(self, tenant: str, response_id: str) -> Claim | None:
        claim = await self.store.runs.take_over(tenant, response_id)
        return None if claim is None else self.without_row(claim)

    async def usage(self, tenant: str) -> TenantUsage:
        """Return what the tenant uses. Only whether it uses bytes is equal in all stores, because
        each has its own form of a response."""
        usage = await self.store.usage(tenant)
        return replace(usage, responses_bytes=min(usage.responses_bytes, 1))

    async def append(self, appends: tuple[Append, ...]) -> frozenset[str]:
        return await self.store.runs.append(
            [
                replace(each, claim=replace(each.claim, row=self.rows[_row_key(each.claim)]))
                for each in appends
            ]
        )

    def unsubscribe(self, tenant: str, name: str) -> None:
        """Close the subscription of this run."""
        if (tenant, name) in self.readers:
            self.readers.pop((tenant, name))[0].__exit__(None, None, None)


def _row_key(claim: Claim) -> tuple[str, str, int]:
    return claim.job.tenant, claim.job.id, claim.epoch


def lock_of(conversation: str | None, owner: str) -> ConversationLock | None:
    """The lock of this conversation, None without one."""
    return None if conversation is None else ConversationLock(f"conv_{conversation}", owner)


class StoreMachine(RuleBasedStateMachine):
    """Makes the same calls on every store. The memory store is the reference."""

    database: ClassVar[Postgres]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.worlds = self.loop.run_until_complete(self.opened())
        #: The parent of each response at its first save: no response is its own ancestor.
        self.parents: dict[tuple[str, str], str | None] = {}
        self.claims: list[Claim] = []
        #: The responses that had a run.
        self.background: set[tuple[str, str]] = set()
        self.last_append: tuple[Append, ...] = ()
        self.clock = 0

    async def opened(self) -> list[StoreUnderTest]:
        urls = [
            f"sqlite:{self.folder.name}/a.db",
            await self.database.create_migrated_database(),
        ]
        stores = [MemoryStore(), *[await open_store(url) for url in urls]]
        return [StoreUnderTest(store) for store in stores]

    def teardown(self) -> None:
        async def close() -> None:
            for world in self.worlds:
                for key in list(world.readers):
                    world.unsubscribe(*key)
                await world.store.close()
            self.database.give_back()

        try:
            for tenant in "tu":
                for name in "abc":
                    self.load_everything(tenant, name)
                    self.read_on(tenant, name)
        finally:
            self.loop.run_until_complete(close())
            self.loop.close()
            self.folder.cleanup()

    def each(self, ask: Callable[[StoreUnderTest], Awaitable[Any]]) -> Any:
        """Call every store; return the result, which must be the same."""

        async def one(world: StoreUnderTest) -> Any:
            try:
                async with asyncio.timeout(60):
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

    def parent(self, tenant: str, name: str, wanted: str | None) -> str | None:
        if wanted == name or self.all("load", tenant, f"resp_{wanted}") is None:
            wanted = None
        return self.parents.setdefault((tenant, name), wanted)

    def with_unique_time(self, stored: StoredResponse) -> StoredResponse:
        """Return the response with a unique creation time, so that the oldest is well defined."""
        self.clock += 1
        return replace(stored, response=replace(stored.response, created_at=self.clock))

    # --- responses -------------------------------------------------------------------------------

    @rule(
        tenant=TENANTS,
        name=NAMES,
        on=st.none() | NAMES,
        added=NAMES,
        talk=st.none() | NAMES,
        owner=OWNERS,
        locked=st.booleans(),
    )
    def save(
        self,
        tenant: str,
        name: str,
        on: str | None,
        added: str,
        talk: str | None,
        owner: str,
        locked: bool,
    ) -> None:
        """Save a response, perhaps again, in a conversation, or with an item of another
        response."""
        items = () if added == name else make_response(added).input
        stored = self.with_unique_time(
            make_response(name, self.parent(tenant, name, on), added=items)
        )
        is_background = (tenant, name) in self.background
        stored = replace(stored, response=replace(stored.response, background=is_background))
        if locked and talk is not None:
            self.lock(tenant, talk, name, owner, 10_000)
        self.all("save", tenant, stored, lock=lock_of(talk, owner))

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
    def load_everything(self, tenant: str, name: str) -> None:
        self.all("load", tenant, f"resp_{name}")
        self.all("load_chain", tenant, f"resp_{name}")
        self.each(lambda world: world.usage(tenant))
        self.all("load_item", tenant, f"msg_i_{name}")
        self.all("load_item", tenant, f"msg_o_{name}")
        self.all("load_conversation", tenant, f"conv_{name}")
        self.all("load_conversation_items", tenant, f"conv_{name}")
        self.run_all("load_batches", Claim(job=job(name, tenant), epoch=0))
        self.events(tenant, name, -1, 1_000)

    # --- conversations ---------------------------------------------------------------------------

    @rule(tenant=TENANTS, name=NAMES, added=NAMES)
    def save_conversation(self, tenant: str, name: str, added: str) -> None:
        label = ConversationResource(
            id=f"conv_{name}", created_at=1, metadata={"at": str(self.clock)}
        )
        self.all("save_conversation", tenant, label, make_response(added).input)

    @rule(tenant=TENANTS, name=NAMES, added=NAMES, gone=st.booleans())
    def change_items(self, tenant: str, name: str, added: str, gone: bool) -> None:
        if gone:
            self.all("remove_conversation_item", tenant, f"conv_{name}", f"msg_i_{added}")
        else:
            self.all("add_conversation_items", tenant, f"conv_{name}", make_response(added).input)

    @rule(tenant=TENANTS, name=NAMES, old=st.none() | NAMES, new=st.none() | NAMES)
    def replace_value(self, tenant: str, name: str, old: str | None, new: str | None) -> None:
        values = (None if text is None else text.encode() for text in (old, new))
        self.each(lambda world, pair=tuple(values): world.store.values.replace(tenant, name, *pair))
        self.each(lambda world: world.store.values.read(tenant, name))

    @rule(tenant=TENANTS, name=NAMES, key=NAMES, owner=OWNERS, is_approval=st.booleans())
    def begin_entry(self, tenant: str, name: str, key: str, owner: str, is_approval: bool) -> None:
        """Begin an entry of the journal. Each call has a new key, because stores delete the entries
        of calls at different times."""
        if not is_approval:
            self.clock += 1
            key = str(self.clock)
        entry = JournalEntry(
            key=key, response_id=f"resp_{name}", attempt=owner, is_approval=is_approval
        )
        self.each(lambda world: world.store.journal.begin(tenant, [entry], self.clock))

    @rule(tenant=TENANTS, key=NAMES, old=st.none() | NAMES, new=st.none() | NAMES)
    def settle_entry(self, tenant: str, key: str, old: str | None, new: str | None) -> None:
        pair = [None if text is None else text.encode() for text in (old, new)]
        self.each(lambda world: world.store.journal.settle(tenant, key, *pair))
        self.each(lambda world: world.store.journal.find(tenant, [key]))

    @rule(tenant=TENANTS, name=NAMES)
    def delete_conversation(self, tenant: str, name: str) -> None:
        self.all("delete_conversation", tenant, f"conv_{name}")

    # --- runs ------------------------------------------------------------------------------------

    @rule(
        tenant=TENANTS,
        name=NAMES,
        on=st.none() | NAMES,
        model=st.sampled_from("mmn"),
        lock=st.none() | st.builds(ConversationLock, NAMES.map("conv_{}".format), OWNERS),
    )
    def begin(
        self,
        tenant: str,
        name: str,
        on: str | None,
        model: str,
        lock: ConversationLock | None = None,
    ) -> None:
        stored = self.with_unique_time(
            queued_response(name, previous=self.parent(tenant, name, on))
        )
        run = NewRun(job=job(name, tenant, model), stored=stored, batch=batch(0, 2), lock=lock)
        created = self.run_all("create", run)
        if created is True:
            self.background.add((tenant, name))
            # Subscriptions of a former run of this id end.
            for world in self.worlds:
                world.unsubscribe(tenant, f"resp_{name}")

    @rule(name=NAMES, on=st.none() | NAMES, owner=OWNERS, talk=st.none() | NAMES, count=COUNTS)
    def run_without_failures(
        self, name: str, on: str | None, owner: str, talk: str | None, count: int
    ) -> None:
        """Start a run without failures."""
        if talk is not None:
            self.lock("t", talk, name, owner, 10_000)
        self.begin("t", name, on, "m", lock_of(talk, owner))
        self.claim(owner, 9, 10_000, True)
        self.read_on("t", name)
        self.append([(0, count)])

    @rule(pick=PICKS, name=NAMES, seized=st.booleans(), count=COUNTS, ends=st.booleans())
    def take_over_and_continue(
        self, pick: int, name: str, seized: bool, count: int, ends: bool
    ) -> None:
        """Take a run over; its former owner continues to write."""
        if not self.claims:
            return
        former = self.claims[-1 - pick % len(self.claims)]
        if seized:
            self.take_over(former.job.tenant, former.job.id.removeprefix("resp_"))
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
        query = ClaimQuery(owner=owner, models=models, limit=limit, lease_s=lease_s)
        self.claims += self.each(lambda world: world.claim(query))

    @rule(tenant=TENANTS, name=NAMES)
    def take_over(self, tenant: str, name: str) -> None:
        claim = self.each(lambda world: world.take_over(tenant, f"resp_{name}"))
        if claim is not None:
            self.claims.append(claim)

    @rule(owner=OWNERS, lease_s=LEASES, forgets=st.booleans())
    def heartbeat(self, owner: str, lease_s: float, forgets: bool) -> None:
        held = [] if forgets else None
        query = ClaimQuery(owner=owner, models=["m"], lease_s=lease_s, held=held)
        self.run_all("heartbeat", query)

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        self.run_all("release", owner)

    @rule(picks=st.lists(st.tuples(PICKS, COUNTS), min_size=1, max_size=4))
    def append(self, picks: list[tuple[int, int]]) -> None:
        """Append with any claim, valid or not."""
        appends: list[Append] = []
        ends: dict[tuple[str, str], int] = {}
        for pick, count in picks:
            if self.claims:
                claim = self.claims[-1 - pick % len(self.claims)]
                key = (claim.job.tenant, claim.job.id)
                if key in ends and self.have_same_epoch(appends, claim):
                    first = ends[key]
                elif key not in ends:
                    first = self.next_number(claim)
                else:
                    continue
                appends.append(Append(claim, batch(first, count, b"\1\0\0\0")))
                ends[key] = first + count
        self.last_append = tuple(appends)
        self.each(lambda world: world.append(self.last_append))

    @rule()
    def append_again(self) -> None:
        """Repeat the last append, like an owner that got no answer."""
        self.each(lambda world: world.append(self.last_append))

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
        stored = self.with_unique_time(
            ended_response(name, store=kept, previous=self.parents[tenant, name])
        )
        end = RunEnd(
            stored=stored,
            batch=batch(self.next_number(claim), count),
            conversation=None if talk is None else f"conv_{talk}",
            expires_at=None if expires is None else self.clock + expires,
        )
        self.run_all("end", claim, end)

    @rule(tenant=TENANTS, name=NAMES, after=st.integers(-1, 20), limit=st.integers(1, 9))
    def events(self, tenant: str, name: str, after: int, limit: int) -> None:
        self.run_all("events", tenant, f"resp_{name}", after, limit=limit)

    @rule(tenant=TENANTS, talk=NAMES, name=NAMES, owner=OWNERS, lease_s=LEASES)
    def lock(self, tenant: str, talk: str, name: str, owner: str, lease_s: float) -> None:
        stored = self.all("load", tenant, f"resp_{name}")
        if stored is None or stored.response.status == "queued":  # finished runs lock no locks
            lock = ConversationLock(f"conv_{talk}", owner)
            self.run_all("lock_conversation", tenant, f"resp_{name}", lock, lease_s=lease_s)

    @rule(tenant=TENANTS, talk=NAMES, name=NAMES)
    def unlock(self, tenant: str, talk: str, name: str) -> None:
        self.run_all("unlock_conversation", tenant, f"conv_{talk}", f"resp_{name}")

    @rule(tenant=TENANTS, name=NAMES)
    def read_on(self, tenant: str, name: str) -> None:
        """Read new events of a subscription. Rarely chosen subscriptions lag."""
        self.each(lambda world: read_on(world, tenant, f"resp_{name}"))

    def next_number(self, claim: Claim) -> int:
        """Return the next sequence next_number of the run."""
        history: tuple[EventBatch, ...] = self.run_all("load_batches", claim)
        return history[-1].last + 1 if history else 0

    def have_same_epoch(self, appends: list[Append], claim: Claim) -> bool:
        """Return whether all appends to this run have the epoch of ``claim``."""
        return all(
            each.claim.epoch == claim.epoch for each in appends if each.claim.job == claim.job
        )


async def read_on(world: StoreUnderTest, tenant: str, name: str) -> list[int] | None:
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
                world.unsubscribe(tenant, name)
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


def test_claim_of_a_deleted_run_counts_for_a_run_with_the_same_id(database: Postgres) -> None:
    """A sequence of calls that a search has found."""
    StoreMachine.database = database
    machine = StoreMachine()
    machine.run_without_failures(name="c", on=None, owner="one", talk=None, count=1)
    machine.end(pick=1, count=0, kept=False, talk=None, expires=None)
    machine.sweep(most=None, age=None, log_age=None, empty=True)
    machine.begin(tenant="t", name="c", on=None, model="n", lock=None)
    machine.take_over_and_continue(pick=0, name="a", seized=False, count=1, ends=False)
    machine.teardown()


def test_all_stores_agree(database: Postgres) -> None:
    StoreMachine.database = database
    run_state_machine_as_test(
        StoreMachine,
        settings=examples(
            12, fuzz=200, stateful_step_count=50, suppress_health_check=list(HealthCheck)
        ),
    )

"""Checks that a store fulfils its contract for operations on whole tenants and for the audit
log."""

from __future__ import annotations

from typing import Any

from antiphon.store.audit import AuditQuery, AuditRecord
from antiphon.store.base import Retention, Store
from antiphon.store.files import FileQuery
from antiphon.store.journal import JournalEntry
from antiphon.store.records import (
    ClaimQuery,
    ConversationLock,
    NewRun,
    Reservation,
    ResponseQuery,
    TenantUsage,
    WebhookEvent,
)
from antiphon.store.usage import UsageQuery, UsageRecord
from antiphon.wire.resources.conversations import ConversationResource

from .files import make_file
from .responses import make_response
from .runs import batch, job, queued_response
from .skills import make_draft
from .vectors import make_indexed_file, make_vector_store

_DAY = 86_400
#: Number of items and usage records. It is more than a store deletes in one step.
_MANY = 501


def _conversation(name: str) -> ConversationResource:
    return ConversationResource(id=f"conv_{name}", created_at=1_000, metadata={})


async def _fill(store: Store, tenant: str) -> None:
    """Store at least one object of each type for a tenant."""
    await store.save_conversation(tenant, _conversation("a"), make_response("a").input)
    assert await store.runs.lock_conversation(
        tenant, "resp_b", ConversationLock("conv_a", "one"), lease_s=60
    )
    lock = ConversationLock("conv_a", "one")
    assert await store.save(tenant, make_response("b"), lock=lock, usage=_usage(tenant, 1))
    await store.usage_log.add([_usage(tenant, _DAY)])
    await store.save(tenant, make_response("c", "b"))
    await store.delete(tenant, "resp_b")
    await store.runs.create(
        NewRun(job=job("r", tenant), stored=queued_response("r"), batch=batch(0, 2))
    )
    for owner in (tenant, f"{tenant}\x1fuploads"):
        assert await store.files.put(owner, make_file("a"), b"x")
    assert await store.vectors.put(tenant, make_vector_store())
    assert await store.vectors.add_files(tenant, [make_indexed_file("a")], None)
    assert await store.skills.create(tenant, make_draft("a"), b"zip")
    approval = JournalEntry(key="mcpr_a", response_id="resp_a", is_approval=True)
    await store.journal.begin(tenant, [approval], 1_000)
    await store.runs.add_webhooks([WebhookEvent(f"wh_{tenant}", b"", due_at=1.0, tenant=tenant)])
    assert await store.reserve_response(
        Reservation(
            tenant=tenant,
            response_id="resp_x",
            owner="one",
            max_responses=9,
            max_bytes=None,
            lease_s=60,
        )
    )


def _usage(tenant: str, start: int) -> UsageRecord:
    return UsageRecord(id=f"resp_{tenant}{start}", start=start, tenant=tenant, model="m")


async def _used(store: Store, tenant: str) -> int:
    query = UsageQuery(start=0, end=9 * _DAY, width=_DAY, tenants=(tenant,))
    return sum(each.requests for each in await store.usage_log.totals(query))


async def deletes_everything_of_a_tenant(store: Store) -> None:
    for tenant in ("t", "u", "t2"):
        await _fill(store, tenant)
    await store.sweep(Retention(), 2 * _DAY)  # some usage records are then merged to sums
    assert await store.delete_tenant("t") > 8
    assert await store.usage("t") == TenantUsage()
    assert await store.list_responses("t", ResponseQuery()) == ()
    for name in ("b", "c", "r"):
        assert await store.load("t", f"resp_{name}") is None
    assert await store.load_item("t", "msg_i_a") is None
    assert await store.list_conversations("t", limit=9) == ()
    assert await store.load_conversation_items("t", "conv_a") == ()
    assert await store.runs.events("t", "resp_r", -1, limit=9) is None
    assert await store.runs.count_unended("t") == 0
    for owner in ("t", "t\x1fuploads"):
        assert await store.files.list_page(owner, FileQuery()) == ()
        assert await store.files.read(owner, "file-a") is None
    assert await store.vectors.list_files("t", "vs_a") == ()
    assert await store.skills.read_bundle("t", "skill_a", 1) is None
    assert await store.journal.find("t", ["mcpr_a"]) == ()
    assert await store.reserve_response(
        Reservation(
            tenant="t",
            response_id="resp_y",
            owner="one",
            max_responses=1,
            max_bytes=None,
            lease_s=60,
        )
    )
    assert await _used(store, "t") == 0
    for tenant in ("u", "t2"):
        kept = await store.usage(tenant)
        assert (kept.responses, kept.files, kept.vector_stores, kept.queued_runs) == (2, 1, 1, 1)
        assert await _used(store, tenant) == 2
        assert await store.files.read(f"{tenant}\x1fuploads", "file-a") == b"x"
    query = ClaimQuery(owner="one", models=["m"], limit=9, lease_s=60)
    assert "t" not in [claim.job.tenant for claim in await store.runs.claim(query)]
    due = await store.runs.take_due_webhooks(9.0, 99.0, limit=9)
    assert "t" not in [webhook.tenant for webhook in due]
    assert await store.sweep(Retention(), 2 * _DAY) == 0


async def deletes_large_tenants_in_steps(store: Store) -> None:
    await store.save_conversation("t", _conversation("a"))
    items = tuple(make_response(str(number)).input[0] for number in range(_MANY))
    assert await store.add_conversation_items("t", "conv_a", items)
    await store.usage_log.add([_usage("t", number) for number in range(_MANY)])
    assert await store.delete_tenant("t") >= 1
    assert await store.load_conversation_items("t", "conv_a") == ()
    assert await _used(store, "t") == 0
    assert await store.delete_tenant("t") == 0


async def finds_nothing_for_names_with_nul(store: Store) -> None:
    """Operators can put any text into the URLs of queries and deletions, also U+0000."""
    await _fill(store, "t")
    await store.audit.add(_act(1, target="t"))
    name = "t\0"
    assert await store.audit.list(AuditQuery(after=name)) is None
    for query in (AuditQuery(type=name), AuditQuery(actor=name), AuditQuery(target=name)):
        assert await store.audit.list(query) == ()
    for field in ("tenants", "api_keys", "models"):
        filters: dict[str, Any] = {field: ("m\0", name)}
        usage = UsageQuery(start=0, end=9 * _DAY, width=_DAY, **filters)
        assert await store.usage_log.totals(usage) == ()
    assert not await store.keys.delete(name)
    assert await store.list_responses(name, ResponseQuery()) == ()
    assert await store.list_conversations(name, limit=9) == ()
    assert await store.files.list_page(name, FileQuery()) == ()
    assert await store.vectors.list_stores(name) == ()
    assert await store.skills.list_skills(name) == ()
    assert await store.delete_tenant(name) == 0
    assert (await store.usage("t")).responses == await _used(store, "t") == 2


async def lists_conversations_in_pages(store: Store) -> None:
    for name in "cab":
        await store.save_conversation("t", _conversation(name))
    await store.save_conversation("u", _conversation("x"))

    async def ids(after: str | None = None, limit: int = 9) -> list[str]:
        found = await store.list_conversations("t", after=after, limit=limit)
        return [each.id.removeprefix("conv_") for each in found]

    assert await ids() == ["c", "a", "b"]
    assert await ids(limit=2) == ["c", "a"]
    assert await ids("conv_a") == ["b"]
    assert await ids("conv_x") == [] == await ids("conv_b")


def _act(number: int, **fields: str) -> AuditRecord:
    return AuditRecord(
        id=f"audit_{number}", at=number, **{"type": "api_key.created", "actor": "k", **fields}
    )


async def pages_and_filters_the_audit_log(store: Store) -> None:
    records = [_act(1), _act(2, target="x"), _act(3, type="tenant.deleted"), _act(4, actor="")]
    for record in records:
        await store.audit.add(record)
    assert await store.audit.list(AuditQuery()) == tuple(records[::-1])

    async def numbers(**fields: object) -> list[int] | None:
        query = AuditQuery(newest_first=False, **fields)  # type: ignore[arg-type]
        found = await store.audit.list(query)
        return None if found is None else [record.at for record in found]

    assert await numbers(limit=2) == [1, 2]
    assert await numbers(after="audit_2") == [3, 4]
    assert await numbers(after="audit_9") is None
    assert await numbers(type="tenant.deleted") == [3]
    assert await numbers(actor="k", start=2) == [2, 3]
    assert await numbers(target="x") == [2]
    assert await numbers(end=3) == [1, 2]
    (newest,) = await store.audit.list(AuditQuery(after="audit_3", limit=1)) or ()
    assert newest == records[1]


async def expires_audit_records(store: Store) -> None:
    for number in (10, 20, 30):
        await store.audit.add(_act(number))
    await store.sweep(Retention(), 40)
    assert len(await store.audit.list(AuditQuery()) or ()) == 3
    await store.sweep(Retention(max_audit_age_s=20), 40)
    assert [record.at for record in await store.audit.list(AuditQuery()) or ()] == [30, 20]

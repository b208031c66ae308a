"""The in-memory store, the reference implementation of a store. Its data does not survive the
process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import StoreError
from antiphon.store.base import Retention, Store
from antiphon.store.common.eviction import TenantTotals
from antiphon.store.common.saving import Saving
from antiphon.store.containers import ContainerDirectory
from antiphon.store.keys import KeyStore
from antiphon.store.rates import RateStore
from antiphon.store.records import (
    ConversationLock,
    ItemQuery,
    Reservation,
    ResponseQuery,
    StoredResponse,
    TenantUsage,
    exceeds,
)
from antiphon.store.skills import SkillStore
from antiphon.store.sql.row_mapping import item_kind
from antiphon.store.usage import UsageRecord
from antiphon.testing.memory_store.logs import MemoryAudit, MemoryJournal, MemoryUsage
from antiphon.wire.items import Item
from antiphon.wire.resources.conversations import ConversationResource
from antiphon.wire.response_list import ResponseSummary, summarize

from .files import MemoryFiles
from .part import Part
from .runs import MemoryRuns
from .values import MemoryValues, drop_tenant
from .vectors import MemoryVectorIndex

__all__ = ["MemoryStore"]

_encode = msgspec.json.Encoder().encode


class _ResponseRow(Struct):
    """A stored response.

    ``order``: a number that shows when the response was first saved. Responses that were saved
    later have higher numbers. ``listed``: whether other requests can refer to the items of the
    response by id. ``live``: False if the response was deleted and is kept only because its
    descendants need it.
    """

    stored: StoredResponse
    bytes: int
    order: int
    listed: bool
    live: bool = True
    expires_at: int | None = None

    @property
    def items(self) -> tuple[Item, ...]:
        return (*self.stored.input, *self.stored.response.output)


class _ConversationRow(Struct):
    """A conversation and its items by id, in the order of the conversation."""

    conversation: ConversationResource
    items: dict[str, Item] = {}

    def add(self, items: tuple[Item, ...]) -> None:
        for item in items:
            self.items.setdefault(item.id, item)

    def select(self, query: ItemQuery) -> Iterator[Item]:
        """Yield the items that a query selects. The limit of the query is ignored."""
        ids: Iterator[str] = reversed(self.items) if query.newest_first else iter(self.items)
        if query.after is not None:
            for id in ids:
                if id == query.after:
                    break
                if id == query.until:
                    return
        for id in ids:
            if id == query.until:
                return
            item = self.items[id]
            if query.kinds is None or item_kind(item) in query.kinds:
                yield item


_Key = tuple[str, str]


class MemoryStore(Part, Store):
    """Implements ``Store`` with dictionaries, which tests can read. ``rows``: the responses.
    ``conversations``: the conversations with their items."""

    def __init__(self) -> None:
        super().__init__(self._raise_if_closed)
        self.rows: dict[_Key, _ResponseRow] = {}
        #: Keys of responses, by the key of their parent (``_children``), and by the tenant and id
        #: of each of their items (``_holders``).
        self._children: dict[_Key, set[_Key]] = {}
        self._holders: dict[_Key, set[_Key]] = {}
        self.conversations: dict[_Key, _ConversationRow] = {}
        self._order = 0
        self._closed = False
        self.values = MemoryValues(self._check)
        self.keys = KeyStore(self.values)
        self.rates = RateStore(self.values)
        self.containers = ContainerDirectory(self.values)
        self.skills = SkillStore(self.values)
        self.audit = MemoryAudit(self._check)
        self.usage_log = MemoryUsage(self._check)
        self.runs = MemoryRuns(self._save, self._check)
        self.journal = MemoryJournal(self._check, self.runs.is_running)
        self.vectors = MemoryVectorIndex(self._check)
        self.files = MemoryFiles(self._check, on_deleted=self.vectors.forget_file)

    async def save(
        self,
        tenant: str,
        stored: StoredResponse,
        *,
        lock: ConversationLock | None = None,
        usage: UsageRecord | None = None,
    ) -> bool:
        saving = Saving(tenant=tenant, stored=stored, usage=usage)
        if lock is None:
            self._save(saving)
            return True
        name = stored.response.id
        if (tenant, name) in self.rows:
            return True
        is_locked = self.runs.is_locked(tenant, name, lock)
        if is_locked:
            self._save(replace(saving, conversation=lock.conversation))
        return is_locked

    def _save(self, saving: Saving) -> None:
        stored = saving.stored
        if saving.usage is not None:
            self.usage_log.add_now(saving.usage)
        key = (saving.tenant, stored.response.id)
        old = self.rows.get(key)
        if old is not None:
            self._unlink(key, old)
        self._order += 1
        order = old.order if old else self._order
        row = _ResponseRow(
            stored, len(_encode(stored)), order, saving.listed, expires_at=saving.expires_at
        )
        self.rows[key] = row
        self._children.setdefault(_parent(key, row), set()).add(key)
        for item in row.items if saving.listed else ():
            self._holders.setdefault((saving.tenant, item.id), set()).add(key)
        conversation_row = self.conversations.get((saving.tenant, saving.conversation or ""))
        if conversation_row is not None:
            conversation_row.add(row.items)

    async def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        row = self.rows.get((tenant, response_id))
        return row.stored if row is not None and row.live else None

    async def load_chain(self, tenant: str, response_id: str) -> tuple[StoredResponse, ...] | None:
        row = self.rows.get((tenant, response_id))
        if row is None or not row.live:
            return None
        chain: list[StoredResponse] = []
        key = (tenant, response_id)
        while row is not None:
            chain.append(row.stored)
            key = _parent(key, row)
            row = self.rows.get(key)
        return tuple(reversed(chain))

    async def list_responses(
        self, tenant: str, query: ResponseQuery
    ) -> tuple[ResponseSummary, ...] | None:
        after = self.rows.get((tenant, query.after or ""))
        if query.after is not None and (after is None or not after.live):
            return None
        sign = -1 if query.newest_first else 1
        rows = [row for (owner, _), row in self.rows.items() if owner == tenant and row.live]
        rows.sort(key=lambda row: sign * row.order)
        found = (
            summarize(row.stored.response, row.stored.input)
            for row in rows
            if after is None or sign * row.order > sign * after.order
        )
        return tuple(islice((each for each in found if _matches(each, query)), query.limit))

    async def load_item(self, tenant: str, item_id: str) -> Item | None:
        rows = (self.rows[key] for key in self._holders.get((tenant, item_id), ()))
        newest = max((row for row in rows if row.live), key=lambda row: row.order, default=None)
        if newest is None:
            return self._conversation_item(tenant, item_id)
        return next(item for item in newest.items if item.id == item_id)

    async def delete(self, tenant: str, response_id: str) -> bool:
        key = (tenant, response_id)
        row = self.rows.get(key)
        if row is None or not row.live:
            return False
        row.live = False
        self.runs.delete(key)
        self._free_unneeded(key)
        return True

    async def delete_tenant(self, tenant: str) -> int:
        total = self.runs.delete_tenant(tenant)
        for key in [key for key in self.rows if key[0] == tenant]:
            self._unlink(key, self.rows.pop(key))
            total += 1
        total += drop_tenant(self.conversations, tenant)
        total += sum(
            part.delete_tenant(tenant)
            for part in (self.vectors, self.files, self.values, self.usage_log, self.journal)
        )
        return total + await self.containers.delete_tenant(tenant)

    async def usage(self, tenant: str) -> TenantUsage:
        rows = [row for key, row in self.rows.items() if key[0] == tenant]
        queued, running = self.runs.count_active(tenant)
        files, files_bytes = self.files.totals(tenant)
        return TenantUsage(
            responses=sum(row.live for row in rows),
            responses_bytes=sum(row.bytes for row in rows),
            queued_runs=queued,
            running_runs=running,
            files=files,
            files_bytes=files_bytes,
            vector_stores=self.vectors.count(tenant),
        )

    async def reserve_response(self, reservation: Reservation) -> bool:
        tenant, name, owner = reservation.tenant, reservation.response_id, reservation.owner
        self.runs.owners.record(owner)
        rows = {id: row for (each, id), row in self.rows.items() if each == tenant}
        names = {name} | self.runs.reservations.ids(tenant, reservation.lease_s)
        names |= {id for id, row in rows.items() if row.live}
        if exceeds(len(names), reservation.max_responses) or exceeds(
            sum(row.bytes for row in rows.values()) + 1, reservation.max_bytes
        ):
            return False
        self.runs.reservations.add(tenant, name, owner)
        return True

    async def release_reservation(self, tenant: str, response_id: str, owner: str) -> None:
        self.runs.reservations.remove(tenant, response_id, owner)

    async def sweep(self, retention: Retention, now: int) -> int:
        log_age_s = retention.max_log_age_s
        self.files.expire(now)
        self.vectors.expire(now)
        self.usage_log.sweep(now, retention.max_usage_age_s)
        if retention.max_audit_age_s is not None:
            self.audit.expire(now - retention.max_audit_age_s)
        self.runs.expire(int(now - log_age_s) if log_age_s is not None else None, now)
        max_age_s = retention.max_age_s
        self.journal.expire(None if max_age_s is None else now - max_age_s, self.runs.has_run)
        lapsed = [
            key
            for key, row in self.rows.items()
            if row.live and row.expires_at is not None and row.expires_at <= now
        ]
        for key in lapsed:
            await self.delete(*key)
        return len(lapsed) + self._expire(retention, now)

    def _expire(self, retention: Retention, now: int) -> int:
        live = [key for key, row in self.rows.items() if row.live]
        ended = [key for key in live if not self.runs.is_running(key)]
        ended.sort(key=lambda key: (self._created_at(key), self.rows[key].order))
        too_old = [key for key in ended if retention.is_too_old(now - self._created_at(key))]
        for key in too_old:
            self._expire_row(key)
        expired = len(too_old)
        totals = TenantTotals(
            retention, ((key[0], int(row.live), row.bytes) for key, row in self.rows.items())
        )
        oldest: dict[str, deque[_Key]] = {}
        for key in ended[expired:]:
            oldest.setdefault(key[0], deque()).append(key)
        while (tenant := totals.largest()) is not None:
            if not oldest.get(tenant):
                totals.exclude(tenant)
                continue
            totals.remove_responses(tenant, 1, self._expire_row(oldest[tenant].popleft()))
            expired += 1
        return expired

    def _created_at(self, key: _Key) -> int:
        return self.rows[key].stored.response.created_at

    def _expire_row(self, key: _Key) -> int:
        """Delete a response and its run. Return how many bytes became free."""
        self.rows[key].live = False
        self.runs.delete(key)
        return self._free_unneeded(key)

    async def save_conversation(
        self, tenant: str, conversation: ConversationResource, items: tuple[Item, ...] = ()
    ) -> None:
        conversation_row = self.conversations.setdefault(
            (tenant, conversation.id), _ConversationRow(conversation)
        )
        conversation_row.conversation = conversation
        conversation_row.add(items)

    async def list_conversations(
        self, tenant: str, *, after: str | None = None, limit: int
    ) -> tuple[ConversationResource, ...]:
        ids = [id for owner, id in self.conversations if owner == tenant]
        if after is not None:
            ids = ids[ids.index(after) + 1 :] if after in ids else []
        return tuple(self.conversations[tenant, id].conversation for id in ids[:limit])

    async def load_conversation(
        self, tenant: str, conversation_id: str
    ) -> ConversationResource | None:
        conversation_row = self.conversations.get((tenant, conversation_id))
        return conversation_row.conversation if conversation_row is not None else None

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        return self.conversations.pop((tenant, conversation_id), None) is not None

    async def add_conversation_items(
        self, tenant: str, conversation_id: str, items: tuple[Item, ...]
    ) -> bool:
        conversation_row = self.conversations.get((tenant, conversation_id))
        if conversation_row is None:
            return False
        conversation_row.add(items)
        return True

    async def list_conversation_items(
        self, tenant: str, conversation_id: str, query: ItemQuery
    ) -> tuple[Item, ...] | None:
        row = self.conversations.get((tenant, conversation_id))
        if row is None or not query.cursors <= row.items.keys():
            return None if query.cursors else ()
        return tuple(islice(row.select(query), query.limit))

    async def remove_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> bool:
        conversation_row = self.conversations.get((tenant, conversation_id))
        return (
            conversation_row is not None and conversation_row.items.pop(item_id, None) is not None
        )

    async def close(self) -> None:
        self._closed = True

    def _conversation_item(self, tenant: str, item_id: str) -> Item | None:
        """Return the item with this id from a conversation of the tenant. If several conversations
        contain it, return the item from the oldest of them. Return None if no conversation contains
        it."""
        conversation_rows = (
            conversation_row
            for (owner, _), conversation_row in self.conversations.items()
            if owner == tenant
        )
        return next(
            (
                conversation_row.items[item_id]
                for conversation_row in conversation_rows
                if item_id in conversation_row.items
            ),
            None,
        )

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise StoreError("The store is closed.")

    def _free_unneeded(self, key: _Key) -> int:
        """Remove a deleted response from memory if it has no descendants. Then do the same for its
        parent, if the parent is deleted too, and so on. Return how many bytes became free."""
        freed = 0
        row = self.rows.get(key)
        while row is not None and not row.live and key not in self._children:
            del self.rows[key]
            self._unlink(key, row)
            freed += row.bytes
            key = _parent(key, row)
            row = self.rows.get(key)
        return freed

    def _unlink(self, key: _Key, row: _ResponseRow) -> None:
        _discard(self._children, _parent(key, row), key)
        for item in row.items:
            _discard(self._holders, (key[0], item.id), key)


def _parent(key: _Key, row: _ResponseRow) -> _Key:
    """Return the key of the response's parent. For a response without a parent, return a key that
    no response has."""
    return (key[0], row.stored.response.previous_response_id or "")


def _discard(index: dict[_Key, set[_Key]], entry: _Key, key: _Key) -> None:
    """Remove a key from one entry of an index. If the entry becomes empty, remove the entry."""
    found = index.get(entry, set())
    found.discard(key)
    if not found:
        index.pop(entry, None)


def _matches(summary: ResponseSummary, query: ResponseQuery) -> bool:
    conversation = summary.conversation.id if summary.conversation else None
    wanted_and_found = (
        (query.status, summary.status),
        (query.model, summary.model),
        (query.previous_response_id, summary.previous_response_id),
        (query.conversation, conversation),
        (query.background, summary.background),
        (query.failed, summary.error is not None),
    )
    return (
        all(wanted in (None, found) for wanted, found in wanted_and_found)
        and (query.tool is None or query.tool in summary.labels)
        and (query.text is None or query.text.casefold() in summary.search_text)
    )

"""The store of responses and conversations in an SQL database."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from functools import partial
from typing import Generic

from msgspec.structs import replace

from antiphon.store.base import Store
from antiphon.store.common.response_lists import search_summaries
from antiphon.store.common.saving import Saving
from antiphon.store.keys import KeyStore
from antiphon.store.records import (
    ConversationLock,
    ItemQuery,
    ResponseQuery,
    StoredResponse,
    TenantUsage,
)
from antiphon.store.skills import SkillStore
from antiphon.store.sql.response_bodies import BodyDecoder
from antiphon.store.sql.row_mapping import (
    Columns,
    conversation_of,
    encode,
    item_kind,
    item_of,
    items_of,
    stored_of,
    summary_filters,
)
from antiphon.store.usage import UsageRecord
from antiphon.wire.items import Item
from antiphon.wire.resources.conversations import ConversationResource
from antiphon.wire.response_list import ResponseSummary

from .executor import Executor, Tx, first, index_key
from .files import SqlFiles
from .logs import SqlAudit, SqlJournal, SqlUsage
from .runs import SaveStep, SqlRuns
from .values import SqlValues


class SqlStore(Store, Generic[Tx]):
    """Implements ``Store`` with tables, except for what each database does in its own way: it saves
    and deletes responses, and reads their large columns. A subclass sets the parts ``runs``,
    ``vectors``, ``rates`` and ``containers``."""

    runs: SqlRuns[Tx]

    def __init__(self, executor: Executor[Tx]) -> None:
        self._executor = executor
        self.is_encrypted = executor.is_encrypted
        self.files = SqlFiles(executor)
        self.values = SqlValues(executor)
        self.journal = SqlJournal(executor)
        self.keys = KeyStore(self.values)
        self.skills = SkillStore(self.values)
        self.audit = SqlAudit(executor)
        self.usage_log = SqlUsage(executor)
        self._stored_of = partial(stored_of, BodyDecoder())

    async def _save(self, saving: Saving) -> None:
        """Save a response in a transaction of its own."""
        await self._executor.write(await self._prepare_save(saving))

    @abstractmethod
    async def _prepare_save(self, saving: Saving) -> SaveStep[Tx]:
        """Return a function that saves a response within a transaction, except for the items of its
        conversation."""

    async def _stored(self, name: str, *key: str) -> list[StoredResponse]:
        """Return the responses that a query finds."""
        return await self._executor.decoded_rows(self._stored_of, name, *key)

    async def _items(self, *key: str) -> list[tuple[Item, ...]]:
        """Return the input and the output of the response with an item."""
        return await self._executor.decoded_rows(items_of, "item", *key)

    @abstractmethod
    async def _summaries(
        self, tenant: str, query: ResponseQuery, filters: Columns, after: int | None
    ) -> list[ResponseSummary]:
        """Return a page of summaries. ``filters``: from ``summary_filters``. ``after``: the row
        number of the last response of the previous page."""

    # --- responses -------------------------------------------------------------------------------

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
            await self._save(saving)
            return True
        key = (tenant, stored.response.id)
        save = await self.prepare_save(replace(saving, conversation=lock.conversation))

        async def work(transaction: Tx) -> bool:
            is_locked = await self.runs.has_lock(transaction, *key, lock)
            if await transaction.value("stored_row", *key) is not None:
                return True
            if is_locked:
                await save(transaction)
            return is_locked

        return await self._executor.write(work)

    async def prepare_save(self, saving: Saving) -> SaveStep[Tx]:
        """Return a function that saves a response within a transaction."""
        save = await self._prepare_save(saving)
        conversation = saving.conversation
        if conversation is None:
            return save

        async def save_with_items(transaction: Tx) -> None:
            await save(transaction)
            added = (*saving.stored.input, *saving.stored.response.output)
            await _append(transaction, saving.tenant, conversation, added)

        return save_with_items

    async def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        return first(await self._stored("load", tenant, index_key(response_id)))

    async def has_response(self, tenant: str, response_id: str) -> bool:
        return await self._loadable_row(tenant, response_id) is not None

    async def load_chain(self, tenant: str, response_id: str) -> tuple[StoredResponse, ...] | None:
        return tuple(await self._stored("chain", tenant, index_key(response_id))) or None

    async def list_responses(
        self, tenant: str, query: ResponseQuery
    ) -> tuple[ResponseSummary, ...] | None:
        if self.is_encrypted and query.text:
            return await search_summaries(self.list_responses, tenant, query)
        after = None
        if query.after is not None:
            after = await self._loadable_row(tenant, query.after)
            if after is None:
                return None
        return tuple(await self._summaries(tenant, query, summary_filters(query), after))

    async def _loadable_row(self, tenant: str, response_id: str) -> int | None:
        found = await self._executor.rows("loadable_row", tenant, index_key(response_id))
        return found[0][0] if found else None

    async def load_item(self, tenant: str, item_id: str) -> Item | None:
        key = (tenant, index_key(item_id))
        if not (found := await self._items(*key)):
            return first(await self._executor.decoded_rows(item_of, "conversation_item", *key))
        return next((item for item in found[0] if item.id == item_id), None)

    async def usage(self, tenant: str) -> TenantUsage:
        return TenantUsage(*(await self._executor.rows("usage", tenant))[0])

    async def release_reservation(self, tenant: str, response_id: str, owner: str) -> None:
        await self._executor.change("release_reservation", tenant, index_key(response_id), owner)

    # --- conversations ---------------------------------------------------------------------------

    async def save_conversation(
        self, tenant: str, conversation: ConversationResource, items: tuple[Item, ...] = ()
    ) -> None:
        row = (tenant, index_key(conversation.id), encode(conversation))

        async def work(transaction: Tx) -> None:
            await transaction.change("put_conversation", *row)
            await _append(transaction, tenant, conversation.id, items)

        await self._executor.write(work)

    async def list_conversations(
        self, tenant: str, *, after: str | None = None, limit: int
    ) -> tuple[ConversationResource, ...]:
        page = (None if after is None else index_key(after), limit)
        return tuple(
            await self._executor.decoded_rows(conversation_of, "conversations", tenant, *page)
        )

    async def load_conversation(
        self, tenant: str, conversation_id: str
    ) -> ConversationResource | None:
        key = (tenant, index_key(conversation_id))
        return first(await self._executor.decoded_rows(conversation_of, "conversation", *key))

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        key = (tenant, index_key(conversation_id))
        return await self._executor.change("drop_conversation", *key, frees_space=True) > 0

    async def add_conversation_items(
        self, tenant: str, conversation_id: str, items: tuple[Item, ...]
    ) -> bool:
        return await self._executor.write(
            lambda transaction: _append(transaction, tenant, conversation_id, items)
        )

    async def load_conversation_items(self, tenant: str, conversation_id: str) -> tuple[Item, ...]:
        key = (tenant, index_key(conversation_id))
        return tuple(await self._executor.decoded_rows(item_of, "conversation_items", *key))

    async def list_conversation_items(
        self, tenant: str, conversation_id: str, query: ItemQuery
    ) -> tuple[Item, ...] | None:
        name = "newest_items" if query.newest_first else "oldest_items"
        ids = (conversation_id, query.after, query.until)
        keys = (None if id is None else index_key(id) for id in ids)
        arguments: Columns = (tenant, *keys, query.limit)
        if query.kinds is not None:
            name, arguments = f"{name}_of_kinds", (*arguments, sorted(query.kinds))
        items = await self._executor.decoded_rows(item_of, name, *arguments)
        if not items and query.cursors:
            found = await self.find_conversation_items(tenant, conversation_id, query.cursors)
            return () if len(found) == len(query.cursors) else None
        return tuple(items)

    async def find_conversation_items(
        self, tenant: str, conversation_id: str, item_ids: Collection[str]
    ) -> tuple[Item, ...]:
        key = (tenant, index_key(conversation_id), [index_key(id) for id in item_ids])
        return tuple(await self._executor.decoded_rows(item_of, "items_by_id", *key))

    async def remove_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> bool:
        key = (tenant, index_key(conversation_id))

        async def work(transaction: Tx) -> bool:
            row = await transaction.value("lock_conversation_row", *key)
            return await transaction.change("remove_item", row, index_key(item_id)) > 0

        return await self._executor.write(work, frees_space=True)


async def _append(transaction: Tx, tenant: str, conversation: str, items: tuple[Item, ...]) -> bool:
    """Append items to a conversation. Returns False if the conversation is unknown."""
    row = await transaction.value("lock_conversation_row", tenant, index_key(conversation))
    if row is None:
        return False
    rows = [(row, tenant, index_key(item.id), item_kind(item), encode(item)) for item in items]
    await transaction.change_many("add_item", rows)
    return True

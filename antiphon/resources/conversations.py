"""Conversations: stored lists of items. A response locks its conversation, so that no other
response adds items at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from antiphon.errors import InvalidRequest, NotFound, StoreError
from antiphon.resources.input_items import check_call_outputs, lacks_call_id, resolve_items
from antiphon.store.base import Store
from antiphon.store.records import ConversationLock, ItemQuery
from antiphon.stream.kinds import KINDS
from antiphon.stream.writer import Ids
from antiphon.support.tasks import BackgroundTasks, do_nothing, repeat_until_done
from antiphon.wire.cursors import (
    PageParams,
    make_page,
    page_of_found,
    page_query,
    unknown_cursor,
)
from antiphon.wire.items import Item
from antiphon.wire.pagination import Page
from antiphon.wire.parsing.errors import duplicate_item
from antiphon.wire.resources.conversations import ConversationResource, CreateConversation
from antiphon.wire.response import ConversationRef

#: Number of times to unlock a conversation after the store did not answer a lock or unlock request.
#: The unlocks are one lease apart. Three are enough: a request that this server has abandoned takes
#: effect in the store within two leases, or never.
_UNLOCKS = 3


class ConversationLockHandle(Struct, frozen=True):
    """The lock that a response holds on its conversation. ``lock`` is None if the response belongs
    to no conversation. ``release``: a function that unlocks the conversation. It may be called
    repeatedly and does not raise ``StoreError``."""

    lock: ConversationLock | None = None
    release: Callable[[], Awaitable[None]] = do_nothing


def conversation_locked() -> InvalidRequest:
    """Return the error for a request in a conversation that another response has locked. The HTTP
    status is 400 and not 409, because clients immediately retry a request that fails with 409."""
    return InvalidRequest(
        "Another process is currently operating on this conversation. Please retry in a few "
        "seconds.",
        param="conversation",
        code="conversation_locked",
    )


class Conversations:
    """Operations on conversations. All methods raise ``NotFound`` for unknown ids.

    ``clock`` returns Unix seconds. ``owner``: name of this server in the store, as the owner of
    locks. ``lease_s``: number of seconds after which a lock expires if its owner does not renew it.
    ``on_deleted``: called with the tenant and the id of each conversation that was deleted, or of
    which an item was deleted. ``on_deleting``: called before an item is deleted.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float],
        ids: Ids,
        owner: str = "",
        lease_s: float = 5.0,
        on_deleted: Callable[[str, str], None] = lambda tenant, conversation_id: None,
        on_deleting: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        self._on_deleted = on_deleted
        self._on_deleting = on_deleting
        self._store = store
        self._clock = clock
        self._ids = ids
        self._owner = owner
        self._lease_s = lease_s
        #: Tasks that repeat an unlock until the store confirms it.
        self._unlocks = BackgroundTasks("unlocking of a conversation")

    async def create(self, tenant: str, request: CreateConversation) -> ConversationResource:
        """Create a conversation with its first items. Raises ``InvalidRequest`` for an output
        without its call, with which no response could use the conversation."""
        conversation = ConversationResource(
            id=self._ids("conv"), created_at=int(self._clock()), metadata=request.metadata or {}
        )
        items = await resolve_items(request.items, self._store, tenant, self._ids, param="items")
        check_call_outputs(items, waiting=True, own=items, param="items")
        await self._store.save_conversation(tenant, conversation, items)
        return conversation

    async def retrieve(
        self, tenant: str, conversation_id: str, *, param: str = "conversation_id"
    ) -> ConversationResource:
        """Return a conversation without its items. ``param``: the name of the request field that
        holds the id, for the error if the conversation does not exist."""
        found = await self._store.load_conversation(tenant, conversation_id)
        if found is None:
            raise NotFound(f"Conversation with id '{conversation_id}' not found.", param=param)
        return found

    async def update(
        self, tenant: str, conversation_id: str, metadata: dict[str, str]
    ) -> ConversationResource:
        """Replace the metadata of a conversation."""
        old = await self.retrieve(tenant, conversation_id)
        new = ConversationResource(id=old.id, created_at=old.created_at, metadata=metadata)
        await self._store.save_conversation(tenant, new)
        return new

    async def delete(self, tenant: str, conversation_id: str) -> None:
        """Delete the conversation. Its responses are kept."""
        if not await self._store.delete_conversation(tenant, conversation_id):
            await self.retrieve(tenant, conversation_id)
        self._on_deleted(tenant, conversation_id)

    async def add_items(
        self, tenant: str, conversation_id: str, items: tuple[Item, ...]
    ) -> Page[Item]:
        """Append items to a conversation. Raises ``InvalidRequest`` if the conversation already
        contains one of the items, or lacks the call of an output."""
        await self.retrieve(tenant, conversation_id)
        past = await self._items_for(tenant, conversation_id, items)
        resolved = await resolve_items(items, self._store, tenant, self._ids, past, param="items")
        if any(KINDS[type(item)].answers is not None for item in resolved):
            past = await self._store.load_conversation_items(tenant, conversation_id)
        check_call_outputs((*past, *resolved), waiting=True, own=resolved, param="items")
        existing = await self._store.find_conversation_items(
            tenant, conversation_id, [item.id for item in resolved]
        )
        existing_ids = {item.id for item in existing}
        for item in resolved:
            if item.id in existing_ids:
                raise duplicate_item("items", item.id)
        await self._store.add_conversation_items(tenant, conversation_id, resolved)
        return make_page(resolved, PageParams(limit=max(1, len(resolved)), order="asc"))

    async def list_items(self, tenant: str, conversation_id: str, params: PageParams) -> Page[Item]:
        """Return a page of a conversation's items. Raises ``InvalidRequest`` if the cursor is not
        the id of one of these items."""
        await self.retrieve(tenant, conversation_id)
        query = page_query(ItemQuery, params)
        found = await self._store.list_conversation_items(tenant, conversation_id, query)
        if found is None:
            raise await self._unknown_cursor(tenant, conversation_id, params)
        return page_of_found(found, params)

    async def retrieve_item(self, tenant: str, conversation_id: str, item_id: str) -> Item:
        """Return one item."""
        await self.retrieve(tenant, conversation_id)
        found = await self._store.find_conversation_items(tenant, conversation_id, [item_id])
        if not found:
            raise _item_not_found(item_id)
        return found[0]

    async def delete_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> ConversationResource:
        """Remove an item from a conversation and return the conversation, as OpenAI does."""
        conversation = await self.retrieve(tenant, conversation_id)
        if self._on_deleting is not None:
            await self._on_deleting(tenant, conversation_id)
        if not await self._store.remove_conversation_item(tenant, conversation_id, item_id):
            raise _item_not_found(item_id)
        self._on_deleted(tenant, conversation_id)
        return conversation

    async def _items_for(
        self, tenant: str, conversation_id: str, new_items: tuple[Item, ...]
    ) -> tuple[Item, ...]:
        """Return the items of a conversation to which the new items may refer by id or
        ``call_id``."""
        if any(item.id_names_call or lacks_call_id(item) for item in new_items):
            return await self._store.load_conversation_items(tenant, conversation_id)
        ids = [item.id for item in new_items if item.id]
        return await self._store.find_conversation_items(tenant, conversation_id, ids)

    async def _unknown_cursor(
        self, tenant: str, conversation_id: str, params: PageParams
    ) -> InvalidRequest:
        """Return the error for a cursor that is not the id of an item in the conversation."""
        cursors = {"after": params.after, "before": params.before}
        named = {name: id for name, id in cursors.items() if id is not None}
        found = await self._store.find_conversation_items(
            tenant, conversation_id, list(named.values())
        )
        known = {item.id for item in found}
        param = next((name for name, id in named.items() if id not in known), "after")
        return unknown_cursor(param, named.get(param, ""))

    async def lock(
        self, tenant: str, conversation: ConversationRef | None, response_id: str
    ) -> ConversationLockHandle:
        """Lock the conversation for one response. Raises ``NotFound`` if the conversation does not
        exist, and ``InvalidRequest`` if another response holds the lock.
        """
        if conversation is None:
            return ConversationLockHandle()
        await self.retrieve(tenant, conversation.id, param="conversation")

        async def release() -> None:
            try:
                await self._store.runs.unlock_conversation(tenant, conversation.id, response_id)
            except StoreError:
                self._unlock_later(tenant, conversation.id, response_id)
            except BaseException:
                self._unlock_later(tenant, conversation.id, response_id)
                raise

        try:
            await self.reacquire_lock(tenant, conversation, response_id)
        except InvalidRequest:
            raise
        except BaseException:  # the store may have locked it, or may do so later
            self._unlock_later(tenant, conversation.id, response_id)
            raise
        return ConversationLockHandle(ConversationLock(conversation.id, self._owner), release)

    def _unlock_later(self, tenant: str, conversation_id: str, response_id: str) -> None:
        """Unlock a conversation in the background, after a lock or unlock request to the store has
        failed or was cancelled. The background task retries until the store answers. Without the
        task, the lock could stay forever: as long as this server runs, its heartbeats renew all its
        locks."""
        self._unlocks.start(self._unlock_until_done(tenant, conversation_id, response_id))

    async def _unlock_until_done(self, tenant: str, conversation_id: str, response_id: str) -> None:
        """Unlock the conversation repeatedly, every ``_lease_s`` seconds, until the store has
        confirmed ``_UNLOCKS`` unlocks. One unlock is not enough. This server may have stopped
        waiting for the answer to a request that locks the conversation. Such a request may take
        effect after the unlock."""
        confirmed = 0

        async def unlock() -> bool:
            nonlocal confirmed
            await self._store.runs.unlock_conversation(tenant, conversation_id, response_id)
            confirmed += 1
            return confirmed == _UNLOCKS

        await repeat_until_done(unlock, self._lease_s, failure="a conversation is not unlocked")

    async def reacquire_lock(
        self, tenant: str, conversation: ConversationRef | None, response_id: str
    ) -> None:
        """Lock the conversation for a response that may already have locked it, for example when
        this server takes over the run of the response from another server. Raises
        ``InvalidRequest`` if a different response holds the lock."""
        if conversation is None:
            return
        acquired = await self._store.runs.lock_conversation(
            tenant,
            response_id,
            ConversationLock(conversation.id, self._owner),
            lease_s=self._lease_s,
        )
        if not acquired:
            raise conversation_locked()


def _item_not_found(item_id: str) -> NotFound:
    return NotFound(f"Item with id '{item_id}' not found.", param="item_id")

"""The store in memory: the reference the others are held to, and the one for tests.

Nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from antiphon.errors import RunError
from antiphon.wire.conversations import Conversation
from antiphon.wire.items import Item

from .base import Retention, StoredResponse

__all__ = ["MemoryStore"]

_encode = msgspec.json.Encoder().encode


class _Row(Struct):
    """A response, whether its id may still be used, and how many build on it."""

    stored: StoredResponse
    bytes: int
    order: int
    live: bool = True
    children: int = 0


class _Talk(Struct):
    """A conversation and its items by id, in order."""

    conversation: Conversation
    items: dict[str, Item] = {}

    def add(self, items: tuple[Item, ...]) -> None:
        for item in items:
            self.items.setdefault(item.id, item)


_Key = tuple[str, str]


class MemoryStore:
    """``Store`` over dictionaries."""

    def __init__(self) -> None:
        self._rows: dict[_Key, _Row] = {}
        self._items: dict[_Key, _Key] = {}
        self._talks: dict[_Key, _Talk] = {}
        self._order = 0
        self._closed = False

    async def save(
        self, tenant: str, stored: StoredResponse, *, conversation: str | None = None
    ) -> None:
        self._check()
        key = (tenant, stored.response.id)
        old = self._rows.get(key)
        self._order += 1
        row = _Row(stored, len(_encode(stored)), old.order if old else self._order)
        if old is not None:
            row.children = old.children
        elif (parent := self._parent(key, stored)) is not None:
            parent.children += 1
        self._rows[key] = row
        for item in (*stored.input, *stored.response.output):
            self._items[tenant, item.id] = key
        talk = self._talks.get((tenant, conversation or ""))
        if talk is not None:
            talk.add((*stored.input, *stored.response.output))

    async def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        self._check()
        row = self._rows.get((tenant, response_id))
        return row.stored if row is not None and row.live else None

    async def chain(self, tenant: str, response_id: str) -> tuple[StoredResponse, ...] | None:
        self._check()
        row = self._rows.get((tenant, response_id))
        if row is None or not row.live:
            return None
        found: list[StoredResponse] = []
        while row is not None:
            found.append(row.stored)
            row = self._rows.get((tenant, row.stored.response.previous_response_id or ""))
        return tuple(reversed(found))

    async def item(self, tenant: str, item_id: str) -> Item | None:
        self._check()
        row = self._rows.get(self._items.get((tenant, item_id), ("", "")))
        if row is None or not row.live:
            return self._talked(tenant, item_id)
        items = (*row.stored.input, *row.stored.response.output)
        return next((item for item in items if item.id == item_id), None)

    async def delete(self, tenant: str, response_id: str) -> bool:
        self._check()
        key = (tenant, response_id)
        row = self._rows.get(key)
        if row is None or not row.live:
            return False
        row.live = False
        self._free(key)
        return True

    async def sweep(self, retention: Retention, now: int) -> int:
        self._check()
        expired = list(self._expired(retention, now))
        for key in expired:
            self._rows[key].live = False
        for key in expired:
            self._free(key)
        return len(expired)

    async def put_conversation(
        self, tenant: str, conversation: Conversation, items: tuple[Item, ...] = ()
    ) -> None:
        self._check()
        talk = self._talks.setdefault((tenant, conversation.id), _Talk(conversation))
        talk.conversation = conversation
        talk.add(items)

    async def conversation(self, tenant: str, conversation_id: str) -> Conversation | None:
        self._check()
        talk = self._talks.get((tenant, conversation_id))
        return talk.conversation if talk is not None else None

    async def drop_conversation(self, tenant: str, conversation_id: str) -> bool:
        self._check()
        return self._talks.pop((tenant, conversation_id), None) is not None

    async def add_items(self, tenant: str, conversation_id: str, items: tuple[Item, ...]) -> bool:
        self._check()
        talk = self._talks.get((tenant, conversation_id))
        if talk is None:
            return False
        talk.add(items)
        return True

    async def conversation_items(self, tenant: str, conversation_id: str) -> tuple[Item, ...]:
        self._check()
        talk = self._talks.get((tenant, conversation_id))
        return tuple(talk.items.values()) if talk is not None else ()

    async def remove_item(self, tenant: str, conversation_id: str, item_id: str) -> bool:
        self._check()
        talk = self._talks.get((tenant, conversation_id))
        return talk is not None and talk.items.pop(item_id, None) is not None

    async def close(self) -> None:
        self._closed = True

    def _talked(self, tenant: str, item_id: str) -> Item | None:
        """The item in whichever conversation of the tenant has it."""
        talks = (talk for (owner, _), talk in self._talks.items() if owner == tenant)
        return next((talk.items[item_id] for talk in talks if item_id in talk.items), None)

    def _check(self) -> None:
        if self._closed:
            raise RunError("The store is closed.")

    def _parent(self, key: _Key, stored: StoredResponse) -> _Row | None:
        return self._rows.get((key[0], stored.response.previous_response_id or ""))

    def _free(self, key: _Key) -> None:
        """Drop a response nobody can name and nobody builds on, then its parent likewise."""
        row = self._rows.get(key)
        while row is not None and not row.live and row.children == 0:
            del self._rows[key]
            for item in (*row.stored.input, *row.stored.response.output):
                if self._items.get((key[0], item.id)) == key:
                    del self._items[key[0], item.id]
            key = (key[0], row.stored.response.previous_response_id or "")
            row = self._rows.get(key)
            if row is not None:
                row.children -= 1

    def _expired(self, retention: Retention, now: int) -> Iterator[_Key]:
        """The live responses over the bounds, oldest first."""
        live = sorted(
            (key for key, row in self._rows.items() if row.live),
            key=lambda key: (self._rows[key].stored.response.created_at, self._rows[key].order),
        )
        count = len(live)
        size = sum(row.bytes for row in self._rows.values())
        for key in live:
            row = self._rows[key]
            age = now - row.stored.response.created_at
            if not (
                (retention.max_age_s is not None and age > retention.max_age_s)
                or (retention.max_responses is not None and count > retention.max_responses)
                or (retention.max_bytes is not None and size > retention.max_bytes)
            ):
                break
            count -= 1
            size -= row.bytes
            yield key

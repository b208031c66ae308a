"""The contract of a store: finished responses with what they were made of, and conversations.

A response keeps only its own input, output and tokens, and a link to its parent; a turn costs what
the turn adds. It knows the wire and nothing of runs. The memory store is the reference.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from antiphon.wire.conversations import Conversation
from antiphon.wire.items import Item

from .files import FileStore
from .records import StoredResponse
from .runs import RunStore
from .skills import SkillStore
from .vectors import VectorIndex

__all__ = ["Retention", "Store"]


class Retention(Struct, frozen=True, kw_only=True):
    """What a store may keep, all tenants together; None = no bound. What is over goes oldest
    first. Bytes count whatever is still there, also what only descendants need."""

    max_age_s: float | None = None
    max_responses: int | None = None
    max_bytes: int | None = None
    #: How long the events of a background run stay after its end, for readers that come back.
    max_log_age_s: float | None = 3600

    def is_exceeded(self, *, age_s: float, responses: int, bytes: int) -> bool:
        """Whether the oldest response has to go: by its age, or for what the store holds."""
        return (
            (self.max_age_s is not None and age_s > self.max_age_s)
            or (self.max_responses is not None and responses > self.max_responses)
            or (self.max_bytes is not None and bytes > self.max_bytes)
        )


class Store(Protocol):
    """All methods are per tenant: a foreign id is an unknown id. Safe for concurrent use in one
    event loop. Deleting or expiring a response makes its id unusable at once; what its descendants
    still need of it stays, unreachable by id, until the last of them is gone."""

    @property
    def runs(self) -> RunStore:
        """The background runs kept in the same place."""

    @property
    def files(self) -> FileStore:
        """The files kept in the same place."""

    @property
    def skills(self) -> SkillStore:
        """The skills kept in the same place."""

    @property
    def vectors(self) -> VectorIndex:
        """The vector stores kept in the same place."""

    async def save(
        self, tenant: str, stored: StoredResponse, *, conversation: str | None = None
    ) -> None:
        """Keep it, in place of what had its id. Returns when it is durable: the id may then be
        announced. The parent is ``stored.response.previous_response_id``, if that is set. With
        ``conversation``, its input and output are appended to that conversation in the same step,
        if it still exists."""

    async def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        """The response, or None if it is unknown, deleted or expired."""

    async def load_chain(self, tenant: str, response_id: str) -> tuple[StoredResponse, ...] | None:
        """The response and all its ancestors, oldest first (deleted ancestors included); None if
        the response itself is unknown, deleted or expired."""

    async def load_item(self, tenant: str, item_id: str) -> Item | None:
        """A stored item by its id: input or output of a response that can be loaded, or part of a
        conversation."""

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Forget it, and its run with all events if it has one. False if there is no such
        response."""

    async def sweep(self, retention: Retention, now: int) -> int:
        """Expire what is over the bounds (``now`` in unix seconds, compared with ``created_at``)
        and free what no descendant needs; responses whose own time to expire has come; the events
        of runs that ended longer ago than ``max_log_age_s``; files, and what is in vector
        stores, whose time has come. Responses of runs that go on are counted, and left alone.
        Afterwards the bounds hold. Returns how many responses expired."""

    async def save_conversation(
        self, tenant: str, conversation: Conversation, items: tuple[Item, ...] = ()
    ) -> None:
        """Keep a new conversation with its first items, or new labels of one that exists."""

    async def load_conversation(self, tenant: str, conversation_id: str) -> Conversation | None:
        """The conversation without its items, or None."""

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Forget it and its list of items; responses made in it stay. False if it is unknown."""

    async def add_conversation_items(
        self, tenant: str, conversation_id: str, items: tuple[Item, ...]
    ) -> bool:
        """Append items, each with an id that is new there. False if the conversation is unknown."""

    async def load_conversation_items(self, tenant: str, conversation_id: str) -> tuple[Item, ...]:
        """All its items, oldest first; none if it is unknown."""

    async def remove_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> bool:
        """Take an item out of a conversation. False if it was not in it."""

    async def get_or_create_secret(self, name: str, new_secret: bytes) -> bytes:
        """The secret kept under this name; ``fresh`` is kept if there is none. The same for
        everybody who uses this store."""

    async def close(self) -> None:
        """Finish what was begun; later calls raise."""

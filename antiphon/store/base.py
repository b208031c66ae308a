"""The contract of a store. A store holds conversations, responses and other data of an Antiphon
server. It keeps the input and the tokens of each response.

Each response is stored with a link to its parent, the response that it continues. The row of a
response holds only the input, output and tokens of this response. So a turn of a long conversation
needs no more space than a turn of a short one. Tests compare every store with the memory store of
``antiphon.testing``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Protocol

import msgspec
from msgspec import Struct

from antiphon.wire.items import Item
from antiphon.wire.resources.conversations import ConversationResource
from antiphon.wire.response_list import ResponseSummary

from .audit import AuditLog
from .containers import ContainerDirectory
from .files import BlobStorage, FileStore
from .journal import Journal
from .keys import KeyStore
from .rates import RateStore
from .records import (
    ConversationLock,
    ItemQuery,
    Reservation,
    ResponseQuery,
    StoredResponse,
    SweepRecord,
    TenantUsage,
)
from .runs import RunStore
from .skills import SkillStore
from .usage import UsageLog, UsageRecord
from .values import SERVER, ValueStore
from .vectors import VectorIndex

__all__ = ["Retention", "Store"]

#: Names of values: the value that ``check_writable`` changes, and the record of the last sweep.
_CHECK, _SWEEP = "check", "sweep"
_MAX_ITEMS = 2**31 - 1
_decode_sweep = msgspec.json.Decoder(SweepRecord).decode


class Retention(Struct, frozen=True, kw_only=True):
    """Limits on the data that a store keeps, for all tenants together. None means no limit.

    A response that is older than ``max_age_s`` is deleted. If ``max_responses`` or ``max_bytes`` is
    exceeded, the oldest responses of the tenant with the most data are deleted. ``max_bytes``
    limits the size of all stored responses. These include deleted responses that their descendants
    still need (see ``Store``).
    """

    max_age_s: float | None = None
    max_responses: int | None = None
    max_bytes: int | None = None
    #: Seconds for which the events of a background run are kept after its end, for readers that
    #: reconnect.
    max_log_age_s: float | None = 3600
    #: Seconds for which the sums of the usage log are kept.
    max_usage_age_s: float | None = None
    #: Seconds for which records of the audit log are kept.
    max_audit_age_s: float | None = None

    @property
    def bounds_size(self) -> bool:
        """Whether the number of responses or their size is bounded."""
        return self.max_responses is not None or self.max_bytes is not None

    def is_too_old(self, age_s: float) -> bool:
        """Whether a response that was created ``age_s`` seconds ago must be deleted."""
        return self.max_age_s is not None and age_s > self.max_age_s


class Store(Protocol):
    """The contract of a store. All methods are per tenant. The id of another tenant's object counts
    as unknown. Safe for concurrent use in one event loop.

    A response may continue an earlier response, its parent. The parent, the parent's parent and so
    on are its ancestors, and it is their descendant. A deleted or expired response cannot be loaded
    by its id. But its stored data is kept until the last of its descendants is deleted, because the
    descendants need it.

    The attributes are the parts of the store. ``runs``: background runs. ``files``: files.
    ``vectors``: the vector stores. ``values``: small values. ``journal``: server-side tool calls,
    and approvals of such calls. ``audit``: administrative acts and who did them. ``usage_log``:
    what each request used. ``keys``: the API keys of the server. ``rates``: the request counts that
    processes exchange for rate limits. ``containers``: containers and the processes that own them.
    ``skills``: skills. The last four parts are classes that keep their data in ``values``. A store
    can override their methods.
    """

    runs: RunStore
    files: FileStore
    vectors: VectorIndex
    values: ValueStore
    journal: Journal
    audit: AuditLog
    usage_log: UsageLog
    keys: KeyStore
    rates: RateStore
    containers: ContainerDirectory
    skills: SkillStore

    @abstractmethod
    async def save(
        self,
        tenant: str,
        stored: StoredResponse,
        *,
        lock: ConversationLock | None = None,
        usage: UsageRecord | None = None,
    ) -> bool:
        """Store a response, or replace the stored response with the same id. Returns True after the
        response is durable.

        - ``stored.response.previous_response_id``: the id of the parent.
        - ``usage``: a record to add to the usage log in the same transaction.
        - ``lock``: the conversation lock of the response, if it has one. The input and the output
          are appended to the locked conversation in the same transaction, if the conversation still
          exists.

        With ``lock``, a response that is already stored is not changed, and nothing is appended
        again. So a caller that got no answer can repeat the call. If the response has lost the
        lock, other responses may have been added to the conversation. The method then returns False
        and stores nothing.

        If the response has a run, the field ``background`` of the response must be true in every
        call. Otherwise, a store may keep the run when it deletes the response.
        """

    async def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return the response. Returns None if the response is unknown, deleted or expired."""
        chain = await self.load_chain(tenant, response_id)
        return None if chain is None else chain[-1]

    async def has_response(self, tenant: str, response_id: str) -> bool:
        """Whether ``load`` would return a response. This method does not read the response
        itself."""
        return await self.load(tenant, response_id) is not None

    @abstractmethod
    async def load_chain(self, tenant: str, response_id: str) -> tuple[StoredResponse, ...] | None:
        """Return the response and all its ancestors, oldest first, including deleted ancestors.

        Returns None if the response itself is unknown, deleted or expired.
        """

    @abstractmethod
    async def list_responses(
        self, tenant: str, query: ResponseQuery
    ) -> tuple[ResponseSummary, ...] | None:
        """Return a page of the responses that ``load`` would return, in the order in which they
        were first saved. Returns None if ``query.after`` is not the id of such a response."""

    @abstractmethod
    async def load_item(self, tenant: str, item_id: str) -> Item | None:
        """Return an item by its id. The item is in a conversation, or in the input or output of a
        response that ``load`` would return. Returns None if there is no such item."""

    @abstractmethod
    async def delete(self, tenant: str, response_id: str) -> bool:
        """Delete a response, and its run with all events. Returns False if there is no such
        response."""

    @abstractmethod
    async def delete_tenant(self, tenant: str) -> int:
        """Delete all stored data of a tenant, in short steps, and return how many rows were
        deleted. The next sweep deletes the events of the tenant's background runs. Data that is
        stored during the call may remain. API keys and the audit log are not deleted."""

    async def rewrite_rows(self) -> int:
        """Write each row again in which columns can be encrypted, so that all of them have the
        form of new rows. Return how many rows were written. No other process may use the store.
        Raises ``StoreError``."""
        return 0

    @abstractmethod
    async def usage(self, tenant: str) -> TenantUsage:
        """Return how many responses, bytes and background runs the store holds for a tenant."""

    @abstractmethod
    async def reserve_response(self, reservation: Reservation) -> bool:
        """Make a reservation: room for a response that will be saved later. A reservation counts as
        one response without bytes. Returns True if there is room.

        Returns False and changes nothing if the tenant's responses and reservations together would
        be more than ``max_responses``, or if the tenant's stored bytes have reached ``max_bytes``.
        So concurrent calls cannot together exceed ``max_responses``, but the responses of
        concurrent calls may together have more than ``max_bytes``.

        A reservation ends when it is released, when its response is saved, or when its owner is
        dead: the owner has sent no heartbeat for ``lease_s`` seconds. The call counts as a
        heartbeat of the owner. A response has at most one reservation, which belongs to the owner
        that reserved last.
        """

    @abstractmethod
    async def release_reservation(self, tenant: str, response_id: str, owner: str) -> None:
        """Remove the reservation of a response, if the reservation belongs to ``owner``.

        If another owner has called ``reserve_response`` for the same response later, the
        reservation belongs to that owner. It is then kept."""

    async def check_writable(self) -> None:
        """Write a small value, as a test. Raises ``StoreError`` if the store does not answer or
        cannot be written."""
        number = await self.values.read(SERVER, _CHECK)
        await self.values.replace(SERVER, _CHECK, number, b"0" if number == b"1" else b"1")

    async def clock(self, now: float) -> float:
        """Return the time by the store's clock, in Unix seconds. The store compares this time with
        expiry times. ``now``: the time of the Antiphon server.

        A database with a clock of its own returns the time of this clock, so a wrong clock of one
        Antiphon server has no effect. Other stores return ``now``.
        """
        return now

    async def load_sweep_record(self) -> SweepRecord | None:
        """Return the record of the last sweep (deletion of expired data). Returns None if there was
        no sweep yet."""
        record = await self.values.read(SERVER, _SWEEP)
        return None if record is None else _decode_sweep(record)

    async def save_sweep_record(self, record: SweepRecord) -> None:
        """Replace the record of the last sweep."""
        new = msgspec.json.encode(record)
        while (old := await self.values.read(SERVER, _SWEEP)) != new:
            await self.values.replace(SERVER, _SWEEP, old, new)

    @abstractmethod
    async def sweep(self, retention: Retention, now: int) -> int:
        """Delete all expired data. Return how many responses expired. ``now``: the time of the
        sweep, in Unix seconds. A sweep works in short steps, and other calls proceed between the
        steps.

        The sweep deletes:

        - responses that exceed a limit of ``retention`` on their age (``now - created_at``), their
          number or their size,
        - responses whose expiry time (``expires_at``) has passed,
        - deleted responses that no descendant needs any more,
        - runs that ended more than ``max_log_age_s`` seconds ago, with their events. A run counts
          as ended at the time ``now`` of the first sweep after its end,
        - expired files, and the contents of expired vector stores,
        - records of the audit log, and sums of the usage log, that are too old,
        - entries of the journal: those of deleted runs, and those about approvals that are older
          than ``max_age_s`` seconds ago.

        The sweep also replaces old rows of the usage log by their sums. Responses of runs that have
        not ended count towards the limits, but are not deleted.
        """

    @abstractmethod
    async def save_conversation(
        self, tenant: str, conversation: ConversationResource, items: tuple[Item, ...] = ()
    ) -> None:
        """Store a new conversation with its first items. If the conversation already exists,
        replace its metadata and append the items."""

    @abstractmethod
    async def list_conversations(
        self, tenant: str, *, after: str | None = None, limit: int
    ) -> tuple[ConversationResource, ...]:
        """Return a page of conversations without their items, oldest first. ``after``: the id of
        the last conversation of the previous page. If ``after`` is unknown, the page is empty."""

    @abstractmethod
    async def load_conversation(
        self, tenant: str, conversation_id: str
    ) -> ConversationResource | None:
        """Return the conversation without its items. Returns None if the conversation is
        unknown."""

    @abstractmethod
    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation and its list of items. The responses of the conversation are not
        deleted. Returns False if the conversation is unknown."""

    @abstractmethod
    async def add_conversation_items(
        self, tenant: str, conversation_id: str, items: tuple[Item, ...]
    ) -> bool:
        """Append items to a conversation. The id of each item must be new in the conversation.
        Returns False if the conversation is unknown."""

    async def load_conversation_items(self, tenant: str, conversation_id: str) -> tuple[Item, ...]:
        """Return all items of a conversation, oldest first. Returns no items if the conversation is
        unknown."""
        query = ItemQuery(limit=_MAX_ITEMS)
        return await self.list_conversation_items(tenant, conversation_id, query) or ()

    @abstractmethod
    async def list_conversation_items(
        self, tenant: str, conversation_id: str, query: ItemQuery
    ) -> tuple[Item, ...] | None:
        """Return the items of a conversation that ``query`` selects, without reading the other
        items. Returns None if ``query.after`` or ``query.until`` is not an item of the
        conversation. If ``query`` has neither and the conversation is unknown, no items are
        returned."""

    async def find_conversation_items(
        self, tenant: str, conversation_id: str, item_ids: Collection[str]
    ) -> tuple[Item, ...]:
        """Return the items of a conversation with these ids, oldest first."""
        items = await self.load_conversation_items(tenant, conversation_id)
        return tuple(item for item in items if item.id in item_ids)

    @abstractmethod
    async def remove_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> bool:
        """Remove an item from a conversation. Returns False if the item is not part of the
        conversation."""

    async def get_or_create_secret(self, name: str, new_secret: bytes) -> bytes:
        """Return the secret with this name. If there is no such secret, store and return
        ``new_secret``. All processes on this store get the same secret."""
        return await self.values.set_default(SERVER, f"secret {name}", new_secret)

    def use_blobs(self, blobs: BlobStorage, min_bytes: int) -> None:
        """From now on, keep the input, output and tokens of large responses in blobs. A response is
        large if these contents have at least ``min_bytes`` bytes together. If ``min_bytes`` is 0,
        new responses are not kept in blobs. Responses that are already in blobs stay readable. A
        store may ignore this call."""
        return

    async def has_blobs(self) -> bool:
        """Whether the store keeps contents of responses in blobs."""
        return False

    async def move_blobs(self, source: BlobStorage | None, target: BlobStorage | None) -> int:
        """Move the contents of responses from blobs of ``source`` to blobs of ``target``. Return
        how many responses were moved.

        If ``target`` is None, the contents move into the store. If ``source`` is None, nothing is
        moved. Raises ``StoreError``. Contents that were moved before the error are not moved back.
        """
        return 0

    @abstractmethod
    async def close(self) -> None:
        """Close the store after its pending operations have finished. Later calls raise
        ``StoreError``."""

"""Stores batches as values of the store.

Each batch is one value. A value with an index lists the batches of a tenant, and another one lists
the batches of all tenants that have not ended. The results of a batch are kept in values with
several results each, until the result files are written: so a batch survives the end of its server,
and no result is lost or written twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from antiphon.wire.resources.batches import Batch
from antiphon.wire.resources.files import FileExpiresAfter
from antiphon.wire.response import Usage

from .values import SERVER, Document, ValueStore

__all__ = ["BatchRecord", "BatchStore", "ResultChunk"]

_R = TypeVar("_R")
#: Name of the value with the batches that have not ended, and of the value with those of a tenant.
_ACTIVE, _INDEX = "active_batches", "batches"


class BatchRecord(Struct, kw_only=True):
    """A batch as it is stored.

    - ``client``: the client that created the batch, encoded as JSON.
    - ``owner``: the server that executes the batch, until ``lease_until`` in Unix seconds.
    - ``output_expires_after``: when the result files expire.
    """

    batch: Batch | None = None
    client: msgspec.Raw = msgspec.Raw(b"{}")
    owner: str = ""
    lease_until: float = 0
    output_expires_after: FileExpiresAfter | None = None

    @property
    def current(self) -> Batch:
        assert self.batch is not None
        return self.batch


class ResultChunk(Struct, frozen=True, kw_only=True):
    """Some results of a batch. ``lines``: the numbers of the input lines. ``output``, ``errors``:
    lines for the output file and for the error file. ``usage``: the tokens of these requests."""

    lines: tuple[int, ...]
    output: bytes
    errors: bytes
    completed: int
    failed: int
    usage: Usage


class BatchStore:
    """The batches of all tenants. Methods return after a change is durable."""

    def __init__(self, values: ValueStore) -> None:
        self._values = values

    async def create(self, tenant: str, record: BatchRecord) -> None:
        """Store a new batch."""
        batch = record.current

        def fill(stored: BatchRecord) -> None:
            for name in BatchRecord.__struct_fields__:
                setattr(stored, name, getattr(record, name))

        await self._document(tenant, batch.id).update(fill)
        await self._index(tenant).update(lambda ids: ids.setdefault(batch.id, batch.created_at))
        await self._active().update(lambda ids: ids.setdefault(batch.id, tenant))

    async def load(self, tenant: str, batch_id: str) -> BatchRecord | None:
        """Return a batch. Returns None if it is unknown."""
        record = await self._document(tenant, batch_id).load()
        return None if record.batch is None else record

    async def update(
        self, tenant: str, batch_id: str, change: Callable[[BatchRecord], _R]
    ) -> _R | None:
        """Change a batch in place, and return the result of ``change``. ``change`` may be called
        several times. Returns None if the batch is unknown."""
        return await self._document(tenant, batch_id).update(
            lambda record: None if record.batch is None else change(record)
        )

    async def list(self, tenant: str) -> tuple[str, ...]:
        """Return the ids of a tenant's batches, oldest first."""
        return tuple(await self._index(tenant).load())

    async def delete(self, tenant: str, batch_id: str) -> None:
        """Delete a batch with its results."""
        await self.end(tenant, batch_id)
        await self._index(tenant).update(lambda ids: ids.pop(batch_id, None))
        await self._drop(tenant, _batch(batch_id))

    async def active(self) -> dict[str, str]:
        """Return the batches that have not ended: id → tenant."""
        return await self._active().load()

    async def end(self, tenant: str, batch_id: str) -> None:
        """Record that a batch has ended, and delete the chunks of its results."""
        number = 0
        while await self._drop(tenant, _chunk(batch_id, number)):
            number += 1
        await self._active().update(lambda ids: ids.pop(batch_id, None))

    async def add_chunk(self, tenant: str, batch_id: str, number: int, chunk: ResultChunk) -> bool:
        """Store a chunk of results. Returns False and stores nothing if another server has stored a
        chunk with this number."""
        content = msgspec.msgpack.encode(chunk)
        return await self._values.replace(tenant, _chunk(batch_id, number), None, content)

    async def chunks(self, tenant: str, batch_id: str) -> AsyncGenerator[ResultChunk, None]:
        """Yield the chunks of a batch's results in order."""
        number = 0
        while (content := await self._values.read(tenant, _chunk(batch_id, number))) is not None:
            yield msgspec.msgpack.decode(content, type=ResultChunk)
            number += 1

    def _document(self, tenant: str, batch_id: str) -> Document[BatchRecord]:
        return Document(self._values, tenant, _batch(batch_id), BatchRecord)

    def _index(self, tenant: str) -> Document[dict[str, int]]:
        return Document(self._values, tenant, _INDEX, dict[str, int])

    def _active(self) -> Document[dict[str, str]]:
        return Document(self._values, SERVER, _ACTIVE, dict[str, str])

    async def _drop(self, tenant: str, name: str) -> bool:
        """Delete a value. Returns whether there was one."""
        found = await self._values.read(tenant, name)
        return found is not None and await self._values.replace(tenant, name, found, None)


def _batch(batch_id: str) -> str:
    return f"batch {batch_id}"


def _chunk(batch_id: str, number: int) -> str:
    return f"batch_results {batch_id} {number}"

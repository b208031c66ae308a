"""Stores batches as values of the store.

The batches of a tenant are a collection, and a value lists the batches of all tenants that have not
ended. The results of a batch are kept in values with several results each, until the result files
are written: so a batch survives the end of its server, and no result is lost or written twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from msgspec import Struct

from antiphon.wire.resources.batches import Batch
from antiphon.wire.resources.files import FileExpiresAfter
from antiphon.wire.response import Usage

from .values import SERVER, Collection, Document, ValueStore, delete_value


class BatchRecord(Struct, kw_only=True):
    """A batch as it is stored.

    - ``client``: the client that created the batch, encoded as JSON.
    - ``owner``: the server that executes the batch, until ``lease_until`` in Unix seconds.
    - ``output_expires_after``: when the result files expire.
    """

    batch: Batch
    client: msgspec.Raw = msgspec.Raw(b"{}")
    owner: str = ""
    lease_until: float = 0
    output_expires_after: FileExpiresAfter | None = None


class ResultChunk(Struct, frozen=True, kw_only=True):
    """Some results of a batch. ``lines``: the numbers of the input lines. ``output``, ``errors``:
    lines for the output file and for the error file. ``usage``: the tokens of these requests."""

    lines: tuple[int, ...]
    output: bytes
    errors: bytes
    completed: int
    failed: int
    usage: Usage


class BatchStore(Collection[BatchRecord]):
    """The batches of all tenants. Methods return after a change is durable."""

    def __init__(self, values: ValueStore) -> None:
        super().__init__(values, "batch", BatchRecord)
        self._active = Document(values, SERVER, "active_batches", dict[str, str])

    async def add(self, tenant: str, id: str, item: BatchRecord) -> None:
        """Store a new batch, which has not ended."""
        await super().add(tenant, id, item)
        await self._active.update(lambda ids: ids.setdefault(id, tenant))

    async def delete(self, tenant: str, id: str) -> None:
        """Delete a batch with its results."""
        await self.end(tenant, id)
        await super().delete(tenant, id)

    async def active(self) -> dict[str, str]:
        """Return the batches that have not ended: id → tenant."""
        return await self._active.load()

    async def end(self, tenant: str, batch_id: str) -> None:
        """Record that a batch has ended, and delete the chunks of its results."""
        number = 0
        while await delete_value(self._values, tenant, _chunk(batch_id, number)):
            number += 1
        await self._active.update(lambda ids: ids.pop(batch_id, None))

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


def _chunk(batch_id: str, number: int) -> str:
    return f"batch_results {batch_id} {number}"

"""Batches: files of requests that are executed when the server has nothing else to do.

This module creates, reads and cancels batches. ``runs/batches`` executes them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
from msgspec.structs import replace

from antiphon.errors import InvalidRequest, NotFound, invalid_field
from antiphon.limits.clients import Client
from antiphon.limits.refusals import limit_reached
from antiphon.store.batches import BatchRecord, BatchStore
from antiphon.store.values import ValueStore
from antiphon.stream.writer import Ids
from antiphon.wire.cursors import PageParams, page_of
from antiphon.wire.pagination import Page
from antiphon.wire.resources.batches import BATCH_WINDOWS_S, Batch, BatchCounts, CreateBatch

from .file_storage.contents import single_chunk
from .file_storage.files import Files, FileUpload

BATCH_PURPOSE = "batch"
#: How many batches of a tenant may wait or run, and ``retry-after`` for further ones.
_MAX_UNENDED, _RETRY_S = 500, 60
_ENDED = ("completed", "failed", "expired", "cancelled")
#: Seconds after which a batch that has ended is forgotten.
_RETENTION_S = 30 * 86_400


def has_ended(batch: Batch) -> bool:
    """Return whether a batch will not change any more."""
    return batch.status in _ENDED


class Batches:
    """The batches of all tenants. Methods that take a batch id raise ``NotFound`` for an unknown
    id. ``on_created`` is called after a batch was created."""

    def __init__(
        self,
        values: ValueStore,
        files: Files,
        *,
        clock: Callable[[], float],
        ids: Ids,
        on_created: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = BatchStore(values)
        self._files = files
        self._clock = clock
        self._ids = ids
        self._on_created = on_created

    async def create(
        self,
        tenant: str,
        request: CreateBatch,
        client: Client,
        *,
        prefix: str = "batch",
        total: int = 0,
    ) -> Batch:
        """Create a batch, whose requests are charged to ``client``. ``prefix``: the beginning of
        its id. ``total``: the number of its requests; 0 if the file must be read first. Raises
        ``InvalidRequest`` if the input file cannot be used."""
        file = await self._files.find(tenant, request.input_file_id)
        if file is None or file.purpose != BATCH_PURPOSE:
            what = "does not exist" if file is None else f"has the purpose '{file.purpose}'"
            raise invalid_field(
                "input_file_id",
                f"the file '{request.input_file_id}' {what}. Upload a file"
                f" with the purpose '{BATCH_PURPOSE}'.",
            )
        await self._check_room(tenant)
        now = int(self._clock())
        batch = Batch(
            id=self._ids(prefix),
            endpoint=request.endpoint,
            input_file_id=file.id,
            completion_window=request.completion_window,
            status="validating",
            created_at=now,
            expires_at=now + BATCH_WINDOWS_S[request.completion_window],
            request_counts=BatchCounts(total=total),
            metadata=request.metadata,
        )
        record = BatchRecord(
            batch=batch,
            client=msgspec.Raw(msgspec.json.encode(client)),
            output_expires_after=request.output_expires_after,
        )
        await self._forget_old(tenant, now)
        await self.store.add(tenant, batch.id, record)
        self._on_created()
        return batch

    async def create_from_lines(
        self, tenant: str, request: CreateBatch, content: bytes, client: Client, *, prefix: str
    ) -> Batch:
        """Create a batch whose input file is made here. ``content``: the lines of the file.
        ``request``: its ``input_file_id`` is replaced."""
        await self._check_room(tenant)
        chunks: AsyncIterator[bytes] = single_chunk(content)
        upload = FileUpload(
            filename="requests.jsonl", purpose=BATCH_PURPOSE, bytes=len(content), chunks=chunks
        )
        file = await self._files.create(tenant, upload)
        request = replace(request, input_file_id=file.id)
        return await self.create(tenant, request, client, prefix=prefix, total=content.count(b"\n"))

    async def _check_room(self, tenant: str) -> None:
        """Raise ``Overloaded`` if the tenant has too many batches that have not ended."""
        if sum(each == tenant for each in (await self.store.active()).values()) >= _MAX_UNENDED:
            what = f"you have {_MAX_UNENDED} batches that have not ended"
            raise limit_reached(what, retry_after_s=_RETRY_S)

    async def retrieve(self, tenant: str, batch_id: str) -> Batch:
        """Return a batch in its present state."""
        record = await self.store.load(tenant, batch_id)
        if record is None:
            raise _not_found(batch_id)
        return record.batch

    async def list(self, tenant: str, params: PageParams, *, prefix: str = "batch") -> Page[Batch]:
        """Return a page of the batches whose ids begin with ``prefix``. Raises ``InvalidRequest``
        for an unknown cursor."""
        records, has_more = await self.store.page(tenant, params, prefix=f"{prefix}_")
        return page_of([record.batch for record in records], has_more)

    async def cancel(self, tenant: str, batch_id: str) -> Batch:
        """Cancel a batch. Requests that have begun end, and the results so far are kept. A batch
        that has ended does not change."""

        def change(record: BatchRecord) -> Batch:
            batch = record.batch
            if batch.status in ("validating", "in_progress"):
                now = int(self._clock())
                record.batch = replace(batch, status="cancelling", cancelling_at=now)
            return record.batch

        changed = await self.store.update(tenant, batch_id, change)
        if changed is None:
            raise _not_found(batch_id)
        return changed

    async def delete(self, tenant: str, batch_id: str) -> None:
        """Delete a batch that has ended. Its files are kept. Raises ``InvalidRequest`` for another
        batch."""
        if not has_ended(await self.retrieve(tenant, batch_id)):
            raise InvalidRequest("A batch that has not ended must be cancelled first.", param="id")
        await self.store.delete(tenant, batch_id)

    async def _forget_old(self, tenant: str, now: int) -> None:
        """Delete the oldest batches that ended long ago."""
        for batch_id in await self.store.ids(tenant):
            record = await self.store.load(tenant, batch_id)
            if record is not None:
                batch = record.batch
                if batch.created_at > now - _RETENTION_S or not has_ended(batch):
                    return
            await self.store.delete(tenant, batch_id)


def _not_found(batch_id: str) -> NotFound:
    return NotFound(f"No batch found with id '{batch_id}'.", param="id")

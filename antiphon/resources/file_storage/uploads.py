"""Files that clients upload in parts.

For each upload, the server stores a record and the parts. Both are stored as files, not under the
tenant of the client but under internal tenants, whose names are derived from the client's tenant.
No client belongs to an internal tenant. Records and parts are ordinary files, so they work with
every kind of store, all servers on the same store share them, and they are deleted when they
expire.

The setting ``max_files_bytes`` limits the total size of a tenant's pending uploads, and separately
the total size of its files. The two sizes are not added. A pending upload counts with the size that
the client has announced.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import InvalidRequest, NotFound, TooLarge
from antiphon.limits.quotas import NO_QUOTAS, TenantQuotas, check_size
from antiphon.limits.refusals import limit_reached, quota_exceeded
from antiphon.store.base import Store
from antiphon.store.files import FileLimits, FileQuery
from antiphon.stream.writer import Ids
from antiphon.wire.parsing.uploads import MAX_PARTS, CompleteUpload, CreateUpload
from antiphon.wire.resources.files import ChunkedUpload, ChunkedUploadPart, File

from .contents import Chunks, StoredFile
from .files import Files, FileUpload

#: Largest part: OpenAI's limit.
MAX_PART_BYTES = 64 * 2**20
#: Seconds until an upload expires: OpenAI's rule.
_LIFETIME_S = 3600
#: Largest number of a tenant's uploads that have not expired.
_MAX_UPLOADS = 1000
#: Character between the tenant's name and the suffix of a derived tenant name. The character is not
#: printable, so no configured tenant has such a name.
_SEPARATOR = "\x1f"
#: Purpose of the files that hold the records of uploads.
RECORD_PURPOSE = "upload"


class _Record(Struct, frozen=True, kw_only=True):
    """The state of an upload, as it is stored. ``part_ids``: the ids of the parts that were joined
    into the file. It is empty until the upload is completed."""

    upload: ChunkedUpload
    request: CreateUpload
    part_ids: tuple[str, ...] = ()


class ChunkedUploads:
    """Operations on uploads. Methods raise ``NotFound`` for unknown and expired uploads, and
    ``InvalidRequest`` for uploads that are no longer pending.

    ``quotas`` limit the total size of a tenant's pending uploads.
    """

    def __init__(
        self,
        store: Store,
        files: Files,
        *,
        clock: Callable[[], float],
        ids: Ids,
        quotas: TenantQuotas = NO_QUOTAS,
    ) -> None:
        self._store = store.files
        self._contents = files.contents
        self._usage = store.usage
        self._files = files
        self._clock = clock
        self._ids = ids
        self._quotas = quotas

    async def create(
        self, tenant: str, request: CreateUpload, *, max_file_bytes: int
    ) -> ChunkedUpload:
        """Create a pending upload. Its announced size counts for the quota from now on.
        ``max_file_bytes``: maximum size of one file. Raises ``TooLarge``, ``QuotaExceeded`` or
        ``Overloaded`` if the upload exceeds a limit."""
        if request.bytes > max_file_bytes:
            raise TooLarge(
                f"The file is larger than this server accepts ({max_file_bytes} bytes).",
                param="bytes",
                code="file_too_large",
            )
        max_bytes = self._quotas.for_tenant(tenant).max_files_bytes
        check_size(request.bytes, max_bytes, param="bytes")
        now = int(self._clock())
        pending = await self._store.list_page(
            _uploads_of(tenant), FileQuery(limit=_MAX_UPLOADS, now=now)
        )
        if len(pending or ()) >= _MAX_UPLOADS:
            raise limit_reached(f"{_MAX_UPLOADS} uploads per hour", retry_after_s=60)
        upload = ChunkedUpload(
            id=self._ids("upload"),
            bytes=request.bytes,
            created_at=now,
            expires_at=now + _LIFETIME_S,
            filename=request.filename,
            purpose=request.purpose,
        )
        record = _Record(upload=upload, request=request)
        if not await self._save_pending(tenant, record):
            raise quota_exceeded("pending uploads", param="bytes", max_files_bytes=max_bytes)
        return upload

    async def pending_bytes(self, tenant: str) -> int:
        """Return the total size that a tenant's pending uploads have announced, in bytes."""
        return (await self._usage(_uploads_of(tenant))).files_bytes

    async def check_pending(self, tenant: str, upload_id: str) -> None:
        """Raise ``NotFound`` or ``InvalidRequest`` if the upload does not accept parts. The HTTP
        endpoint calls this method before it reads the content of a part, so that it does not read a
        part that is then rejected."""
        await self._pending(tenant, upload_id)

    async def add_part(
        self, tenant: str, upload_id: str, size: int, chunks: Chunks
    ) -> ChunkedUploadPart:
        """Store a part of ``size`` bytes. Raises ``InvalidRequest`` if the parts exceed the
        announced size."""
        record = await self._pending(tenant, upload_id)
        if not size:
            raise InvalidRequest("The part is empty.", param="data", code="empty_file")
        owner = _parts_of(tenant, upload_id)
        parts = await self._store.list_page(owner, FileQuery(limit=MAX_PARTS))
        if len(parts or ()) >= MAX_PARTS:
            raise InvalidRequest(f"An upload has at most {MAX_PARTS} parts.", param="data")
        now = int(self._clock())
        part = File(
            id=self._ids("part"),
            bytes=size,
            created_at=now,
            filename="part",
            purpose="upload_part",
            expires_at=record.upload.expires_at,
        )
        limits = FileLimits(max_bytes=record.upload.bytes)
        if not await self._contents.put(owner, part, chunks, limits):
            raise InvalidRequest(
                "The parts are larger than the size given when the upload was created"
                f" ({record.upload.bytes} bytes).",
                param="data",
                code="upload_size_exceeded",
            )
        return ChunkedUploadPart(id=part.id, created_at=now, upload_id=upload_id)

    async def complete(self, tenant: str, upload_id: str, request: CompleteUpload) -> ChunkedUpload:
        """Join the parts into a file. A repeated call with the same parts returns the same
        result."""
        record = await self._record(tenant, upload_id)
        if record.upload.status == "completed" and record.part_ids == request.part_ids:
            return record.upload
        _check_pending(record)
        parts = await self._parts(tenant, record, request)
        if request.md5 is not None:
            await _check_md5(parts, request.md5)
        file = await self._files.create(
            tenant,
            FileUpload(
                filename=record.request.filename,
                purpose=record.request.purpose,
                bytes=record.upload.bytes,
                chunks=_joined(parts),
                expires_after=record.request.expires_after,
            ),
        )
        upload = replace(record.upload, status="completed", file=file)
        done = replace(record, upload=upload, part_ids=request.part_ids)
        if not await self._end(tenant, done):  # another request ended the upload in the meantime
            await self._files.delete(tenant, file.id)
            raise _not_pending(upload_id)
        await self._delete_parts(tenant, upload_id)
        return upload

    async def cancel(self, tenant: str, upload_id: str) -> ChunkedUpload:
        """Cancel an upload and delete its parts."""
        record = await self._pending(tenant, upload_id)
        cancelled = replace(record, upload=replace(record.upload, status="cancelled"))
        if not await self._end(tenant, cancelled):
            raise _not_pending(upload_id)
        await self._delete_parts(tenant, upload_id)
        return cancelled.upload

    async def _parts(
        self, tenant: str, record: _Record, request: CompleteUpload
    ) -> tuple[StoredFile, ...]:
        """Return the parts of an upload in the requested order. Raises ``InvalidRequest`` if a part
        does not exist or if the total size is wrong."""
        owner = _parts_of(tenant, record.upload.id)
        parts = []
        for at, part_id in enumerate(request.part_ids):
            file = await self._store.get(owner, part_id)
            part = None if file is None else await self._contents.open(owner, file)
            if part is None:
                raise InvalidRequest(
                    f"No such Part: {part_id[:64]}",
                    param=f"part_ids[{at}]",
                    code="upload_part_not_found",
                )
            parts.append(part)
        size = sum(part.file.bytes for part in parts)
        if size != record.upload.bytes:
            raise InvalidRequest(
                f"The parts have {size} bytes, but the upload was created with"
                f" {record.upload.bytes} bytes.",
                param="part_ids",
                code="upload_size_mismatch",
            )
        return tuple(parts)

    async def _record(self, tenant: str, upload_id: str) -> _Record:
        owner = _uploads_of(tenant)
        content = await self._store.read(owner, upload_id)
        if content is None:
            content = await self._store.read(owner, _ended_id(upload_id))
        # Records are always in the store itself.
        record = msgspec.json.decode(content, type=_Record) if isinstance(content, bytes) else None
        if record is None or record.upload.expires_at <= self._clock():
            raise NotFound(f"No such Upload object: {upload_id}", param="upload_id")
        return record

    async def _pending(self, tenant: str, upload_id: str) -> _Record:
        record = await self._record(tenant, upload_id)
        _check_pending(record)
        return record

    async def _save_pending(self, tenant: str, record: _Record) -> bool:
        """Store the record of a pending upload. For the tenant's quota, the record counts with the
        announced size of the upload. Returns False and stores nothing if the pending uploads would
        exceed the quota."""
        upload = record.upload
        return await self._store.put(
            _uploads_of(tenant),
            _record_file(upload, id=upload.id, bytes=upload.bytes),
            msgspec.json.encode(record),
            FileLimits(max_bytes=self._quotas.for_tenant(tenant).max_files_bytes),
        )

    async def _end(self, tenant: str, record: _Record) -> bool:
        """Complete or cancel a pending upload: delete the pending record of the upload, and store
        ``record``, its final record. The final record has an id of its own (``_ended_id``). Its
        size is 0 bytes, so it does not count for the quota. Returns False if another request has
        completed or cancelled the upload meanwhile: only one request can delete the pending
        record."""
        owner, upload = _uploads_of(tenant), record.upload
        if not await self._store.delete(owner, upload.id):
            return False
        file = _record_file(upload, id=_ended_id(upload.id), bytes=0)
        # No limit: the other pending uploads exceed the quota if the quota was lowered.
        await self._store.put(owner, file, msgspec.json.encode(record))
        return True

    async def _delete_parts(self, tenant: str, upload_id: str) -> None:
        owner = _parts_of(tenant, upload_id)
        for part in await self._store.list_page(owner, FileQuery(limit=MAX_PARTS)) or ():
            await self._store.delete(owner, part.id)


def _uploads_of(tenant: str) -> str:
    return f"{tenant}{_SEPARATOR}uploads"


def _record_file(upload: ChunkedUpload, *, id: str, bytes: int) -> File:
    """Return the metadata for storing the record of an upload as a file. ``id``, ``bytes``: the id
    and the size of this file."""
    return File(
        id=id,
        bytes=bytes,
        created_at=upload.created_at,
        filename=upload.filename,
        purpose=RECORD_PURPOSE,
        expires_at=upload.expires_at,
    )


def _ended_id(upload_id: str) -> str:
    return f"{upload_id}.ended"


def _parts_of(tenant: str, upload_id: str) -> str:
    return f"{tenant}{_SEPARATOR}uploads{_SEPARATOR}{upload_id}"


def _check_pending(record: _Record) -> None:
    if record.upload.status != "pending":
        raise _not_pending(record.upload.id, record.upload.status)


def _not_pending(upload_id: str, status: str = "completed or cancelled") -> InvalidRequest:
    return InvalidRequest(f"Upload {upload_id} is already {status}.", param="upload_id")


async def _joined(parts: Sequence[StoredFile]) -> AsyncGenerator[bytes, None]:
    for part in parts:
        async for chunk in part.read():
            yield chunk


async def _check_md5(parts: Sequence[StoredFile], expected: str) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    async for chunk in _joined(parts):
        await asyncio.to_thread(digest.update, chunk)
    if expected.lower() != digest.hexdigest():
        raise InvalidRequest(
            "The parts do not have this MD5 checksum.",
            param="md5",
            code="upload_checksum_mismatch",
        )

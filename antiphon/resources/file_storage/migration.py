"""Move the contents of files between the store and external blob storage."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from msgspec import Struct

from antiphon.blobs.base import Blobs
from antiphon.errors import StoreError
from antiphon.store.files import BlobRef, FileStore, StoredContent

from .contents import StoredFile
from .files import MAX_WHOLE_BYTES
from .uploads import RECORD_PURPOSE

_BATCH = 100


class MovedContent(Struct, frozen=True):
    """The result of moving the content of a file. ``problem``: the reason why the content was not
    moved; None if it was moved."""

    file_id: str
    bytes: int
    problem: str | None = None


async def migrate_contents(
    files: FileStore, source: Blobs | None, target: Blobs | None
) -> AsyncGenerator[MovedContent, None]:
    """Move the contents of all files from ``source`` to ``target``. Yields one result per file.
    None as ``source`` or ``target`` means the store (the database), and not blob storage.

    Servers may run during a migration from a store in PostgreSQL to blob storage, if they are
    already configured with ``target``: they can read from both. For any other migration, the
    servers must be stopped. After an interruption, call this function again: it moves the remaining
    contents.
    """
    after = 0
    while rows := await files.list_contents(after=after, limit=_BATCH, in_blobs=source is not None):
        for row in rows:
            if row.file.purpose == RECORD_PURPOSE:
                continue
            if (moved := await _move(files, source, target, row)) is not None:
                yield moved
        after = rows[-1].position
        await _delete_unused(files, source, target)


async def _move(
    files: FileStore, source: Blobs | None, target: Blobs | None, row: StoredContent
) -> MovedContent | None:
    """Move the content of one file. Returns None if there is nothing to move: the file was deleted,
    or its content was already moved."""
    file = row.file
    try:
        content = await files.read(row.tenant, file.id)
        if content is None or row.blob != (content if isinstance(content, BlobRef) else None):
            return None
        chunks = StoredFile(file, content, source).read()
        if target is not None:
            new: bytes | BlobRef = await target.put(chunks)
        elif file.bytes > MAX_WHOLE_BYTES:
            return MovedContent(file.id, file.bytes, "too large for the store")
        else:
            new = b"".join([chunk async for chunk in chunks])
        if await files.replace_content(row.tenant, file.id, row.blob, new):
            return MovedContent(file.id, file.bytes)
        if isinstance(new, BlobRef) and target is not None:
            await target.delete(new.key)
        return None
    except StoreError as error:
        return MovedContent(file.id, file.bytes, error.message)


async def _delete_unused(files: FileStore, *places: Blobs | None) -> None:
    """Delete the blobs (stored contents) to which no file refers, for example the old blob of a
    moved file. ``places``: the storages that may contain such blobs."""
    while keys := await files.list_unused_blobs(_BATCH):
        for key in keys:
            for blobs in places:
                if blobs is not None:
                    await blobs.delete(key)
        await files.forget_blobs(keys)

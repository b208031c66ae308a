"""Blobs in object storage or in a folder, through the library obstore.

The content of a blob is stored in segments. Each segment is an object of its own, named
``STORE/KEY/000000`` and so on, and is encrypted by itself, so an unfinished upload consists of
complete objects. If the upload is abandoned, the collector (``BlobCollector``) finds and deletes
these objects. Multipart uploads are not used, because their parts would remain after a crash, and
listings do not show such parts.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from antiphon.errors import StoreError
from antiphon.security.encryption import DecryptionError, Encryptor
from antiphon.store.files import BlobRef
from antiphon.support.tasks import BackgroundTasks

from .base import ListedBlob

#: Bytes of each segment except the last one. This is a part of the storage format: never change it.
SEGMENT_BYTES = 8 * 2**20
#: Bytes that are read at a time if a segment need not be read as a whole.
_READ_BYTES = 2 * 2**20
#: Suffix of the keys of encrypted blobs.
_ENCRYPTED = ".enc"
#: The name that obstore gives to the unfinished file of an object in a folder. Not in listings.
_UNFINISHED_FILE = re.compile(r"\d{6}#\d+\Z")


class ObjectBlobs:
    """``Blobs`` in object storage or in a folder.

    - ``store``: obstore's object for the storage.
    - ``root``: prefix of the keys of all blobs; it identifies one Antiphon store.
    - ``encrypts``: whether new blobs are encrypted.
    - ``encryptor``: encrypts and decrypts blobs. Blobs that were encrypted earlier are decrypted
      even if ``encrypts`` is false.
    - ``new_id``: returns a new random name.
    - ``folder``: the folder of the objects, if the storage is a folder.
    - ``attributes``: attributes that each new object gets, such as its media type; None for a
      storage without attributes.
    """

    def __init__(
        self,
        store: Any,
        root: str,
        encryptor: Encryptor,
        *,
        encrypts: bool,
        new_id: Callable[[], str],
        folder: Path | None = None,
        attributes: dict[str, str] | None = None,
    ) -> None:
        self.store = store
        self._root = root
        self._encryptor = encryptor
        self._encrypts = encrypts
        self._new_id = new_id
        self._folder = folder
        self._attributes = attributes

    async def put(self, chunks: AsyncIterator[bytes]) -> BlobRef:
        key = f"{self._root}/{self._new_id()}{_ENCRYPTED if self._encrypts else ''}"
        digest, size, number = hashlib.sha256(), 0, 0
        uploads = BackgroundTasks("upload of a segment")
        upload: asyncio.Task[None] | None = None
        try:
            async for segment in _segments(chunks):
                await asyncio.to_thread(digest.update, segment)
                size += len(segment)
                if upload is not None:
                    await upload
                # One segment is uploaded while the next one is read.
                work = self._put_segment(f"{key}/{number:06d}", segment)
                upload = uploads.start(work, is_awaited=True)
                number += 1
            if upload is not None:
                await upload
        finally:
            await uploads.close()
        return BlobRef(key=key, sha256=digest.hexdigest(), bytes=size)

    async def _put_segment(self, name: str, segment: bytes) -> None:
        import obstore

        content = segment
        if self._encrypts:
            content = await asyncio.to_thread(self._encrypt, segment, name)
        with _translated_errors():
            await obstore.put_async(
                self.store, name, content, use_multipart=False, attributes=self._attributes
            )

    async def read(
        self, blob: BlobRef, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        end = blob.bytes if end is None else min(end, blob.bytes)
        digest = hashlib.sha256() if (start, end) == (0, blob.bytes) else None
        position = start
        async for piece in self._pieces(blob, start, end):
            position += len(piece)
            if digest is not None:
                await asyncio.to_thread(digest.update, piece)
                if position == end and digest.hexdigest() != blob.sha256:
                    raise StoreError("The stored content of a file is damaged.")
            yield piece
        if position != end:
            raise StoreError("The stored content of a file is incomplete.")

    async def _pieces(self, blob: BlobRef, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a blob from ``start`` up to ``end`` in pieces. Each piece comes from
        one segment, i.e. from one object of the storage. If content is missing, the iteration ends
        before ``end``."""
        is_encrypted = blob.key.endswith(_ENCRYPTED)
        position = start
        while position < end:
            number, offset = divmod(position, SEGMENT_BYTES)
            name = f"{blob.key}/{number:06d}"
            length = min(end - position, SEGMENT_BYTES - offset)
            if is_encrypted:
                sealed = await self._get(name)
                segment = await asyncio.to_thread(self._decrypt, sealed, name)
                piece = segment[offset : offset + length]
            else:
                length = min(length, _READ_BYTES)
                piece = await self._get(name, (offset, offset + length))
            if len(piece) != length:
                return
            yield piece
            position += length

    async def _get(self, name: str, piece: tuple[int, int] | None = None) -> bytes:
        import obstore

        options: Any = None if piece is None else {"range": piece}
        with _translated_errors():
            found = await obstore.get_async(self.store, name, options=options)
            return bytes(await found.bytes_async())

    def _encrypt(self, segment: bytes, name: str) -> bytes:
        return self._encryptor.encrypt_bytes(segment, purpose=f"file content {name}", tenant="")

    def _decrypt(self, sealed: bytes, name: str) -> bytes:
        try:
            return self._encryptor.decrypt_bytes(sealed, purpose=f"file content {name}", tenant="")
        except DecryptionError:
            raise StoreError("The stored content of a file cannot be decrypted.") from None

    async def delete(self, key: str) -> None:
        import obstore

        with _translated_errors():
            async for batch in obstore.list(self.store, prefix=f"{key}/"):
                for path in [each["path"] for each in batch] if self._folder else ():
                    await _delete_file(self.store, path)
                if not self._folder:
                    await obstore.delete_async(self.store, [each["path"] for each in batch])

    async def list(self) -> AsyncGenerator[ListedBlob, None]:
        import obstore

        with _translated_errors():
            async for batch in obstore.list(self.store, prefix=f"{self._root}/"):
                newest: dict[str, float] = {}
                for each in batch:
                    key = each["path"].rpartition("/")[0]
                    newest[key] = max(newest.get(key, 0.0), each["last_modified"].timestamp())
                for key, modified_at in newest.items():
                    yield ListedBlob(key, modified_at)

    async def sign(self, blob: BlobRef, lifetime_s: float) -> str | None:
        import obstore

        is_one_object = 0 < blob.bytes <= SEGMENT_BYTES and not blob.key.endswith(_ENCRYPTED)
        if not is_one_object or self._folder is not None:
            return None
        lifetime = timedelta(seconds=lifetime_s)
        with _translated_errors():
            return str(await obstore.sign_async(self.store, "GET", f"{blob.key}/000000", lifetime))

    async def remove_leftovers(self, before: float) -> None:
        if self._folder is not None:
            await asyncio.to_thread(_remove_unfinished, self._folder / self._root, before)


async def _segments(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Regroup chunks of any size into segments: pieces of ``SEGMENT_BYTES`` bytes, of which the
    last may be shorter."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) >= SEGMENT_BYTES:
            yield bytes(buffer[:SEGMENT_BYTES])
            del buffer[:SEGMENT_BYTES]
    if buffer:
        yield bytes(buffer)


async def _delete_file(store: Any, path: str) -> None:
    """Delete a file of an object storage that is a folder of the file system. If another process
    has already deleted the file, do nothing."""
    import obstore

    try:
        await obstore.delete_async(store, path)
    except FileNotFoundError:
        return


def _remove_unfinished(folder: Path, before: float) -> None:
    for parent, _, names in os.walk(folder):
        for name in filter(_UNFINISHED_FILE.match, names):
            path = Path(parent, name)
            if path.stat().st_mtime < before:
                path.unlink(missing_ok=True)


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Context manager that converts errors of obstore into ``StoreError``. The new message does not
    contain obstore's message, which may contain endpoints and paths."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:  # obstore's errors for objects and for buckets
        raise StoreError("The stored content of a file is missing.") from error
    except (BaseError, OSError) as error:
        raise StoreError("The object storage does not answer.") from error

"""``antiphon files``: move the contents of uploaded files to another storage, and delete stored
contents that belong to no file. For example, a server that crashes during an upload leaves such a
content behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import structlog

from antiphon.blobs.collector import BlobCollector
from antiphon.bootstrap.storage import FILES_IN_STORE, files_blobs, open_encryptor, store_cipher
from antiphon.config.settings import Settings
from antiphon.errors import SetupError, StoreError
from antiphon.resources.file_storage.migration import migrate_contents
from antiphon.store import open_store
from antiphon.support.installation import antiphon_command


async def migrate(settings: Settings, source: str, show: Callable[[str], None]) -> int:
    """Move all contents of files from ``source`` to the storage that the setting ``files`` names.
    ``source``: the storage that holds the contents now. Returns the exit code: 1 if a content could
    not be moved, else 0. Raises ``SetupError``."""
    if source == settings.files:
        command = antiphon_command(f"files migrate --from {FILES_IN_STORE}")
        raise SetupError(f"files: contents are already in {source}; name another source: {command}")
    moved = size = failures = 0
    async with AsyncExitStack() as stack:
        store = await open_store(settings.store, cipher=store_cipher(settings))
        stack.push_async_callback(store.close)
        encryptor = await open_encryptor(settings, store)
        blobs_from = await files_blobs(settings, store, encryptor, source)
        blobs_to = (
            None
            if settings.files == FILES_IN_STORE
            else await files_blobs(settings, store, encryptor)
        )
        with _translated_errors():
            async for each in migrate_contents(store.files, blobs_from, blobs_to):
                if each.problem is None:
                    moved, size = moved + 1, size + each.bytes
                else:
                    failures += 1
                    show(f"{each.file_id}  {each.problem}")
            responses = await store.move_blobs(blobs_from, blobs_to)
    show(f"{moved} contents moved, {size} bytes, from {source} to {settings.files}")
    if responses:
        show(f"{responses} large responses moved")
    return 1 if failures else 0


async def collect(settings: Settings, show: Callable[[str], None]) -> None:
    """Delete stored contents that belong to no file. Raises ``SetupError``."""
    async with AsyncExitStack() as stack:
        store = await open_store(settings.store, cipher=store_cipher(settings))
        stack.push_async_callback(store.close)
        blobs = await files_blobs(settings, store, await open_encryptor(settings, store))
        if blobs is None:
            raise SetupError("files: the store holds the contents and deletes unused ones itself")
        collector = BlobCollector(
            store,
            blobs,
            clock=time.time,  # noqa: TID251 - the clock of the command
            log=structlog.get_logger(__name__),
        )
        with _translated_errors():
            unused = await collector.delete_unused()
            abandoned = await collector.delete_abandoned()
    show(f"{unused} unused and {abandoned} abandoned contents deleted")


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise SetupError(f"files: {error.message}") from None

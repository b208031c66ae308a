"""Deletion of blobs (stored contents) that are no longer needed: blobs whose files or responses
were deleted, and blobs of abandoned uploads."""

from __future__ import annotations

from collections.abc import Callable

from antiphon.store.base import Store
from antiphon.support.log import Log
from antiphon.support.tasks import BackgroundTasks, repeat

from .base import Blobs

_UNUSED_S = 60
#: Seconds between two searches for abandoned uploads, and the age at which an upload counts as
#: abandoned.
_SEARCH_S = _ABANDONED_S = 86_400
#: Number of unused blobs that are deleted at a time, and of keys that are looked up at a time.
_BATCH = 500


class BlobCollector:
    """Deletes unused blobs every minute, and blobs of abandoned uploads every day. Use it as an
    async context manager. The deletion then runs in the background until the block ends.

    Several servers that use the same store may run collectors, because deleting a blob twice does
    no harm. ``clock`` returns Unix seconds. It is used if the store has no clock.
    """

    def __init__(self, store: Store, blobs: Blobs, *, clock: Callable[[], float], log: Log) -> None:
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self._log = log
        self._searched_at = 0.0
        self._tasks = BackgroundTasks("blob collector")

    async def __aenter__(self) -> BlobCollector:
        failure = "unused contents of files could not be deleted"
        work = repeat(
            self._collect, _UNUSED_S, failure=failure, is_first_delayed=True, log=self._log
        )
        self._tasks.start(work)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._tasks.close()

    async def _collect(self) -> None:
        await self.delete_unused()
        if self._clock() - self._searched_at >= _SEARCH_S:
            self._searched_at = self._clock()
            await self.delete_abandoned()

    async def delete_unused(self) -> int:
        """Delete the blobs that the store has marked as unused. Return the number of deleted
        blobs."""
        total = 0
        while keys := await self._store.files.list_unused_blobs(_BATCH):
            for key in keys:
                await self._blobs.delete(key)
            await self._store.files.forget_blobs(keys)
            total += len(keys)
        return total

    async def delete_abandoned(self) -> int:
        """Delete the blobs of abandoned uploads. Such a blob was written more than a day ago, and
        the store does not know it. Return the number of deleted blobs."""
        # Use the store's clock: a server with a wrong clock must not delete running uploads.
        before = await self._store.clock(self._clock()) - _ABANDONED_S
        await self._blobs.remove_leftovers(before)
        total, batch = 0, set[str]()
        async for blob in self._blobs.list():
            if blob.modified_at < before:
                batch.add(blob.key)
            if len(batch) >= _BATCH:
                total += await self._delete_unknown(batch)
                batch = set()
        return total + await self._delete_unknown(batch)

    async def _delete_unknown(self, keys: set[str]) -> int:
        unknown = await self._store.files.find_unknown_blobs(keys)
        for key in unknown:
            await self._blobs.delete(key)
        return len(unknown)

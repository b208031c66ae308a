"""Vector stores: searchable collections of uploaded files.

Vector stores of other tenants are reported as not found. A vector store expires when it has not
been used for the time that the client set. An expired vector store can still be retrieved, but it
has no files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.attachments.documents import Documents
from antiphon.errors import InvalidRequest, NotFound
from antiphon.limits.quotas import NO_QUOTAS, TenantQuotas
from antiphon.limits.refusals import quota_exceeded
from antiphon.resources.file_storage.files import Files
from antiphon.resources.reading_models import Embeddings, Rerankers
from antiphon.retrieval.chunking import Passage, join_chunks
from antiphon.store.base import Store
from antiphon.store.vectors import IndexedFile, IndexingTask, IndexUsage, VectorFileQuery
from antiphon.stream.writer import Ids
from antiphon.wire.cursors import (
    PageParams,
    page_of,
    page_of_found,
    page_query,
    select_page,
    unknown_cursor,
)
from antiphon.wire.pagination import Page
from antiphon.wire.parsing.vector_stores import (
    AddFile,
    Attributes,
    CreateVectorStore,
    FilesByPath,
    RankingOptions,
    SearchRequest,
    UpdateVectorStore,
)
from antiphon.wire.resources.vector_stores import (
    FileBatch,
    FileContentPage,
    FileStatus,
    TextPart,
    VectorStore,
    VectorStoreExpiresAfter,
    VectorStoreFile,
    VectorStoreSearchResult,
)

from .indexer import Indexer
from .searcher import Searcher

_DAY_S = 86_400
#: Least number of seconds between two updates of ``last_active_at``. It limits the number of
#: writes.
_ACTIVITY_RESOLUTION_S = 60


class VectorStores:
    """Operations on vector stores. All methods raise ``NotFound`` for unknown ids.

    ``model``: the embedding model. If it is None, only keyword search is available. ``reranker``:
    the reranking model for requests that name none. If ``reranker`` is None, the results of these
    requests are not reranked.
    """

    def __init__(
        self,
        store: Store,
        files: Files,
        documents: Documents,
        embeddings: Embeddings,
        *,
        model: str | None,
        rerankers: Rerankers,
        reranker: str | None = None,
        clock: Callable[[], float],
        ids: Ids,
        quotas: TenantQuotas = NO_QUOTAS,
    ) -> None:
        self._quotas = quotas
        self._files = files
        self._clock = clock
        self._ids = ids
        self._index = store.vectors
        self._indexer = Indexer(store.vectors, files, documents, embeddings, model)
        self._searcher = Searcher(store.vectors, embeddings, model, rerankers, reranker)

    def start(self) -> None:
        """Resume the indexing of files whose indexing an earlier process did not finish."""
        self._indexer.start()

    async def stop(self) -> None:
        """Stop the indexing of all files."""
        await self._indexer.stop()

    # --- vector stores ---------------------------------------------------------------------------

    async def create(self, tenant: str, request: CreateVectorStore) -> VectorStore:
        """Create a vector store and index its first files in the background. Raises
        ``QuotaExceeded``."""
        limit = self._quotas.for_tenant(tenant).max_vector_stores
        entries = await self._new_entries(tenant, "", request.files)
        now = int(self._clock())
        vector_store = VectorStore(
            id=self._ids("vs"),
            created_at=now,
            name=request.name or "",
            description=request.description or UNSET,
            metadata=request.metadata or {},
            expires_after=request.expires_after,
            expires_at=_expiry(request.expires_after, now),
            last_active_at=now,
        )
        if not await self._index.put(tenant, vector_store, max_stores=limit):
            raise quota_exceeded("vector stores", max_vector_stores=limit)
        if entries:
            await self._add(tenant, vector_store.id, entries)
        return await self._with_usage(tenant, vector_store)

    async def retrieve(self, tenant: str, store_id: str) -> VectorStore:
        """Return a vector store with the counts of its files by status."""
        return await self._with_usage(tenant, await self._find(tenant, store_id))

    async def update(self, tenant: str, store_id: str, request: UpdateVectorStore) -> VectorStore:
        """Change a vector store. Fields that the request does not contain stay unchanged."""
        old = await self._find(tenant, store_id)
        after = old.expires_after if request.expires_after is UNSET else request.expires_after
        new = replace(
            old,
            name=old.name if request.name is UNSET else request.name or "",
            metadata=old.metadata if request.metadata is UNSET else request.metadata or {},
            expires_after=after,
            expires_at=_expiry(after, old.last_active_at or old.created_at),
        )
        await self._index.put(tenant, new)
        return await self._with_usage(tenant, new)

    async def delete(self, tenant: str, store_id: str) -> None:
        """Delete a vector store. Its files remain available as uploaded files."""
        await self._find(tenant, store_id)
        entries = await self._index.list_files(tenant, store_id)
        if not await self._index.delete(tenant, store_id):
            raise _not_found(store_id)
        for entry in entries:
            self._indexer.cancel(_job(tenant, entry))

    async def list(self, tenant: str, params: PageParams) -> Page[VectorStore]:
        """Return a page of vector stores."""
        found, more = select_page(await self._index.list_stores(tenant), params)
        return page_of([await self._with_usage(tenant, each) for each in found], more)

    async def search(
        self, tenant: str, store_ids: Sequence[str], request: SearchRequest
    ) -> tuple[VectorStoreSearchResult, ...]:
        """Return the best matching chunks of these vector stores, best first.

        Raises ``InvalidRequest`` for an expired vector store and ``RunError`` if a model call
        fails.
        """
        self._searcher.check(request.ranking, "")
        for store_id in store_ids:
            await self._touch(tenant, store_id)
        return await self._searcher.search(tenant, tuple(dict.fromkeys(store_ids)), request)

    async def check_searchable(
        self, tenant: str, store_ids: Sequence[str], ranking: RankingOptions, path: str
    ) -> None:
        """Raise ``RequestError`` if these vector stores cannot be searched with these ranking
        options.

        ``path``: the request field that contains the file search tool, such as ``tools[0]``, for
        error messages.
        """
        self._searcher.check(ranking, f"{path}.")
        for at, store_id in enumerate(store_ids):
            await self._find_active(tenant, store_id, f"{path}.vector_store_ids[{at}]")

    # --- files in them ---------------------------------------------------------------------------

    async def add_file(self, tenant: str, store_id: str, request: AddFile) -> VectorStoreFile:
        """Add a file to a vector store and index it in the background. A file that the vector store
        already contains is indexed again."""
        await self._touch(tenant, store_id)
        entries = await self._new_entries(tenant, store_id, {"file_id": request})
        await self._add(tenant, store_id, entries)
        return entries[0].file

    async def retrieve_file(self, tenant: str, store_id: str, file_id: str) -> VectorStoreFile:
        """Return a file of a vector store, with its indexing status."""
        return (await self._entry(tenant, store_id, file_id)).file

    async def update_attributes(
        self, tenant: str, store_id: str, file_id: str, attributes: Attributes
    ) -> VectorStoreFile:
        """Replace the attributes of a file in a vector store."""
        while True:  # retry if the file's status changes in the meantime
            entry = await self._entry(tenant, store_id, file_id)
            file = replace(entry.file, attributes=attributes)
            if await self._index.update_attributes(tenant, replace(entry, file=file)):
                return file

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> None:
        """Remove a file from the vector store. The uploaded file itself is not deleted."""
        entry = await self._entry(tenant, store_id, file_id)
        self._indexer.cancel(_job(tenant, entry))
        if not await self._index.remove_file(tenant, store_id, file_id):
            raise _file_not_found(file_id, store_id)

    async def list_files(
        self,
        tenant: str,
        store_id: str,
        params: PageParams,
        *,
        status: str | None = None,
        batch: str | None = None,
    ) -> Page[VectorStoreFile]:
        """Return a page of the files of a vector store. With ``batch``, the page has only files of
        this batch. With ``status``, it has only files with this status."""
        if batch is not None:
            await self.retrieve_batch(tenant, store_id, batch)
        else:
            await self._find(tenant, store_id)
        query = page_query(VectorFileQuery, params, status=status, batch=batch)
        entries = await self._index.list_file_page(tenant, store_id, query)
        if not entries:
            await self._check_cursors(tenant, store_id, params)
        return page_of_found([entry.file for entry in entries], params)

    async def _check_cursors(self, tenant: str, store_id: str, params: PageParams) -> None:
        """Raise ``InvalidRequest`` if a cursor is not the id of a file in the vector store."""
        for param, id in (("after", params.after), ("before", params.before)):
            if id is not None and await self._index.get_file(tenant, store_id, id) is None:
                raise unknown_cursor(param, id)

    async def read_text(self, tenant: str, store_id: str, file_id: str) -> FileContentPage:
        """Return the extracted text of a file. The text is empty until indexing is complete."""
        await self._entry(tenant, store_id, file_id)
        chunks = await self._index.list_chunks(tenant, store_id, file_id)
        text = join_chunks([Passage(chunk.start, chunk.text) for chunk in chunks])
        return FileContentPage(data=(TextPart(text=text),) if text else ())

    # --- batches ---------------------------------------------------------------------------------

    async def create_batch(self, tenant: str, store_id: str, files: FilesByPath) -> FileBatch:
        """Add several files to a vector store as one batch."""
        await self._touch(tenant, store_id)
        batch = FileBatch(
            id=self._ids("vsfb"), created_at=int(self._clock()), vector_store_id=store_id
        )
        entries = await self._new_entries(tenant, store_id, files)
        await self._add(tenant, store_id, entries, batch)
        return await self.retrieve_batch(tenant, store_id, batch.id)

    async def retrieve_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        """Return a batch of files, with the counts of its files by status."""
        await self._find(tenant, store_id)
        found = await self._index.get_batch(tenant, store_id, batch_id)
        if found is None:
            raise NotFound(
                f"No batch found with id '{batch_id}' in vector store '{store_id}'.",
                param="batch_id",
            )
        usage = await self._index.usage(tenant, store_id, batch_id)
        return replace(found, file_counts=usage.counts, status=_status(usage))

    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        """Cancel a batch. Stops the indexing of its files that are not yet indexed."""
        await self.retrieve_batch(tenant, store_id, batch_id)
        for entry in await self._index.list_files(tenant, store_id):
            if entry.batch == batch_id and entry.file.status == "in_progress":
                self._indexer.cancel(_job(tenant, entry))
                file = replace(entry.file, status="cancelled")
                await self._index.finish_file(tenant, replace(entry, file=file), (), "")
        return await self.retrieve_batch(tenant, store_id, batch_id)

    # --- helpers ---------------------------------------------------------------------------------

    async def _find(
        self, tenant: str, store_id: str, param: str = "vector_store_id"
    ) -> VectorStore:
        found = await self._index.get(tenant, store_id)
        if found is None:
            raise _not_found(store_id, param)
        return found

    async def _find_active(
        self, tenant: str, store_id: str, param: str = "vector_store_id"
    ) -> VectorStore:
        found = await self._find(tenant, store_id, param)
        if self._is_expired(found):
            raise InvalidRequest(
                f"Vector store with id '{store_id}' has expired.",
                param=param,
                code="vector_store_expired",
            )
        return found

    async def _touch(self, tenant: str, store_id: str) -> None:
        """Record that a vector store is used now. This postpones its expiry. Raises
        ``InvalidRequest`` if the vector store has expired."""
        found, now = await self._find_active(tenant, store_id), int(self._clock())
        if now - (found.last_active_at or 0) >= _ACTIVITY_RESOLUTION_S:
            expires_at = _expiry(found.expires_after, now)
            used = replace(found, last_active_at=now, expires_at=expires_at)
            await self._index.put(tenant, used)

    async def _with_usage(self, tenant: str, store: VectorStore) -> VectorStore:
        usage = await self._index.usage(tenant, store.id)
        status = "in_progress" if usage.counts.in_progress else "completed"
        return replace(
            store,
            file_counts=usage.counts,
            usage_bytes=usage.bytes,
            status="expired" if self._is_expired(store) else status,
        )

    def _is_expired(self, store: VectorStore) -> bool:
        return store.expires_at is not None and store.expires_at <= self._clock()

    async def _new_entries(
        self, tenant: str, store_id: str, files: FilesByPath
    ) -> tuple[IndexedFile, ...]:
        """Return new index entries for uploaded files of the tenant. Raises ``NotFound`` for an
        unknown file id."""
        now = int(self._clock())
        entries = []
        for path, one in files.items():
            found = await self._files.find(tenant, one.file_id)
            if found is None:
                raise NotFound(f"No such File object: {one.file_id}", param=path)
            file = VectorStoreFile(
                id=one.file_id,
                created_at=now,
                vector_store_id=store_id,
                chunking_strategy=one.chunking,
                attributes=one.attributes or {},
            )
            entries.append(IndexedFile(filename=found.filename, file=file))
        return tuple(entries)

    async def _add(
        self,
        tenant: str,
        store_id: str,
        entries: Sequence[IndexedFile],
        batch: FileBatch | None = None,
    ) -> None:
        new_files = [
            replace(
                entry,
                file=replace(entry.file, vector_store_id=store_id),
                batch=batch.id if batch is not None else None,
            )
            for entry in entries
        ]
        jobs = [_job(tenant, entry) for entry in new_files]
        for job in jobs:  # a running task must not finish the new entry
            self._indexer.cancel(job)
        if not await self._index.add_files(tenant, new_files, batch):
            raise _not_found(store_id)
        self._indexer.add(jobs)

    async def _entry(self, tenant: str, store_id: str, file_id: str) -> IndexedFile:
        await self._find(tenant, store_id)
        found = await self._index.get_file(tenant, store_id, file_id)
        if found is None:
            raise _file_not_found(file_id, store_id)
        return found


def _job(tenant: str, entry: IndexedFile) -> IndexingTask:
    file = entry.file
    return IndexingTask(tenant=tenant, store_id=file.vector_store_id, file_id=file.id)


def _status(usage: IndexUsage) -> FileStatus:
    counts = usage.counts
    if counts.in_progress:
        return "in_progress"
    if counts.cancelled:
        return "cancelled"
    return "failed" if counts.failed and counts.failed == counts.total else "completed"


def _expiry(after: VectorStoreExpiresAfter | None, used_at: int) -> int | None:
    return None if after is None else used_at + after.days * _DAY_S


def _not_found(store_id: str, param: str = "vector_store_id") -> NotFound:
    return NotFound(f"Vector store with id '{store_id}' not found.", param=param)


def _file_not_found(file_id: str, store_id: str) -> NotFound:
    return NotFound(
        f"No file found with id '{file_id}' in vector store '{store_id}'.", param="file_id"
    )

"""Background indexing of files: extract the text of a file, split it into chunks, compute the
vectors of the chunks, and store chunks and vectors.

A few files are indexed at a time, and tenants take turns. If a process stops before it has indexed
all files, the next process indexes the remaining files when it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import structlog
from msgspec.structs import replace

from antiphon.attachments.documents import Documents, UnreadableDocument
from antiphon.errors import RequestError, RunError, StoreError
from antiphon.resources.file_storage.files import Files
from antiphon.resources.reading_models import Embeddings
from antiphon.retrieval.chunking import Passage, split_text
from antiphon.store.vectors import IndexedChunk, IndexedFile, IndexingTask, VectorIndex
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.fair_threads import current_tenant
from antiphon.support.installation import needs_extra
from antiphon.support.tasks import BackgroundTasks, Backoff, retry
from antiphon.wire.resources.vector_stores import FileStatus, LastError

_log = structlog.get_logger(__name__)

_MAX_CONCURRENT_FILES = 2
#: Seconds between attempts to read the list of unfinished files: the first and the longest pause.
_RETRY_S, _RETRY_MAX_S = 1.0, 60.0
#: Number of texts per embedding call. Between two calls, other requests can use the model.
_EMBEDDING_BATCH = 16

_READ_ERRORS = {
    "unsupported": ("unsupported_file", "This kind of file cannot be read."),
    "encrypted": ("invalid_file", "The file is protected by a password."),
    "bomb": ("invalid_file", "Reading the file needs too much memory or disk space."),
    "broken": ("invalid_file", "The file is damaged."),
    "slow": ("invalid_file", "The file takes too long to be read."),
    "long": ("invalid_file", "The text of the file is too long."),
}


def _read_error(error: UnreadableDocument) -> tuple[str, str]:
    """Return the error code and the message that a file gets if its text cannot be read."""
    if error.reason == "missing":
        return "unsupported_file", needs_extra("This server reads text files only", "documents")
    return _READ_ERRORS[error.reason]


class Indexer:
    """Indexes files as background tasks. ``model``: the embedding model. If it is None, chunks are
    stored without vectors."""

    def __init__(
        self,
        vectors: VectorIndex,
        files: Files,
        documents: Documents,
        embeddings: Embeddings,
        model: str | None,
    ) -> None:
        self._vectors = vectors
        self._files = files
        self._documents = documents
        self._embeddings = embeddings
        self._model = model
        self._slots = FairLimiter(_MAX_CONCURRENT_FILES)
        self._tasks = BackgroundTasks("indexing")

    def start(self) -> None:
        """Start to index the files whose indexing an earlier process did not finish."""
        self._tasks.start(self._resume())

    async def stop(self) -> None:
        """Cancel all indexing tasks. The next call of ``start`` resumes the indexing of the files
        that are not yet indexed."""
        await self._tasks.close()

    def add(self, jobs: Iterable[IndexingTask]) -> None:
        """Index these files in the background. If a task for the same file is running, cancel the
        task first."""
        for job in jobs:
            self.cancel(job)
            self._tasks.start(self._index(job), key=job)

    def cancel(self, job: IndexingTask) -> None:
        """Cancel the indexing of a file."""
        self._tasks.cancel(job)

    async def _resume(self) -> None:
        jobs = await retry(
            self._vectors.list_unfinished,
            StoreError,
            Backoff(_RETRY_S, _RETRY_MAX_S),
            failure="unfinished files cannot be listed",
        )
        self.add(job for job in jobs if job not in self._tasks)

    async def _index(self, job: IndexingTask) -> None:
        current_tenant.set(job.tenant)
        try:
            await self._index_file(job)
        except StoreError as error:  # the next start of a process resumes it
            reason = error.message
            _log.error("indexing of a file was interrupted", file=job.file_id, reason=reason)

    async def _index_file(self, job: IndexingTask) -> None:
        async with self._slots.slot(job.tenant):
            entry = await self._vectors.get_file(job.tenant, job.store_id, job.file_id)
            if entry is None or entry.file.status != "in_progress":
                return
            try:
                chunks = await self._chunks(job, entry)
            except UnreadableDocument as error:
                code, message = _read_error(error)
                await self._fail(job, entry, code, message)
            except (RequestError, RunError) as error:
                await self._fail(job, entry, "server_error", error.message)
            except Exception:
                _log.exception("a file could not be indexed", file=job.file_id)
                await self._fail(job, entry, "server_error", "The file could not be indexed.")
            else:
                size = sum(len(c.text.encode()) + len(c.vector or b"") for c in chunks)
                # The file's attributes may have changed in the meantime.
                entry = await self._vectors.get_file(job.tenant, job.store_id, job.file_id) or entry
                updated = _with_status(entry, "completed", size=size)
                await self._vectors.finish_file(job.tenant, updated, chunks, self._model or "")

    async def _chunks(self, job: IndexingTask, entry: IndexedFile) -> list[IndexedChunk]:
        stored = await self._files.read(job.tenant, job.file_id)
        text = await self._documents.text(
            stored.content, name=stored.file.filename, tenant=job.tenant
        )
        strategy = entry.file.chunking_strategy.static
        passages = await asyncio.to_thread(
            split_text, text, strategy.max_chunk_size_tokens, strategy.chunk_overlap_tokens
        )
        if self._model is None:
            return [IndexedChunk(start=passage.start, text=passage.text) for passage in passages]
        chunks: list[IndexedChunk] = []
        for start in range(0, len(passages), _EMBEDDING_BATCH):
            chunks += await self._with_vectors(
                job.tenant, passages[start : start + _EMBEDDING_BATCH]
            )
        return chunks

    async def _with_vectors(self, tenant: str, passages: Sequence[Passage]) -> list[IndexedChunk]:
        texts = [passage.text for passage in passages]
        embedded = await self._embeddings.embed(self._model, texts, tenant=tenant, role="passage")
        return [
            IndexedChunk(start=passage.start, text=passage.text, vector=vector.tobytes())
            for passage, vector in zip(passages, embedded.vectors, strict=True)
        ]

    async def _fail(self, job: IndexingTask, entry: IndexedFile, code: str, message: str) -> None:
        error = LastError(code=code, message=message)  # type: ignore[arg-type]
        updated = _with_status(entry, "failed", error=error)
        await self._vectors.finish_file(job.tenant, updated, (), "")


def _with_status(
    entry: IndexedFile, status: FileStatus, *, size: int = 0, error: LastError | None = None
) -> IndexedFile:
    file = replace(entry.file, status=status, usage_bytes=size, last_error=error)
    return replace(entry, file=file)

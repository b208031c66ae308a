"""Files made searchable, behind the requests that ask for it: read, cut, given vectors, kept.

Few at a time. What the process leaves unfinished is done by the next one. It knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import structlog
from msgspec.structs import replace

from antiphon.attachments.documents import Documents, Unreadable
from antiphon.errors import RequestError, RunError
from antiphon.retrieval.chunking import Piece, cut
from antiphon.store.vectors import Chunk, IndexedFile, IndexingTask, VectorIndex
from antiphon.wire.vector_stores import FileStatus, LastError

from .embeddings import Embeddings
from .files import Files

__all__ = ["Indexer"]

_log = structlog.get_logger(__name__)

_AT_ONCE = 2
#: Texts given to the model at a time: between them, others have their turn.
_TEXTS = 16

_WHY = {
    "unsupported": ("unsupported_file", "This kind of file cannot be read."),
    "missing": ("unsupported_file", "This server has no reader for this kind of file."),
    "encrypted": ("invalid_file", "The file is protected by a password."),
    "bomb": ("invalid_file", "The file takes too much to be read."),
    "broken": ("invalid_file", "The file is damaged."),
    "slow": ("invalid_file", "The file takes too long to be read."),
    "long": ("invalid_file", "The text of the file is too long."),
}


class Indexer:
    """One a service. ``model``: who makes the vectors; None: there are none."""

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
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._tasks: dict[IndexingTask, asyncio.Task[None]] = {}
        self._resuming: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Go on with what was left unfinished."""
        self._resuming = asyncio.create_task(self._resume())

    async def stop(self) -> None:
        """What is not finished waits for the next start."""
        tasks = [*self._tasks.values(), *([self._resuming] if self._resuming else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def add(self, works: Iterable[IndexingTask]) -> None:
        """These are to be done; what was begun of one of them is not gone on with."""
        for work in works:
            self.drop(work)
            self._tasks[work] = task = asyncio.create_task(self._do(work))
            task.add_done_callback(lambda done, work=work: self._done(work, done))  # type: ignore[misc]

    def drop(self, work: IndexingTask) -> None:
        """Nobody wants it any more."""
        task = self._tasks.pop(work, None)
        if task is not None:
            task.cancel()

    def _done(self, work: IndexingTask, task: asyncio.Task[None]) -> None:
        if self._tasks.get(work) is task:
            del self._tasks[work]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a file was left unfinished", file=work.file_id, why=str(error))

    async def _resume(self) -> None:
        self.add(work for work in await self._vectors.list_unfinished() if work not in self._tasks)

    async def _do(self, work: IndexingTask) -> None:
        async with self._places:
            entry = await self._vectors.get_file(work.tenant, work.store_id, work.file_id)
            if entry is None or entry.file.status != "in_progress":
                return
            try:
                chunks = await self._chunks(work, entry)
            except Unreadable as error:
                code, message = _WHY[error.why]
                await self._fail(work, entry, code, message)
            except (RequestError, RunError) as error:
                await self._fail(work, entry, "server_error", error.message)
            except Exception:
                _log.exception("a file could not be indexed", file=work.file_id)
                await self._fail(work, entry, "server_error", "The file could not be indexed.")
            else:
                size = sum(len(c.text.encode()) + len(c.vector or b"") for c in chunks)
                # Its attributes may be others by now.
                entry = (
                    await self._vectors.get_file(work.tenant, work.store_id, work.file_id) or entry
                )
                settled = _settled(entry, "completed", size=size)
                await self._vectors.finish_file(work.tenant, settled, chunks, self._model or "")

    async def _chunks(self, work: IndexingTask, entry: IndexedFile) -> list[Chunk]:
        kept = await self._files.content(work.tenant, work.file_id)
        text = await self._documents.text(kept.content, name=kept.file.filename)
        how = entry.file.chunking_strategy.static
        pieces = await asyncio.to_thread(
            cut, text, how.max_chunk_size_tokens, how.chunk_overlap_tokens
        )
        if self._model is None:
            return [Chunk(start=piece.start, text=piece.text) for piece in pieces]
        chunks: list[Chunk] = []
        for at in range(0, len(pieces), _TEXTS):
            chunks += await self._with_vectors(pieces[at : at + _TEXTS])
        return chunks

    async def _with_vectors(self, pieces: Sequence[Piece]) -> list[Chunk]:
        texts = [piece.text for piece in pieces]
        made = await self._embeddings.make(self._model, texts, role="passage")
        return [
            Chunk(start=piece.start, text=piece.text, vector=vector.tobytes())
            for piece, vector in zip(pieces, made.vectors, strict=True)
        ]

    async def _fail(self, work: IndexingTask, entry: IndexedFile, code: str, message: str) -> None:
        error = LastError(code=code, message=message)  # type: ignore[arg-type]
        settled = _settled(entry, "failed", error=error)
        await self._vectors.finish_file(work.tenant, settled, (), "")


def _settled(
    entry: IndexedFile, status: FileStatus, *, size: int = 0, error: LastError | None = None
) -> IndexedFile:
    file = replace(entry.file, status=status, usage_bytes=size, last_error=error)
    return replace(entry, file=file)

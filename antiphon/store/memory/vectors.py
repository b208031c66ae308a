"""Vector stores in memory: the reference of their contract."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec import Struct, field

from antiphon.search_terms import index_terms
from antiphon.store.vectors import Chunk, Entry, Held, Hit, Mark, Matrix, Work
from antiphon.wire.vector_stores import FileBatch, FileCounts, VectorStore

__all__ = ["MemoryVectors"]

_WORD = re.compile(r"\w+")
#: BM25's usual constants.
_K1, _B = 1.2, 0.75


class _Kept(Struct):
    """A chunk with its number, and whose its vector is."""

    number: int
    chunk: Chunk
    model: str


class _Filed(Struct):
    entry: Entry
    chunks: list[_Kept] = field(default_factory=list)


class _Shelf(Struct):
    store: VectorStore
    files: dict[str, _Filed] = field(default_factory=dict)
    batches: dict[str, FileBatch] = field(default_factory=dict)

    def chunks(self) -> Iterator[tuple[str, _Kept]]:
        """With the ids of their files."""
        for id, filed in self.files.items():
            for kept in filed.chunks:
                yield id, kept


class MemoryVectors:
    """``Vectors`` over dictionaries. ``check`` raises where the store is closed."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._shelves: dict[tuple[str, str], _Shelf] = {}
        self._number = 0

    async def put(self, tenant: str, store: VectorStore) -> None:
        self._check()
        shelf = self._shelves.setdefault((tenant, store.id), _Shelf(store))
        shelf.store = store

    async def get(self, tenant: str, store_id: str) -> VectorStore | None:
        shelf = self._of(tenant, store_id)
        return shelf.store if shelf is not None else None

    async def all(self, tenant: str) -> tuple[VectorStore, ...]:
        self._check()
        return tuple(shelf.store for key, shelf in self._shelves.items() if key[0] == tenant)

    async def drop(self, tenant: str, store_id: str) -> bool:
        self._check()
        return self._shelves.pop((tenant, store_id), None) is not None

    async def held(self, tenant: str, store_id: str, batch: str | None = None) -> Held:
        entries = await self.entries(tenant, store_id)
        meant = [each.file for each in entries if batch in (None, each.batch)]
        counted = Counter[str](file.status for file in meant)
        return Held(
            counts=FileCounts(**counted, total=len(meant)),
            bytes=sum(file.usage_bytes for file in meant),
        )

    async def add(self, tenant: str, entries: Sequence[Entry], batch: FileBatch | None) -> bool:
        store_id = entries[0].file.vector_store_id if batch is None else batch.vector_store_id
        shelf = self._of(tenant, store_id)
        if shelf is None:
            return False
        for entry in entries:
            shelf.files.pop(entry.file.id, None)
            shelf.files[entry.file.id] = _Filed(entry)
        if batch is not None:
            shelf.batches[batch.id] = batch
        return True

    async def settle(self, tenant: str, entry: Entry, chunks: Sequence[Chunk], model: str) -> bool:
        filed = self._file(tenant, entry.file.vector_store_id, entry.file.id)
        if filed is None or filed.entry.file.status != "in_progress":
            return False
        filed.entry = entry
        for chunk in chunks:
            self._number += 1
            filed.chunks.append(_Kept(self._number, chunk, model))
        return True

    async def label(self, tenant: str, entry: Entry) -> bool:
        filed = self._file(tenant, entry.file.vector_store_id, entry.file.id)
        if filed is None or filed.entry.file.status != entry.file.status:
            return False
        filed.entry = entry
        return True

    async def entry(self, tenant: str, store_id: str, file_id: str) -> Entry | None:
        filed = self._file(tenant, store_id, file_id)
        return filed.entry if filed is not None else None

    async def entries(self, tenant: str, store_id: str) -> tuple[Entry, ...]:
        shelf = self._of(tenant, store_id)
        return tuple(filed.entry for filed in shelf.files.values()) if shelf is not None else ()

    async def remove(self, tenant: str, store_id: str, file_id: str) -> bool:
        shelf = self._of(tenant, store_id)
        return shelf is not None and shelf.files.pop(file_id, None) is not None

    async def batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch | None:
        shelf = self._of(tenant, store_id)
        return shelf.batches.get(batch_id) if shelf is not None else None

    async def chunks(self, tenant: str, store_id: str, file_id: str) -> tuple[Chunk, ...]:
        filed = self._file(tenant, store_id, file_id)
        chunks = (kept.chunk for kept in filed.chunks) if filed is not None else ()
        return tuple(Chunk(start=chunk.start, text=chunk.text) for chunk in chunks)

    async def texts(self, tenant: str, store_id: str, chunks: Collection[int]) -> dict[int, str]:
        shelf = self._of(tenant, store_id)
        there = shelf.chunks() if shelf is not None else ()
        return {kept.number: kept.chunk.text for _, kept in there if kept.number in chunks}

    async def found(
        self, tenant: str, store_id: str, words: Sequence[str], files: Collection[str], limit: int
    ) -> tuple[Hit, ...]:
        shelf = self._of(tenant, store_id)
        there = [(id, kept) for id, kept in shelf.chunks()] if shelf is not None else []
        counts = [Counter(_words(kept.chunk.text)) for _, kept in there]
        scores = _bm25(counts, {word.lower() for word in words})
        hits = [
            Hit(chunk=kept.number, file_id=id, score=score)
            for (id, kept), score in zip(there, scores, strict=True)
            if score and id in files
        ]
        return tuple(sorted(hits, key=lambda hit: (-hit.score, hit.chunk))[:limit])

    async def mark(self, tenant: str, store_id: str, model: str) -> Mark:
        numbers = (await self.matrix(tenant, store_id, model)).chunks
        return Mark(max(numbers, default=0), len(numbers))

    async def matrix(self, tenant: str, store_id: str, model: str) -> Matrix:
        shelf = self._of(tenant, store_id)
        there = shelf.chunks() if shelf is not None else ()
        rows = [
            (kept.number, id, kept.chunk.vector)
            for id, kept in there
            if kept.chunk.vector is not None and kept.model == model
        ]
        return Matrix(
            chunks=tuple(row[0] for row in rows),
            file_ids=tuple(row[1] for row in rows),
            vectors=b"".join(row[2] for row in rows),
        )

    async def unfinished(self) -> tuple[Work, ...]:
        self._check()
        return tuple(
            Work(tenant=tenant, store_id=store_id, file_id=id)
            for (tenant, store_id), shelf in self._shelves.items()
            for id, filed in shelf.files.items()
            if filed.entry.file.status == "in_progress"
        )

    def expire(self, now: int) -> None:
        """Forget what is in those whose time has come."""
        for shelf in self._shelves.values():
            if shelf.store.expires_at is not None and shelf.store.expires_at <= now:
                shelf.files.clear()

    def forget_file(self, tenant: str, file_id: str) -> None:
        """A file is gone: so it is from all vector stores."""
        for (owner, _), shelf in self._shelves.items():
            if owner == tenant:
                shelf.files.pop(file_id, None)

    def _of(self, tenant: str, store_id: str) -> _Shelf | None:
        self._check()
        return self._shelves.get((tenant, store_id))

    def _file(self, tenant: str, store_id: str, file_id: str) -> _Filed | None:
        shelf = self._of(tenant, store_id)
        return shelf.files.get(file_id) if shelf is not None else None


def _words(text: str) -> list[str]:
    return _WORD.findall(index_terms(text).lower())


def _bm25(counts: Sequence[Counter[str]], words: Collection[str]) -> list[float]:
    lengths = [count.total() for count in counts]
    usual = sum(lengths) / len(lengths) if counts else 0.0
    having = {word: sum(word in count for count in counts) for word in words}
    weights = {
        word: math.log(1 + (len(counts) - held + 0.5) / (held + 0.5))
        for word, held in having.items()
    }
    return [
        sum(
            weights[word] * seen * (_K1 + 1) / (seen + _K1 * (1 - _B + _B * length / usual))
            for word in words
            if (seen := count[word])
        )
        for count, length in zip(counts, lengths, strict=True)
    ]

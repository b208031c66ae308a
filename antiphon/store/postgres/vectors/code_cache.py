"""A cache of the codes of large vector stores. A code is a short approximation of a vector (see
vector_codes.py). PostgreSQL computes the codes when a search first needs them.

Cached codes stay valid. The chunks of an indexed file never change, and a file that is added again
gets another number. So only the codes of new files are loaded.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import structlog

from antiphon.errors import first_line
from antiphon.store.postgres.pool import ConnectionPool

from .vector_codes import VectorCodes, can_use_codes

__all__ = ["FINISHED_FILES", "CodeCache"]

_log = structlog.get_logger(__name__)

#: Largest size of all codes in a process: enough for ten million chunks of 384 dimensions.
_MAX_BYTES = 2**30
#: Number of chunks that one statement loads, in a tenth of a second. Number of files whose vectors
#: are averaged to get the mean.
_LOADED_ROWS, _SAMPLED_FILES = 20_000, 100
#: If codes belong to more files than this factor times the existing files, all are loaded again.
_MAX_DEAD_FACTOR = 2

#: Makes PostgreSQL plan a statement for its arguments. Then it computes constants only once;
#: otherwise it would compute them for each row.
_CUSTOM_PLAN = "SET LOCAL plan_cache_mode = force_custom_plan"
#: Files of a vector store whose chunks do not change any more.
FINISHED_FILES = """
SELECT seq FROM vector_files WHERE store = $1 AND status <> 'in_progress' ORDER BY seq
"""
_EXISTING = "SELECT id FROM large_vector_stores"
_COUNTS = "SELECT file, count(*) FROM large_vectors_{id} WHERE file = ANY($1::bigint[]) GROUP BY 1"
_MEAN = """
SELECT {schema}avg(vector)::real[] FROM large_vectors_{id} WHERE file = ANY($1::bigint[])
"""
#: The first four bytes of a sent bit string are its length.
_CODES = """
SELECT file, string_agg(int8send(chunk), ''::bytea), string_agg(substring(varbit_send(
    {schema}binary_quantize(vector OPERATOR({schema}-) $2::real[]::{schema}halfvec)
    || {schema}binary_quantize(vector OPERATOR({schema}-) $3::real[]::{schema}halfvec)
) FROM 5), ''::bytea)
FROM large_vectors_{id} WHERE file = ANY($1::bigint[]) GROUP BY file
"""


class CodeCache:
    """Keeps the codes of large vector stores in memory. A code is a short approximation of a
    vector. ``schema``: the name of the schema of the extension pgvector, quoted and followed by a
    period."""

    def __init__(self, pool: ConnectionPool, schema: str) -> None:
        self._pool = pool
        self._schema = schema
        #: The least recently used codes come first.
        self._codes: OrderedDict[int, VectorCodes] = OrderedDict()
        self._too_large: set[int] = set()
        self._loads: dict[int, asyncio.Task[None]] = {}
        self._loading = asyncio.Lock()

    def get(self, id: int) -> VectorCodes | None:
        """Return the codes of a large vector store. Returns None if they are not loaded. ``id``:
        the id of the large vector store."""
        if (codes := self._codes.get(id)) is not None:
            self._codes.move_to_end(id)
        return codes

    def load(self, id: int, store: int) -> None:
        """Start a task that loads the codes of a large vector store, except those that are already
        in the cache. ``id``: the id of the large vector store, whose table of vectors is named
        ``large_vectors_{id}``. ``store``: the row number of the vector store in the table
        ``vector_stores``."""
        if id not in self._loads and id not in self._too_large and can_use_codes():
            self._loads[id] = asyncio.create_task(self._load(id, store), name="vector codes")

    async def finish_loads(self) -> None:
        """Wait until all started load tasks have finished."""
        await asyncio.gather(*self._loads.values())

    async def close(self) -> None:
        """Cancel the running load tasks."""
        loads = list(self._loads.values())
        for task in loads:
            task.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    async def _load(self, id: int, store: int) -> None:
        try:
            async with self._loading:
                await self._load_missing(id, store)
        except Exception as error:  # searches go on without codes
            cause = first_line(error.__cause__ or error)
            _log.warning("codes of vectors could not be loaded", store=store, error=cause)
        finally:
            del self._loads[id]

    async def _load_missing(self, id: int, store: int) -> None:
        # Read the files before their chunks: then the chunks of each finished file are complete.
        finished = [row[0] for row in await self._fetch(FINISHED_FILES, store)]
        codes = self._codes.get(id)
        if codes is not None and codes.file_count > _MAX_DEAD_FACTOR * len(finished):
            codes = None
        missing = finished if codes is None else codes.find_missing(finished)
        found = await self._fetch(_COUNTS.format(id=id), missing)
        counts = {row[0]: row[1] for row in found}
        if codes is None:
            sample = list(counts)[:: len(counts) // _SAMPLED_FILES + 1]
            sql = _MEAN.format(schema=self._schema, id=id)
            ((mean,),) = await self._fetch(sql, sample)
            codes = VectorCodes(mean or [])
        if not await self._make_room(id, codes.size(codes.count() + sum(counts.values()))):
            return
        codes.add([(file, b"", b"") for file in missing if file not in counts])
        sql = _CODES.format(schema=self._schema, id=id)
        for files in _batches(counts):
            rows = await self._fetch(sql, files, *codes.bounds)
            await asyncio.to_thread(codes.add, [tuple(row) for row in rows])
        self._codes[id] = codes

    async def _make_room(self, id: int, needed: int) -> bool:
        """Drop codes from the cache until all codes of the large vector store ``id`` fit into it.
        ``needed``: the size of these codes in bytes. Returns False if this is more than the cache
        may hold.

        The codes of deleted vector stores are dropped first, then the least recently used codes of
        other vector stores.
        """
        existing = {row[0] for row in await self._fetch(_EXISTING)}
        for key in self._codes.keys() - existing:
            del self._codes[key]
        if needed > _MAX_BYTES:
            _log.warning("a vector store is too large for codes of its vectors", id=id)
            self._codes.pop(id, None)
            self._too_large.add(id)
            return False
        others = [key for key in self._codes if key != id]
        while others and needed + sum(self._codes[key].byte_count for key in others) > _MAX_BYTES:
            del self._codes[others.pop(0)]
        return True

    async def _fetch(self, sql: str, *arguments: Any) -> list[Any]:
        async with self._pool.transaction() as transaction:
            await transaction.use_schema()
            await transaction.execute(_CUSTOM_PLAN)
            return await transaction.fetch(sql, *arguments)


def _batches(counts: Mapping[int, int]) -> Iterator[list[int]]:
    """Yield groups of files. The files of a group together have at most ``_LOADED_ROWS`` chunks, so
    one statement can load their codes. A file with more chunks is a group by itself. ``counts``:
    the number of chunks of each file."""
    files, total = list[int](), 0
    for file, count in sorted(counts.items()):
        if files and total + count > _LOADED_ROWS:
            yield files
            files, total = [], 0
        files.append(file)
        total += count
    if files:
        yield files

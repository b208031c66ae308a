"""The results of a batch: kept in chunks in the store, and then written to files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from msgspec.structs import replace

from antiphon.resources.file_storage.files import Files, FileUpload
from antiphon.store.batches import BatchRecord, BatchStore, ResultChunk
from antiphon.store.files import FileQuery
from antiphon.support.fair_limiter import FairLimiter
from antiphon.wire.resources.batches import Batch
from antiphon.wire.resources.files import FileExpiresAfter
from antiphon.wire.response import Usage

from .lines import usage_of

_PURPOSE = "batch_output"
#: A chunk is stored when it has this many bytes, or after this many seconds.
_CHUNK_BYTES, _CHUNK_S = 256 * 1024, 0.25

_Renew = Callable[[Callable[[Batch], Batch]], Awaitable[BatchRecord]]


class LeaseLost(Exception):
    """Another server executes the batch now."""


class BatchResults:
    """The results of one batch. ``renew`` changes the batch as long as this server owns it.
    ``on_stored`` is called with the number of each line whose result is stored. ``transfers``: the
    turns in which result files are written."""

    def __init__(
        self,
        store: BatchStore,
        files: Files,
        tenant: str,
        batch_id: str,
        expires_after: FileExpiresAfter | None,
        *,
        renew: _Renew,
        on_stored: Callable[[int], Awaitable[None]],
        transfers: FairLimiter,
    ) -> None:
        self._transfers = transfers
        self._store = store
        self._files = files
        self._tenant = tenant
        self._id = batch_id
        self._expires_after = expires_after
        self._renew = renew
        self._on_stored = on_stored
        self._lock = asyncio.Lock()
        self._chunk_count = 0
        self._completed = self._failed = 0
        self._usage = Usage()
        #: The numbers of the lines that have a result, one byte per line.
        self._done = bytearray()
        #: The results that are not stored yet.
        self._lines: list[int] = []
        self._output: list[bytes] = []
        self._errors: list[bytes] = []
        self._size = 0
        self._stored_at = asyncio.get_running_loop().time()

    async def load(self) -> None:
        """Read the results of the batch that are already stored, so that more can be added."""
        async for chunk in self._store.chunks(self._tenant, self._id):
            self._chunk_count += 1
            self._completed += chunk.completed
            self._failed += chunk.failed
            self._usage = chunk.usage
            for number in chunk.lines:
                self._mark(number)

    def has(self, number: int) -> bool:
        """Return whether a line has a result."""
        return number < len(self._done) and bool(self._done[number])

    def _mark(self, number: int) -> None:
        if number >= len(self._done):
            self._done.extend(bytes(number + 1 - len(self._done)))
        self._done[number] = 1

    async def add(
        self, number: int, result: bytes, *, succeeded: bool, answer: bytes = b"{}"
    ) -> None:
        """Add the result of a line. ``answer``: the body of the answer, which tells the usage."""
        self._mark(number)
        self._lines.append(number)
        (self._output if succeeded else self._errors).append(result)
        self._completed += succeeded
        self._failed += not succeeded
        self._usage = usage_of(answer, self._usage)
        self._size += len(result)
        now = asyncio.get_running_loop().time()
        if self._size >= _CHUNK_BYTES or now >= self._stored_at + _CHUNK_S:
            await self._flush()

    async def _flush(self) -> None:
        """Store the results that are not stored yet."""
        async with self._lock:
            if not self._lines:
                return
            chunk = ResultChunk(
                lines=tuple(self._lines),
                output=_joined(self._output),
                errors=_joined(self._errors),
                completed=len(self._output),
                failed=len(self._errors),
                usage=self._usage,
            )
            kept = self._lines, self._output, self._errors, self._size
            self._lines, self._output, self._errors, self._size = [], [], [], 0
            self._stored_at = asyncio.get_running_loop().time()
            try:
                is_stored = await self._store.add_chunk(
                    self._tenant, self._id, self._chunk_count, chunk
                )
            except BaseException:  # also if the line that stores them is cancelled
                self._lines[:0], self._output[:0], self._errors[:0] = kept[:3]
                self._size += kept[3]
                raise
            self._chunk_count += 1
            if not is_stored:
                raise LeaseLost
            await self._renew(self._count)
            for number in chunk.lines:
                await self._on_stored(number)

    def _count(self, batch: Batch) -> Batch:
        counts = replace(batch.request_counts, completed=self._completed, failed=self._failed)
        return replace(batch, request_counts=counts, usage=self._usage)

    async def finish(self, status: str, now: int) -> None:
        """Write the result files, and end the batch with this status. ``now``: Unix seconds."""
        await self._flush()
        await self._renew(
            lambda batch: replace(
                batch,
                status="finalizing" if batch.status == "in_progress" else batch.status,
                finalizing_at=batch.finalizing_at or now,
            )
        )
        output = await self._write("output", lambda chunk: chunk.output)
        errors = await self._write("error", lambda chunk: chunk.errors)
        await self._renew(
            lambda batch: replace(
                self._count(batch),
                output_file_id=output,
                error_file_id=errors,
                **{"status": status, f"{status}_at": now},
            )
        )

    async def _write(self, kind: str, part: Callable[[ResultChunk], bytes]) -> str | None:
        """Write a result file and return its id. Returns None if it would be empty. Returns the
        file of an earlier server that died before the batch ended."""
        name = f"{self._id}_{kind}.jsonl"
        query = FileQuery(purpose=_PURPOSE, limit=100)
        for file in (await self._files.list(self._tenant, query)).data:
            if file.filename == name:
                return file.id

        async def content() -> AsyncGenerator[bytes, None]:
            async for chunk in self._store.chunks(self._tenant, self._id):
                if data := part(chunk):
                    yield data

        size = sum([len(data) async for data in content()])
        if not size:
            return None
        upload = FileUpload(
            filename=name,
            purpose=_PURPOSE,
            bytes=size,
            chunks=content(),
            expires_after=self._expires_after,
        )
        async with self._transfers.slot(self._tenant):
            return (await self._files.create(self._tenant, upload)).id


def _joined(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)

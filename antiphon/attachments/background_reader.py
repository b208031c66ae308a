"""Open the document reader in the background, so that the start of the server does not wait for it.

Opening includes a check that runs code in a sandbox. This code has a lower CPU priority than other
processes, so on a busy machine, the check may take seconds.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from antiphon.support.tasks import BackgroundTasks

from .documents import DocumentReader, ProcessReader


class BackgroundReader:
    """``DocumentReader`` that opens another reader in the background. Calls of ``read`` wait until
    that reader is open, and then use it.

    ``reader``: the context manager that opens the other reader, which works in a sandbox. If the
    context manager yields None, ``ProcessReader`` is used instead.

    Use an instance as an async context manager. On entry, the instance starts to open the other
    reader, and does not wait until that reader is open.
    """

    def __init__(self, reader: AbstractAsyncContextManager[DocumentReader | None]) -> None:
        self._reader = reader
        self._tasks = BackgroundTasks("opening of the document reader")
        self._opening: asyncio.Task[DocumentReader | None] | None = None

    async def __aenter__(self) -> Self:
        self._opening = self._tasks.start(self._open(), is_awaited=True)
        return self

    async def _open(self) -> DocumentReader | None:
        return await self._reader.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._opening is not None
        await self._tasks.close()
        if not self._opening.cancelled() and self._opening.exception() is None:
            await self._reader.__aexit__(kind, error, traceback)

    async def read(self, content: bytes, kind: str, *, max_chars: int, timeout_s: float) -> bytes:
        assert self._opening is not None
        reader = await asyncio.shield(self._opening) or ProcessReader()
        return await reader.read(content, kind, max_chars=max_chars, timeout_s=timeout_s)

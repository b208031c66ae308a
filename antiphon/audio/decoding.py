"""Decode recordings of clients, in a process of its own.

FFmpeg reads the files, and its parsers are a usual target of hostile files. So the process has
limits on memory and time, cannot write files and does not get the server's secrets.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from antiphon.errors import BackendError, InvalidRequest, invalid_field
from antiphon.ipc.worker_process import WorkerFailed, run_worker
from antiphon.support.fair_limiter import FairLimiter

from .decoding_worker import BROKEN, LONG, SAMPLE_BYTES

_log = structlog.get_logger(__name__)

_WORKER = Path(__file__).with_name("decoding_worker.py")
_TIMEOUT_S = 120.0
#: Recordings that are decoded at a time.
_MAX_CONCURRENT = 2


class AudioDecoder:
    """Decodes recordings to 16-bit samples, one channel, ``SAMPLE_RATE`` samples a second. Tenants
    take turns. ``max_seconds``: the longest recording."""

    def __init__(self, max_seconds: int) -> None:
        self._max_seconds = max_seconds
        self._slots = FairLimiter(_MAX_CONCURRENT)

    async def decode(self, content: bytes, *, tenant: str = "") -> bytes:
        """Return the samples of a recording. Raises ``InvalidRequest`` with the param ``file``."""
        async with self._slots.slot(tenant):
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    found = await run_worker(_WORKER, str(self._max_seconds), content=content)
            except (WorkerFailed, TimeoutError):
                raise _invalid("it takes too much memory or time to decode") from None
            except OSError as error:
                _log.error("audio decoder could not start", reason=str(error))
                raise BackendError("The server cannot decode audio now.") from None
        if found == BROKEN:
            raise _invalid("it is no audio, or its format is not supported")
        if found == LONG:
            raise _invalid(f"the recording is longer than {self._max_seconds} seconds")
        if len(found) < SAMPLE_BYTES:
            raise _invalid("the recording is empty")
        return found


def _invalid(why: str) -> InvalidRequest:
    return invalid_field("file", f"{why}.")

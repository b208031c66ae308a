"""Work of tokenizers that ends early."""

from __future__ import annotations

import asyncio
import threading

import pytest

from antiphon.errors import InvalidRequest
from antiphon.support.encoding_work import (
    EncodingCancelled,
    count_ids,
    encode_in_thread,
    limit_ids,
)


async def test_cancelled_work_ends_after_its_window() -> None:
    started, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

    def encode() -> None:
        count_ids(1)
        started.set()
        assert cancelled.wait(30)
        with pytest.raises(EncodingCancelled):
            count_ids(1)
        ended.set()

    task = asyncio.create_task(encode_in_thread(encode))
    assert await asyncio.to_thread(started.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cancelled.set()
    assert await asyncio.to_thread(ended.wait, 30)


async def test_too_many_ids_are_refused() -> None:
    def encode(count: int) -> int:
        with limit_ids(3):
            for _ in range(count):
                count_ids(1)
        count_ids(9)  # what is encoded later has no limit
        return count

    assert await encode_in_thread(encode, 3) == 3
    with pytest.raises(InvalidRequest) as refused:
        await encode_in_thread(encode, 4)
    assert refused.value.code == "context_length_exceeded"
    assert encode(4) == 4  # nobody waits

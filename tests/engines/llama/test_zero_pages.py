"""Memory that llama.cpp cleared is resident only where it is used."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import pytest

from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.llama.engine import load
from antiphon.engines.llama.zero_pages import MemoryRange, release_zero_pages, writable_ranges
from antiphon.inference.tokens import Prompt
from antiphon.testing.engine_check import collect
from tests.child_processes import child_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and madvise")

MIB = 1 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def anonymous_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) << 10


def test_only_private_anonymous_memory_counts() -> None:
    ranges = writable_ranges(
        "1000-2000 rw-p 00000000 00:00 0 \n"
        "3000-4000 rw-p 00000000 00:00 0 [heap]\n"
        "5000-6000 r--p 00000000 00:00 0 \n"
        "7000-8000 rw-s 00000000 00:00 0 \n"
        "9000-a000 rw-p 00000000 08:01 7 /usr/lib/x.so\n"
    )
    assert list(ranges) == [MemoryRange(0x1000, 0x2000)]


def test_zeros_are_dropped_and_data_stays() -> None:
    size = 64 * MIB
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.write(bytes(size))
    area[5 * MIB : 5 * MIB + 4] = b"data"
    area[-1:] = b"x"
    full = resident_bytes()
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    released = release_zero_pages([MemoryRange(start, start + size)])
    assert size - 2 * MIB < released < size
    assert full - resident_bytes() > size // 2
    assert area[5 * MIB : 5 * MIB + 4] == b"data" and area[-1:] == b"x"
    assert area[: 5 * MIB] == bytes(5 * MIB)


def test_small_ranges_are_left_alone() -> None:
    area = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.write(bytes(MIB))
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert release_zero_pages([MemoryRange(start, start + MIB)]) == 0


@pytest.mark.e2e
async def test_cache_of_a_model_takes_memory_only_as_it_is_used(smollm2_path: Path) -> None:
    others = child_processes()
    engine = await load(smollm2_path, LoadOptions(threads=1, parallel=4))
    (pid,) = child_processes() - others
    loaded = anonymous_bytes(pid)
    ids = tuple(engine.tokenizer.encode("Rivers of Europe: " * 250, special=False))
    assert len(ids) > 1000
    await collect(engine, Prompt(ids), Sampling(max_tokens=8, temperature=0))
    used = anonymous_bytes(pid)
    await engine.close()
    # The cache of 4 x 8192 tokens has 720 MiB, so 22.5 KiB a token.
    assert loaded < 100 * MIB
    assert used - loaded < 100 * MIB

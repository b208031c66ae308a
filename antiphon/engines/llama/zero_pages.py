"""Give memory that contains only zeros back to the system.

llama.cpp clears its KV cache while it loads a model. So every page of the cache takes physical
memory: 720 MiB for the small default model. A page of zeros can be given back safely, because the
next access finds zeros again. After that, memory use grows only with the tokens that are really in
the cache.

While pages are given back, no other thread of the process may write to them. So only the process of
llama.cpp does this, after it has loaded its model and before it accepts requests.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

#: Mappings with fewer bytes are not changed.
_MIN_BYTES = 32 << 20
#: Number of bytes that are compared and returned at a time. It is a multiple of every page size.
_BLOCK = 256 << 10
_MAPS = Path("/proc/self/maps")


class MemoryRange(Struct, frozen=True, order=True):
    """The memory addresses from ``start`` (included) to ``end`` (excluded)."""

    start: int
    end: int


def writable_ranges(text: str | None = None) -> Iterator[MemoryRange]:
    """Yield the private writable memory mappings of this process that have no file. Yield nothing
    on systems other than Linux. ``text``: the contents of ``/proc/self/maps``; None to read it."""
    if text is None:
        text = _MAPS.read_text("ascii") if sys.platform.startswith("linux") else ""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 5 and fields[1] == "rw-p":
            start, _, end = fields[0].partition("-")
            yield MemoryRange(int(start, 16), int(end, 16))


def release_zero_pages(ranges: Iterable[MemoryRange]) -> int:
    """Give memory blocks that contain only zeros back to the system. Return the number of bytes
    that were given back. Ranges below 32 MiB are skipped.

    During the call, no other thread may write to the ranges. If a thread wrote to a block after the
    check for zeros and before the block is given back, the written data would be lost.
    """
    libc = ctypes.CDLL(None)
    libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    zeros = ctypes.create_string_buffer(_BLOCK)
    released = 0
    for each in ranges:
        if each.end - each.start < _MIN_BYTES:
            continue
        for address in range(each.start, each.end - _BLOCK + 1, _BLOCK):
            if libc.memcmp(address, zeros, _BLOCK) == 0:
                is_dropped = libc.madvise(address, _BLOCK, mmap.MADV_DONTNEED) == 0
                released += _BLOCK * is_dropped
    return released

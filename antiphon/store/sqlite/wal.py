"""Detection of damaged pages in the write-ahead log (WAL) of a database.

If the checksum of a WAL frame is wrong, SQLite silently drops this frame and all later commits.
This module counts the commits that SQLite dropped. To find the commits, the module reads the
headers of the frames: SQLite marks the last frame of each transaction as a commit. The file can
still contain frames of an earlier WAL. The module recognizes these frames by their salt, which
differs from the salt of the current WAL.
https://www.sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from msgspec import Struct

_MAGIC = (0x377F0682, 0x377F0683)
_HEADER, _FRAME_HEADER = 32, 24


class WalScan(Struct, frozen=True):
    """The state of a WAL before SQLite has read it. ``commits``: the numbers of the frames that end
    a transaction; frames are counted from 1. ``is_damaged``: whether the header is damaged. If it
    is, SQLite drops all commits."""

    commits: tuple[int, ...] = ()
    is_damaged: bool = False

    def dropped_commits(self, frames: int) -> int:
        """Return how many commits come after the last frame that SQLite has read. ``frames``: the
        number of frames that SQLite has read."""
        return sum(number > frames for number in self.commits)


def scan_wal(database: Path) -> WalScan:
    """Read the headers of a database's WAL. No process may have the WAL open. Raises
    ``OSError``."""
    try:
        wal = open(f"{database.resolve()}-wal", "rb")
    except FileNotFoundError:
        return WalScan()
    with wal:
        size = os.fstat(wal.fileno()).st_size
        header = wal.read(_HEADER)
        if len(header) < _HEADER:
            return WalScan()
        magic, _, page_bytes = struct.unpack(">III", header[:12])
        salts = header[16:24]
        if magic not in _MAGIC or not _is_valid(header, big_endian=bool(magic & 1)):
            return WalScan(is_damaged=bool(wal.read(_FRAME_HEADER)))
        commits: list[int] = []
        number = 0
        while len(frame := wal.read(_FRAME_HEADER)) == _FRAME_HEADER:
            number += 1
            page_end = wal.seek(page_bytes, 1)
            # A frame of an earlier log has other salts. A kill may have cut off the last frame.
            if frame[8:16] == salts and frame[4:8] != b"\0\0\0\0" and page_end <= size:
                commits.append(number)
    return WalScan(tuple(commits))


def _is_valid(header: bytes, *, big_endian: bool) -> bool:
    """Whether the checksum of a WAL header is right."""
    words = struct.unpack(f"{'>' if big_endian else '<'}6I", header[:24])
    first = second = 0
    for one, two in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return struct.unpack(">II", header[24:]) == (first, second)

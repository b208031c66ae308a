"""Disk space that is kept for deletions.

SQLite needs space to delete, because it first writes the changed pages to its log. On a full disk,
nothing could be deleted to make space. So a file of this size is kept beside the database. If the
disk is full, the file gives up its space, and gets it again when there is some.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

__all__ = ["Reserve", "is_disk_full"]

_BYTES = 1 << 20
#: SQLITE_FULL and SQLITE_IOERR_WRITE, which some file systems report instead.
_FULL_CODES = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE})


def is_disk_full(error: BaseException) -> bool:
    """Return whether a write failed because the disk is full."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) in _FULL_CODES


class Reserve:
    """The reserved space of the database at ``database``."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}-reserve")

    def fill(self) -> None:
        """Take the space, if the disk has it."""
        try:
            with self._path.open("ab") as file:
                if os.fstat(file.fileno()).st_size < _BYTES:
                    file.write(b"\0" * (_BYTES - os.fstat(file.fileno()).st_size))
        except OSError:
            self.release()

    def release(self) -> bool:
        """Give up the space. Return whether there was any."""
        try:
            size = self._path.stat().st_size
            self._path.unlink()
        except OSError:
            return False
        return size > 0

"""Disk space that is kept for deletions.

SQLite needs space to delete: it first writes the changed pages to its log, and to shorten the log
it copies the pages into the database. So on a full disk, nothing could be deleted to make space. A
file beside the database reserves some. If the disk is full, the file gives up its space for
deletions, and takes it again when there is some.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import IO

from antiphon.errors import DISK_ERROR, DISK_FULL, READ_ONLY
from antiphon.support.disk import disk_obstacle

from .file_lock import open_private

#: The log has usually up to 4 MiB. On a small disk, both are smaller.
_MAX_BYTES = 8 << 20
_DISK_SHARE = 4


def is_disk_error(error: BaseException) -> bool:
    """Return whether the operating system refused to write or read a file of the database. The
    reason is not known: SQLite reports also a disk quota that is used up in this way."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_IOERR and code != sqlite3.SQLITE_IOERR_NOMEM


class Reserve:
    """The reserved space of the database at ``database``. ``bytes``: its size."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}-reserve")
        free = shutil.disk_usage(database.parent).free
        # After a restart on a full disk, there is no space besides the reserve.
        self.bytes = max(self._size, min(_MAX_BYTES, free // _DISK_SHARE))

    @property
    def log_bytes(self) -> int:
        """The length of the log above which SQLite should shorten it."""
        return self.bytes // 2

    def obstacle(self, error: BaseException) -> str:
        """Return which of ``DISK_OBSTACLES`` is why a write failed; "" for other reasons."""
        if not isinstance(error, sqlite3.Error):
            return ""
        is_failure = is_disk_error(error)
        refusal = self._refusal(self.bytes if is_failure else 0)
        if refusal == READ_ONLY:  # also after an error of the disk
            return READ_ONLY
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            return DISK_FULL
        return (refusal or DISK_ERROR) if is_failure else ""

    def _refusal(self, size: int) -> str:
        """Take ``size`` more bytes for a moment. Return the obstacle that the disk has, or ""."""
        try:
            with open(self._path, "ab", opener=open_private) as file:
                end = file.tell()
                try:
                    _allocate(file, end, size)
                finally:
                    file.truncate(end)
        except OSError as refusal:
            return disk_obstacle(refusal)
        return ""

    def fill(self) -> None:
        """Take the space, or a half or a quarter of it if the disk has no more."""
        for size in (self.bytes, self.bytes // 2, self.bytes // 4):
            try:
                with open(self._path, "ab", opener=open_private) as file:
                    _allocate(file, 0, size)
                return
            except OSError:
                self.release()

    def release(self) -> bool:
        """Give up the space. Return whether there was any."""
        size = self._size
        try:
            self._path.unlink()
        except OSError:
            return False
        return size > 0

    @property
    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0


def _allocate(file: IO[bytes], start: int, size: int) -> None:
    """Take space on the disk. Raises ``OSError``."""
    if size and hasattr(os, "posix_fallocate"):  # macOS lacks it
        os.posix_fallocate(file.fileno(), start, size)

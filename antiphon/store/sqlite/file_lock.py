"""Locks on files next to a database. A lock ends with its process, even if the process crashes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from antiphon.support.file_locks import lock, try_lock, unlock


def open_private(path: str, flags: int) -> int:
    """Open a file, and return its descriptor. If the file does not exist, create it so that only
    this user can read and write it."""
    return os.open(path, flags | os.O_CREAT, 0o600)


def open_lock_file(path: Path, name: str = "") -> IO[bytes]:
    """Open a lock file of the database at ``path``. ``name``: the name of the lock; "" for the lock
    of the database itself. Symbolic links in ``path`` are resolved, so all paths of one database
    lead to the same lock."""
    suffix = f".{name}.lock" if name else ".lock"
    return open(f"{path.resolve()}{suffix}", "wb", opener=open_private)


class FileLock:
    """A lock on a file of the database at ``path``. Only one process at a time can hold the lock. A
    ``with`` statement waits until this process holds the lock, and releases the lock at the end of
    the block. ``name``: the name of the lock."""

    def __init__(self, path: Path, name: str) -> None:
        self._file = open_lock_file(path, name)

    def __enter__(self) -> FileLock:
        lock(self._file.fileno())
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def try_acquire(self) -> bool:
        """Acquire the lock if no other process holds it. Return whether the lock was acquired."""
        return try_lock(self._file.fileno())

    def release(self) -> None:
        """Release the lock."""
        unlock(self._file.fileno())

    def close(self) -> None:
        """Close the file, which releases the lock."""
        self._file.close()

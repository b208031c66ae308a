"""Locks on open files, on every system. A lock ends with its process, even if the process crashes.

Unix has ``flock``, which can also be shared. Windows locks ranges of bytes, and has no shared locks
there: processes that share a file on Windows exclude each other.
"""

from __future__ import annotations

import errno
import os
import sys


def lock(file: int) -> None:
    """Wait until this process holds the lock of a file alone. ``file``: its descriptor."""
    if sys.platform == "win32":
        _lock_first_byte(file, waits=True)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


def try_lock(file: int, *, is_shared: bool = False) -> bool:
    """Lock a file without waiting. Returns False if another process holds the lock.

    ``file``: its descriptor. ``is_shared``: whether other processes may hold the lock, too, if
    they share it. Raises ``OSError`` if the file cannot be locked.
    """
    try:
        if sys.platform == "win32":
            _lock_first_byte(file, waits=False)
        else:
            import fcntl

            fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # the error of Unix, and that of Windows
        return False
    return True


def unlock(file: int) -> None:
    """Release the lock of a file. Closing the file does this, too."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)


if sys.platform == "win32":

    def _lock_first_byte(file: int, *, waits: bool) -> None:
        """Lock the first byte of a file. Windows gives up waiting after ten seconds, so the wait
        is begun again."""
        import msvcrt

        os.lseek(file, 0, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_LOCK if waits else msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if not waits or error.errno != errno.EDEADLK:
                raise
            _lock_first_byte(file, waits=True)

"""A small file system in memory, which can be filled."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PIECE = bytes(1 << 16)


class Disk:
    """A file system of its own, made by ``small_disk``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self, free_bytes: int = 0) -> None:
        """Fill the disk until ``free_bytes`` bytes are free."""
        with self._filler.open("wb", buffering=0) as file:
            try:
                while _free_bytes(self.folder) > free_bytes + len(_PIECE):
                    file.write(_PIECE)
                while free_bytes < len(_PIECE) and file.write(_PIECE[:4096]):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def empty(self) -> None:
        """Free the space that ``fill`` has used."""
        self._filler.unlink(missing_ok=True)


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Disk | None]:
    """Mount a file system of this size on ``folder``. Yields None if mounting is not permitted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "none", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, timeout=30)
    except OSError:  # there is no such program
        done = None
    if done is None or done.returncode:
        yield None
        return
    try:
        yield Disk(folder)
    finally:
        with suppress(subprocess.SubprocessError):
            subprocess.run(["umount", "-l", str(folder)], check=True, timeout=30)

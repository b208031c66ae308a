"""File operations inside a box (sandbox environment). Links and ``..`` cannot lead out of the
folder ``/mnt/data``.

This module uses only the standard library.
"""

from __future__ import annotations

import base64
import errno
import os
import stat
import tempfile
from typing import Any

from .python_kernel import HOME

MAX_FILES = 1000
#: Maximum number of bytes of a file that were never written (holes of a sparse file).
MAX_HOLE_BYTES = 1 << 20


def list_files(request: object) -> Any:
    """Return the path, size and modification time of each regular file, for at most ``MAX_FILES``
    files. Files in hidden folders are left out."""
    listed: list[list[Any]] = []
    for folder, folders, names in os.walk(HOME):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(names):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and len(listed) < MAX_FILES:
                relative = os.path.relpath(path, HOME).encode("utf-8", "replace").decode()
                listed.append([relative, status.st_size, status.st_mtime_ns])
    return {"entries": sorted(listed)}


def read(request: Any) -> Any:
    """Return the content of a regular file, in base64. The content is None if there is no such
    file."""
    path = _resolve(request["path"])
    if path is None:
        return {"content": None}
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {"content": None}
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return {"content": None}
        if _is_sparse(status):
            raise OSError(errno.EFBIG, "The file is sparse: most of it was never written")
        return {"content": base64.b64encode(file.read(request["most"])).decode()}


def write(request: Any) -> Any:
    """Create or replace a file atomically: a half-written file is never visible under its name."""
    path = _resolve(request["path"])
    if path is None:
        return {"error": "The path leads out of /mnt/data."}
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # The temporary file has a new name, so no file or link that code in the box has made is opened.
    fd, partial = tempfile.mkstemp(prefix=".", suffix=".part", dir=os.path.dirname(path))
    try:
        with open(fd, "wb") as file:
            file.write(base64.b64decode(request["content"]))
            os.fchmod(fd, 0o644)
        os.replace(partial, path)
    except OSError:
        os.unlink(partial)
        raise
    return {}


def remove(request: Any) -> Any:
    """Delete a file. The answer says whether the file existed."""
    path = _resolve(request["path"])
    if path is None or not os.path.isfile(path):
        return {"removed": False}
    os.unlink(path)
    return {"removed": True}


def _is_sparse(status: os.stat_result) -> bool:
    """Whether a file is much larger than the memory that it occupies. The limits of the box count
    only this memory, but a reader of the file would get the full size, so such a file must be
    detected."""
    return status.st_size > 2 * 512 * status.st_blocks + MAX_HOLE_BYTES


def _resolve(name: str) -> str | None:
    """Return the absolute path of a file. Return None if links or ``..`` lead out of the folder
    ``/mnt/data``."""
    path = os.path.join(HOME, name)
    folder = os.path.realpath(os.path.dirname(path))
    whole = os.path.join(folder, os.path.basename(path))
    is_inside = os.path.commonpath([folder, HOME]) == HOME
    return whole if is_inside and os.path.basename(path) not in ("", ".", "..") else None

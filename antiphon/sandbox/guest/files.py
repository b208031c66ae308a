"""The files of a box, seen from inside: no link and no dots lead out of its folder. Only the
standard library.
"""

from __future__ import annotations

import base64
import os
import stat
from typing import Any

from .python_kernel import HOME

__all__ = ["entries", "read", "remove", "write"]

MOST_ENTRIES = 1000


def entries(asked: Any) -> Any:
    found: list[list[Any]] = []
    for folder, folders, names in os.walk(HOME):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(names):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and len(found) < MOST_ENTRIES:
                relative = os.path.relpath(path, HOME).encode("utf-8", "replace").decode()
                found.append([relative, status.st_size, status.st_mtime_ns])
    return {"entries": sorted(found)}


def read(asked: Any) -> Any:
    path = _inside(asked["path"])
    if path is None:
        return {"content": None}
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {"content": None}
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return {"content": None}
        return {"content": base64.b64encode(file.read(asked["most"])).decode()}


def write(asked: Any) -> Any:
    path = _inside(asked["path"])
    if path is None:
        return {"error": "The path leads out of /mnt/data."}
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = path + ".part"
    try:
        with open(partial, "wb") as file:
            file.write(base64.b64decode(asked["content"]))
        os.replace(partial, path)
    except OSError:
        if os.path.exists(partial):
            os.unlink(partial)
        raise
    return {}


def remove(asked: Any) -> Any:
    path = _inside(asked["path"])
    if path is None or not os.path.isfile(path):
        return {"removed": False}
    os.unlink(path)
    return {"removed": True}


def _inside(name: str) -> str | None:
    """The path of a file, unless links or dots lead out of the folder."""
    path = os.path.join(HOME, name)
    folder = os.path.realpath(os.path.dirname(path))
    whole = os.path.join(folder, os.path.basename(path))
    is_inside = os.path.commonpath([folder, HOME]) == HOME
    return whole if is_inside and os.path.basename(path) not in ("", ".", "..") else None

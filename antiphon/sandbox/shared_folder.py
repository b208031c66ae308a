"""A folder through which the server gives files to a running box (a sandbox environment). The box
can only read it."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from antiphon.errors import ToolError
from antiphon.support.file_locks import try_lock

_PREFIX = "antiphon-box-"
#: The file in the folder that the server keeps locked as long as it runs.
_LOCK = "lock"


class SharedFolder:
    """The folder that the server shares with one box (a sandbox environment). All methods block the
    thread.

    ``visible`` is the part of the folder that is mounted into the box. When the server changes
    files in this part, code in the box sees each change either completely or not at all.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock_fd: int | None = None
        self.visible = folder / "shown"
        #: The folder for the socket of the proxy, if the box has a network.
        self.network = folder / "network"
        self._sizes: dict[str, int] = {}

    @classmethod
    def open(cls, owner: int | None) -> SharedFolder:
        """Create the folder. Raises ``OSError``.

        ``owner``: the id of the user that runs the box. None means the server's user. The folder is
        created where this user can reach it.
        """
        shared = cls(Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_root(owner))))
        shared._lock_fd = _lock(shared._folder / _LOCK)
        shared._folder.chmod(0o711)
        for part in (shared.visible, shared.network):
            part.mkdir(mode=0o700)
            if owner is not None:
                os.chown(part, owner, owner)
        return shared

    @staticmethod
    def remove_abandoned(owner: int | None) -> int:
        """Delete the shared folders of servers that have ended without closing their boxes (sandbox
        environments). Return the number of deleted folders. ``owner``: the id of the user that runs
        the boxes; None means the server's user."""
        removed = 0
        for folder in Path(_root(owner)).glob(f"{_PREFIX}*"):
            with suppress(OSError):
                status = folder.lstat()
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                    continue
                lock_fd = _lock(folder / _LOCK)
                if lock_fd is None:  # the server of this folder is alive
                    continue
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock_fd)
                removed += 1
        return removed

    def put(
        self, name: str, files: Mapping[str, bytes], scripts: Collection[str], *, max_bytes: int
    ) -> None:
        """Replace the content of the subfolder ``name`` by ``files``. ``scripts``: the paths of the
        executable files.

        ``max_bytes``: maximum size of all subfolders together. Raises ``ToolError`` if they would
        exceed it, if a path leads out of the subfolder, or if the files cannot be written.
        """
        size = sum(map(len, files.values()))
        if size + sum(self._sizes.values()) - self._sizes.get(name, 0) > max_bytes:
            raise ToolError(f"There is not enough disk space for {name} in this container.")
        staging = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            for path, content in files.items():
                file = staging.joinpath(path)
                if not file.resolve().is_relative_to(staging.resolve()):
                    raise ToolError(f"{path} leads out of its folder.")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                file.chmod(0o755 if path in scripts else 0o644)
            for folder, _, _ in os.walk(staging):
                os.chmod(folder, 0o755)
            if (self.visible / name).exists():
                old = Path(tempfile.mkdtemp(dir=self._folder))
                (self.visible / name).rename(old / name)
                shutil.rmtree(old, ignore_errors=True)
            staging.rename(self.visible / name)
        except OSError as error:
            shutil.rmtree(staging, ignore_errors=True)
            raise ToolError(f"{name} could not be written: {error.strerror}") from None
        self._sizes[name] = size

    def close(self) -> None:
        """Delete the folder and release its lock."""
        shutil.rmtree(self._folder, ignore_errors=True)
        lock_fd, self._lock_fd = self._lock_fd, None
        if lock_fd is not None:
            os.close(lock_fd)


def _root(owner: int | None) -> str:
    return tempfile.gettempdir() if owner is None else "/tmp"


def _lock(path: Path) -> int | None:
    """Lock a file as long as this process runs, and return its file descriptor. Return None if
    another process holds the lock. Raises ``OSError``."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if try_lock(fd):
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None

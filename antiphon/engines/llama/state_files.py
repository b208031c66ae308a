"""Files for the states (KV caches) of slots. llama.cpp writes a state to a file and reads it
again."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)


class StateFile:
    """A file for one state. ``name``: the name that llama.cpp gets. ``path``: the file's path.
    ``descriptor``: the file, if it is in memory."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.name = path.name
        self.path = path
        self._descriptor = descriptor

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.path.stat().st_size

    def close(self) -> None:
        """Delete the file."""
        # First the name, then the descriptor: llama.cpp may open the name at any time, and another
        # file may get the number of the descriptor.
        self.path.unlink(missing_ok=True)
        if self._descriptor is not None:
            os.close(self._descriptor)


class StateFiles:
    """Creates files for states. On Linux, the files are in memory and disappear with this process.
    llama.cpp, which runs in another process, opens them by symbolic links in a private folder. On
    other systems, the files themselves are in this folder."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="antiphon-states-")
        #: The path of the folder, with a separator at the end.
        self.prefix = os.path.join(self._folder.name, "")
        self._numbers = itertools.count()

    def create(self) -> StateFile | None:
        """Create an empty file. Returns None if this fails."""
        path = Path(self.prefix, str(next(self._numbers)))
        if not hasattr(os, "memfd_create"):
            return StateFile(path, None)
        descriptor = None
        try:
            descriptor = os.memfd_create("antiphon state")
            self._link(path, f"/proc/{os.getpid()}/fd/{descriptor}")
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
            _log.warning("a state cannot be kept", reason=str(error))
            return None
        return StateFile(path, descriptor)

    def _link(self, path: Path, target: str) -> None:
        try:
            path.symlink_to(target)
        except FileNotFoundError:  # systems delete old folders in /tmp
            path.parent.mkdir(0o700)
            path.symlink_to(target)

    def close(self) -> None:
        """Delete the folder."""
        self._folder.cleanup()

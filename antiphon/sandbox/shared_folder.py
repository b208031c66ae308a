"""A folder of the server's that one box can read and not write: the server puts things there while
the box runs. It knows no processes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from antiphon.errors import ToolError

__all__ = ["Shelf"]


class Shelf:
    """One a box. ``shown`` is what the box sees; whatever is put there appears at once or not at
    all. Its methods block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.shown = folder / "shown"
        self._sizes: dict[str, int] = {}

    @classmethod
    def open(cls, owner: int | None) -> Shelf:
        """``owner``: the user the box runs as, if it is another one, who must find the way there.
        Raises ``OSError``."""
        root = None if owner is None else "/tmp"
        shelf = cls(Path(tempfile.mkdtemp(prefix="antiphon-box-", dir=root)))
        shelf._folder.chmod(0o711)
        shelf.shown.mkdir(mode=0o700)
        if owner is not None:
            os.chown(shelf.shown, owner, owner)
        return shelf

    def put(
        self, name: str, files: Mapping[str, bytes], scripts: Collection[str], *, most: int
    ) -> None:
        """A folder of files, in place of the one of that name. ``most``: bytes of all there is.
        Raises ``ToolError``."""
        size = sum(map(len, files.values()))
        if size + sum(self._sizes.values()) - self._sizes.get(name, 0) > most:
            raise ToolError(f"There is no room for {name} in this container.")
        made = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            for path, content in files.items():
                file = made.joinpath(path)
                if not file.resolve().is_relative_to(made.resolve()):
                    raise ToolError(f"{path} leads out of its folder.")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                file.chmod(0o755 if path in scripts else 0o644)
            for folder, _, _ in os.walk(made):
                os.chmod(folder, 0o755)
            if (self.shown / name).exists():
                old = Path(tempfile.mkdtemp(dir=self._folder))
                (self.shown / name).rename(old / name)
                shutil.rmtree(old, ignore_errors=True)
            made.rename(self.shown / name)
        except OSError as error:
            shutil.rmtree(made, ignore_errors=True)
            raise ToolError(f"{name} could not be written: {error.strerror}") from None
        self._sizes[name] = size

    def close(self) -> None:
        """All of it is gone."""
        shutil.rmtree(self._folder, ignore_errors=True)

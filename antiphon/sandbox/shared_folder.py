"""A folder that the server writes while a box runs, and that the box can only read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from antiphon.errors import ToolError

__all__ = ["SharedFolder"]


class SharedFolder:
    """The shared folder of one box. All methods block.

    ``visible`` is the part that is mounted into the box. A change appears there completely or
    not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.visible = folder / "shown"
        self._sizes: dict[str, int] = {}

    @classmethod
    def open(cls, owner: int | None) -> SharedFolder:
        """Create the folder. Raises ``OSError``.

        ``owner`` is the user id that the box runs as, if it is not the server's; that user must
        be able to reach the folder."""
        root = None if owner is None else "/tmp"
        shared = cls(Path(tempfile.mkdtemp(prefix="antiphon-box-", dir=root)))
        shared._folder.chmod(0o711)
        shared.visible.mkdir(mode=0o700)
        if owner is not None:
            os.chown(shared.visible, owner, owner)
        return shared

    def put(
        self, name: str, files: Mapping[str, bytes], scripts: Collection[str], *, max_bytes: int
    ) -> None:
        """Replace the subfolder ``name`` by these files.

        ``max_bytes`` limits the size of all subfolders together. Raises ``ToolError``."""
        size = sum(map(len, files.values()))
        if size + sum(self._sizes.values()) - self._sizes.get(name, 0) > max_bytes:
            raise ToolError(f"There is no room for {name} in this container.")
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
        """Delete the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

"""A server whose file system becomes read-only while it runs, as after an error of a disk."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from .clients import Violation
from .place import Place

_PAUSE_S = 10.0
_WAIT_S = 60.0


class FailingDisk:
    """A file system of its own, made by ``failing_disk``. ``image``: the file that contains it."""

    def __init__(self, image: Path, folder: Path) -> None:
        self._image = image
        self.folder = folder

    def mount(self) -> bool:
        """Mount the file system. Returns False if that is not permitted."""
        return _runs("mount", "-o", "loop", str(self._image), str(self.folder))

    def fail(self) -> bool:
        """Let the kernel find an error, whereupon it writes nothing more."""
        return _runs("mount", "-o", "remount,abort", str(self.folder))

    def repair(self) -> None:
        """Check the file system and mount it again. No process may use it."""
        self.unmount()
        _runs("fsck.ext4", "-y", str(self._image))
        if not self.mount():
            raise Violation("the repaired disk cannot be mounted")

    def unmount(self) -> None:
        """Unmount the file system."""
        _runs("umount", "-l", str(self.folder))


def _runs(*command: str) -> bool:
    with suppress(OSError, subprocess.TimeoutExpired):
        # The status of fsck says also what was repaired.
        return subprocess.run(command, capture_output=True, timeout=_WAIT_S).returncode == 0
    return False


@contextmanager
def failing_disk(folder: Path) -> Iterator[FailingDisk | None]:
    """Mount an ext4 file system on ``folder``. Yields None if that is not permitted."""
    folder.mkdir()
    image = folder.with_suffix(".img")
    image.write_bytes(b"")
    with image.open("r+b") as file:
        file.truncate(96 << 20)
    disk = FailingDisk(image, folder)
    if not _runs("mkfs.ext4", "-q", "-F", str(image)) or not disk.mount():
        yield None
        return
    try:
        yield disk
    finally:
        disk.unmount()


class ReadOnlyServer:
    """A server with SQLite on a disk that fails, and is repaired."""

    def __init__(self, disk: FailingDisk, models: str) -> None:
        self._disk = disk
        folder = disk.folder / "server"
        store = f"sqlite:{folder}/a.db"
        self._place = Place(folder, store, models, disk.folder.with_suffix(".log"))
        self.counts = Counter[str]()

    async def run(self, end: float) -> None:
        """Let the disk fail again and again until ``end``, in seconds of ``time.monotonic``."""
        try:
            while time.monotonic() < end:
                await asyncio.to_thread(self._place.start)
                async with httpx.AsyncClient(base_url=self._place.url, timeout=_WAIT_S) as http:
                    await self._fail_once(http)
                await asyncio.to_thread(self._place.kill)
                await asyncio.to_thread(self._disk.repair)
                self.counts["repair disk"] += 1
                await asyncio.sleep(_PAUSE_S)
        finally:
            await asyncio.to_thread(self._place.kill)

    async def _fail_once(self, http: httpx.AsyncClient) -> None:
        body = {"model": "story", "input": "go on"}
        stored = (await http.post("responses", json=body)).json()
        if not await asyncio.to_thread(self._disk.fail):
            self.counts["disk does not fail"] += 1
            return
        self.counts["read-only disk"] += 1
        refused = await http.post("responses", json=body)
        if refused.status_code != 503 or "read-only" not in refused.text:
            raise Violation(f"a read-only disk is no cause: {refused.status_code} {refused.text}")
        ready = await http.get(f"{self._place.url.removesuffix('/v1')}/ready")
        if ready.json().get("reason") != "read_only":
            raise Violation(f"a read-only disk is no cause: {ready.text}")
        unstored = await http.post("responses", json={**body, "store": False})
        if unstored.status_code != 200:
            raise Violation(f"what is not stored needs no disk: {unstored.text}")
        found = await http.get(f"responses/{stored['id']}")
        if found.json().get("output") != stored["output"]:
            raise Violation(f"a stored response is lost: {found.text}")

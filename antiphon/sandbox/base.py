"""The contract of a sandbox: boxes that run code nobody has read, and files in them. It knows no
tool and no request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal, Protocol

from msgspec import Struct

__all__ = ["Box", "Ended", "Entry", "Limits", "Outcome", "Sandbox", "Told"]

#: ``done``, or the code raised; ``stopped``: it was asked to, or took too long (``timeout``), or
#: used too much ``memory``, or wrote too much ``output``; ``died``: its process ended itself.
Ended = Literal["done", "raised", "timeout", "stopped", "memory", "output", "died"]


class Limits(Struct, frozen=True, kw_only=True):
    """What a box may use, all its processes together. ``disk_bytes``: of ``/mnt/data``;
    ``/tmp`` has as much again."""

    memory_bytes: int = 1 << 30
    disk_bytes: int = 256 << 20
    processes: int = 128


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of code or a command. ``output`` is all it wrote (``errors``: a command's standard
    error), cut in the middle; ``images``: paths of pictures it showed. ``kept``: variables are
    still there."""

    output: str
    ended: Ended
    errors: str = ""
    exit_code: int | None = None
    images: tuple[str, ...] = ()
    kept: bool = True


#: Hears what a command has written: standard output, standard error.
Told = Callable[[str, str], None]


class Entry(Struct, frozen=True, order=True):
    """A file: its path below ``/mnt/data``, its size in bytes, when it changed (nanoseconds)."""

    path: str
    size: int
    changed: int


class Box(Protocol):
    """One isolated place: a Python whose variables stay, a shell, and ``/mnt/data``. Calls of it
    are made one after the other. Methods raise ``ToolError`` once it is dead; a task that is
    cancelled stops what it runs."""

    @property
    def is_alive(self) -> bool:
        """False once nothing can be run in it any more."""

    async def python(self, code: str, *, timeout_s: float, most: int) -> Outcome:
        """Run it after what was run before. ``most``: characters of output."""

    async def command(
        self, command: str, *, timeout_s: float, most: int, told: Told | None = None
    ) -> Outcome:
        """Run it in a shell of its own, in ``/mnt/data``. ``told`` hears what it writes as it
        comes, up to ``most``: all of it, unless it writes more."""

    async def entries(self) -> tuple[Entry, ...]:
        """The files below ``/mnt/data``, no links, by their paths."""

    async def read(self, path: str) -> bytes | None:
        """A file below ``/mnt/data``; None if there is none."""

    async def write(self, path: str, content: bytes) -> None:
        """Make or replace it. Raises ``ToolError`` where there is no room."""

    async def remove(self, path: str) -> bool:
        """False if there was none."""

    async def share(self, name: str, files: Mapping[str, bytes], scripts: Collection[str]) -> None:
        """Files below ``/mnt/skills/NAME``, in place of those that were there: what runs in the box
        can read them, and not change them. ``scripts``: those that can be executed. Raises
        ``ToolError`` where there is no room."""

    async def close(self) -> None:
        """Everything in it ends and is gone."""


class Sandbox(Protocol):
    """Makes boxes. Whoever opens one closes it."""

    async def open(self, limits: Limits) -> Box:
        """A new box. Raises ``ToolError``."""

    async def close(self) -> None:
        """Nothing is opened any more; boxes that wait for somebody end."""

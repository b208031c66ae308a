"""The sandbox contract: isolated boxes that run untrusted code and hold files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal, Protocol

from msgspec import Struct

from .egress.proxy import EgressProxy

__all__ = [
    "Box",
    "EndReason",
    "ExecutionResult",
    "FileEntry",
    "Limits",
    "OutputCallback",
    "Sandbox",
]

#: Why an execution ended. ``done``: it finished. ``raised``: the Python code raised. ``stopped``:
#: the caller cancelled it. ``timeout``, ``memory``, ``output``: it exceeded that limit. ``died``:
#: its process ended itself.
EndReason = Literal["done", "raised", "timeout", "stopped", "memory", "output", "died"]


class Limits(Struct, frozen=True, kw_only=True):
    """Resource limits of a box. They apply to all processes of the box together.

    ``disk_bytes`` is the size of ``/mnt/data``; ``/tmp`` has the same size in addition.
    """

    memory_bytes: int = 1 << 30
    disk_bytes: int = 256 << 20
    processes: int = 128


class ExecutionResult(Struct, frozen=True, kw_only=True):
    """The result of running Python code or a shell command.

    ``output`` is the text that it wrote, truncated in the middle. For a command, ``output`` is its
    standard output and ``stderr`` its standard error. For Python code, ``output`` contains both.
    ``images`` are the paths of images that Python code displayed. ``variables_kept`` is false if
    the Python interpreter was restarted, because its variables are lost then.
    """

    output: str
    end_reason: EndReason
    stderr: str = ""
    exit_code: int | None = None
    images: tuple[str, ...] = ()
    variables_kept: bool = True


#: Receives new output of a running command: its standard output and its standard error.
OutputCallback = Callable[[str, str], None]


class FileEntry(Struct, frozen=True, order=True):
    """A file: path relative to ``/mnt/data``, size in bytes, modification time in nanoseconds."""

    path: str
    size: int
    modified_ns: int


class Box(Protocol):
    """An isolated environment: a Python interpreter that keeps its variables, a shell, and the
    folder ``/mnt/data``.

    Calls run one at a time. Methods raise ``ToolError`` once the box has ended. Cancelling a call
    interrupts the code it runs.
    """

    @property
    def is_alive(self) -> bool:
        """Whether the box can still run code."""

    async def python(self, code: str, *, timeout_s: float, max_chars: int) -> ExecutionResult:
        """Run ``code`` in the interpreter that earlier calls used. ``max_chars`` limits the
        output."""

    async def command(
        self,
        command: str,
        *,
        timeout_s: float,
        max_chars: int,
        on_output: OutputCallback | None = None,
    ) -> ExecutionResult:
        """Run ``command`` in a new shell, in ``/mnt/data``.

        ``on_output`` receives the output while the command runs, up to ``max_chars`` characters
        of each stream."""

    async def list_files(self) -> tuple[FileEntry, ...]:
        """List the regular files below ``/mnt/data``, sorted by path. Links are left out."""

    async def read(self, path: str) -> bytes | None:
        """Return the content of a file below ``/mnt/data``, or None if there is no such file."""

    async def write(self, path: str, content: bytes) -> None:
        """Create or replace a file. Raises ``ToolError`` if the disk is full."""

    async def remove(self, path: str) -> bool:
        """Delete a file. Returns false if there was no file."""

    async def share(self, name: str, files: Mapping[str, bytes], scripts: Collection[str]) -> None:
        """Put read-only files at ``/mnt/skills/NAME``. They replace the files that were there.

        ``scripts``: the paths of the files that are executable. Raises ``ToolError`` if the files
        exceed the disk limit.
        """

    async def open_network(self, proxy: EgressProxy) -> None:
        """Give code network access through ``proxy`` only. Set the environment variables of the
        proxy and trust its certificate. Called once, before any code runs. Raises ``ToolError``."""

    async def close(self) -> None:
        """End all processes and delete all files of the box."""


class Sandbox(Protocol):
    """Opens boxes. The caller that opens a box closes it."""

    async def open(self, limits: Limits) -> Box:
        """Start a new box. Raises ``ToolError`` if the box does not start."""

    async def close(self) -> None:
        """Refuse to open further boxes, and close the idle boxes of the pool."""

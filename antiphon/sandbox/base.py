"""The interface of sandboxes. A sandbox opens boxes: isolated environments that run untrusted code
and hold files."""

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

#: The reason why an execution ended. ``done``: the code finished. ``raised``: the Python code
#: raised an exception. ``stopped``: the caller cancelled the call. ``timeout``, ``memory``,
#: ``output``: the code exceeded this limit. ``died``: the process ended by itself.
EndReason = Literal["done", "raised", "timeout", "stopped", "memory", "output", "died"]


class Limits(Struct, frozen=True, kw_only=True):
    """Resource limits of a box, which is an isolated environment for code. The limits apply to all
    processes of the box together.

    ``disk_bytes`` is the size of ``/mnt/data``. ``/tmp`` has additional space of the same size.
    """

    memory_bytes: int = 1 << 30
    disk_bytes: int = 256 << 20
    processes: int = 128


class ExecutionResult(Struct, frozen=True, kw_only=True):
    """The result of running Python code or a shell command.

    - ``output``: the text that the code wrote. A long text is truncated in the middle. For a
      command, it is the standard output. For Python code, it contains standard output and standard
      error.
    - ``stderr``: the standard error of a command.
    - ``exit_code``: the exit code of a command.
    - ``images``: the paths of images that Python code displayed.
    - ``variables_kept``: whether the Python interpreter still runs. If it has ended, its variables
      are lost.
    """

    output: str
    end_reason: EndReason
    stderr: str = ""
    exit_code: int | None = None
    images: tuple[str, ...] = ()
    variables_kept: bool = True


#: Receives the new output of a running command. Parameters: new standard output, new standard
#: error.
OutputCallback = Callable[[str, str], None]


class FileEntry(Struct, frozen=True, order=True):
    """A file: its path relative to ``/mnt/data``, its size in bytes, and its modification time in
    nanoseconds."""

    path: str
    size: int
    modified_ns: int


class Box(Protocol):
    """An isolated environment for code. It has a Python interpreter that keeps its variables, a
    shell, and the folder ``/mnt/data``.

    Method calls run one at a time. After the box has ended, methods raise ``ToolError``. If a
    method call is cancelled, the code that it runs is interrupted.
    """

    @property
    def is_alive(self) -> bool:
        """Whether the box can still run code."""

    async def python(self, code: str, *, timeout_s: float, max_chars: int) -> ExecutionResult:
        """Run Python code. All calls use the same interpreter, so variables persist. ``max_chars``
        limits the output."""

    async def command(
        self,
        command: str,
        *,
        timeout_s: float,
        max_chars: int,
        on_output: OutputCallback | None = None,
    ) -> ExecutionResult:
        """Run a shell command in a new shell. The working directory is ``/mnt/data``.

        While the command runs, ``on_output`` receives its output, up to ``max_chars`` characters of
        each stream.
        """

    async def list_files(self) -> tuple[FileEntry, ...]:
        """Return the regular files below ``/mnt/data``, sorted by path. Links and files in hidden
        folders are left out."""

    async def read(self, path: str) -> bytes | None:
        """Return the content of a file below ``/mnt/data``. Return None if there is no such
        file."""

    async def write(self, path: str, content: bytes) -> None:
        """Create or replace a file below ``/mnt/data``. Raises ``ToolError`` if the disk is
        full."""

    async def remove(self, path: str) -> bool:
        """Delete a file below ``/mnt/data``. Return False if there is no such file."""

    async def share(self, name: str, files: Mapping[str, bytes], scripts: Collection[str]) -> None:
        """Put read-only files into the folder ``/mnt/skills/NAME``. They replace all files in this
        folder.

        ``scripts``: the paths of the executable files. Raises ``ToolError`` if the files exceed the
        disk limit.
        """

    async def open_network(self, proxy: EgressProxy) -> None:
        """Give code in the box network access through ``proxy`` only. Environment variables make
        the programs in the box use the proxy and trust its certificate. Call this only once, before
        any code runs. Raises ``ToolError`` if the network cannot be opened."""

    async def close(self) -> None:
        """End all processes and delete all files of the box."""


class Sandbox(Protocol):
    """Opens boxes, which are isolated environments for code. The caller that opens a box has to
    close it."""

    async def open(self, limits: Limits) -> Box:
        """Start a new box with these resource limits. Raises ``ToolError`` if the box does not
        start."""

    async def close(self) -> None:
        """Close the sandbox and its idle boxes. After that, no box may be opened."""

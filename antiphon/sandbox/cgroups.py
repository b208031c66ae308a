"""Control groups (version 2) for boxes (sandbox environments). With a control group, the Linux
kernel limits the memory and the number of processes of a whole box.

Control groups are used if a part of the cgroup hierarchy is delegated to the server. Examples are a
service of systemd with ``Delegate=yes``, and a container whose ``/sys/fs/cgroup`` is writable. The
rules of the kernel: https://docs.kernel.org/admin-guide/cgroup-v2.html, sections 2.3, 2.4 and 2.5.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .base import Limits

_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_NEEDED = frozenset({"memory", "pids"})
_OPTIONAL = frozenset({"cpu"})
#: The group to which the server's processes move. They must move because a group that contains
#: processes cannot have child groups with limits.
_SERVER = "antiphon-server"
#: The parent group of all boxes, and its CPU weight. The server has a weight of 100.
_BOXES, _CPU_WEIGHT = "antiphon-boxes", 10
_PREFIX = "box-"
#: Bytes that the kernel allows a box beyond its limit. So the agent detects too much memory use
#: before the kernel does. The agent ends the code that uses too much. The kernel may end any
#: process of the box.
_MEMORY_MARGIN = 64 << 20
#: Number of processes that the kernel allows a box beyond its limit. bwrap and the agent need them.
_PROCESS_MARGIN = 8
#: Number of attempts to remove a group while its processes are ending, and seconds between
#: attempts.
_REMOVE_ATTEMPTS, _REMOVE_PAUSE_S = 50, 0.01


class BoxGroup:
    """The control group of one box (a sandbox environment). All methods block the thread
    briefly."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._joins_fd: int | None = os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def join(self) -> None:
        """Move the calling process into the group. Processes that it starts later are in the group
        too. Call this in a forked process before it executes a program."""
        assert self._joins_fd is not None
        os.write(self._joins_fd, b"0")

    def oom_kills(self) -> int:
        """Return the number of processes that the kernel has killed because the box exceeded its
        memory limit (out of memory)."""
        for line in _read(self._path / "memory.events").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
        return 0

    def remove(self) -> None:
        """Kill all processes in the group and remove the group. May be called repeatedly."""
        fd, self._joins_fd = self._joins_fd, None
        if fd is not None:
            os.close(fd)
            _remove(self._path)


class ControlGroups:
    """The control groups of the boxes (sandbox environments) of one server. Use ``detect`` to
    create an object."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def detect(cls, root: Path = _ROOT, own: Path = _OWN) -> ControlGroups | None:
        """Find a control group that is delegated to this process, and create a child group in it.
        The control groups of all boxes will be created inside this child group. Return None if no
        delegated group can be used. This blocks the thread briefly.

        - ``root``: the folder where the cgroup file system is mounted.
        - ``own``: the file that names the control group of this process.
        """
        for group in _candidates(root, own):
            boxes = group / _BOXES
            try:
                _enable(group)
                _make(boxes)
                _enable(boxes)
                if (boxes / "cpu.weight").exists():
                    _write(boxes / "cpu.weight", str(_CPU_WEIGHT))
            except OSError:
                continue
            return cls(boxes)
        return None

    def open(self, limits: Limits) -> BoxGroup:
        """Create the control group of a box with these limits. Raises ``OSError``."""
        path = self._path / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(8)}"
        _make(path)
        try:
            _write(path / "memory.max", str(limits.memory_bytes + _MEMORY_MARGIN))
            if (path / "memory.swap.max").exists():
                _write(path / "memory.swap.max", "0")
            _write(path / "pids.max", str(limits.processes + _PROCESS_MARGIN))
            return BoxGroup(path)
        except OSError:
            _remove(path)
            raise

    def remove_abandoned(self) -> int:
        """Remove the control groups of boxes whose server has ended without closing the boxes.
        Return the number of removed control groups."""
        removed = 0
        for path in self._path.glob(f"{_PREFIX}*"):
            if "populated 0" in _read(path / "cgroup.events") and not _is_running(path):
                _remove(path)
                removed += 1
        return removed


def _candidates(root: Path, own: Path) -> Iterator[Path]:
    """Yield the delegated control groups in which this process may create child groups.

    The first is the parent of the process's current group: an earlier call of
    ``ControlGroups.detect`` may have moved this process from the parent into a child group. The
    second is the process's current group.
    """
    if not _NEEDED <= _controllers(root / "cgroup.controllers"):
        return
    name = next((line[3:] for line in _read(own).splitlines() if line.startswith("0::/")), None)
    if name is None or ".." in name:
        return
    group = root / name.removeprefix("/")
    for candidate in (group.parent, group):
        if candidate.is_relative_to(root) and _is_delegated(candidate, root):
            yield candidate


def _is_delegated(group: Path, root: Path) -> bool:
    """Whether this process may manage the control group ``group``. ``root``: the folder where the
    cgroup file system is mounted.

    systemd marks delegated groups with an extended attribute. The root of a cgroup namespace counts
    as delegated if it is writable. See section 2.5 of the kernel's documentation of cgroup v2.
    """
    if not os.access(group / "cgroup.subtree_control", os.W_OK):
        return False
    if not _NEEDED <= _controllers(group / "cgroup.controllers"):
        return False
    if group == root:
        return (group / "cgroup.type").exists()  # the real root of the machine has no such file
    for attribute in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            if os.getxattr(group, attribute) == b"1":
                return True
    return os.geteuid() != 0 and group.stat().st_uid == os.geteuid()


def _enable(group: Path) -> None:
    """Enable the controllers ``memory``, ``pids`` and, if available, ``cpu`` for the child groups
    of a control group. Without controllers, child groups cannot have limits. Raises ``OSError``."""
    wanted = _controllers(group / "cgroup.controllers") & (_NEEDED | _OPTIONAL)
    missing = sorted(wanted - _controllers(group / "cgroup.subtree_control"))
    if not missing:
        return
    command = " ".join(f"+{name}" for name in missing)
    try:
        _write(group / "cgroup.subtree_control", command)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        _move_server(group)
        try:
            _write(group / "cgroup.subtree_control", command)
        except OSError:  # the group contains processes of other programs
            _write(group / "cgroup.procs", str(os.getpid()))
            _remove(group / _SERVER)
            raise


def _move_server(group: Path) -> None:
    """Move this process and its child processes from ``group`` to a child group of ``group``. This
    is necessary because Linux refuses to enable controllers for the child groups of a group that
    itself contains processes."""
    server = group / _SERVER
    _make(server)
    children = _read(Path(f"/proc/self/task/{os.getpid()}/children")).split()
    for pid in (str(os.getpid()), *children):
        with suppress(ProcessLookupError):
            _write(server / "cgroup.procs", pid)


def _is_running(path: Path) -> bool:
    """Whether the server that created the control group ``path`` is running. The group of a running
    server must not be removed, even if it is empty: the server may be about to start a box in
    it."""
    pid = path.name.removeprefix(_PREFIX).partition("-")[0]
    return pid.isdecimal() and Path("/proc", pid).exists()


def _controllers(path: Path) -> frozenset[str]:
    return frozenset(_read(path).split())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def _make(path: Path) -> None:
    with suppress(FileExistsError):
        os.mkdir(path, 0o755)


def _remove(path: Path) -> None:
    """Kill the processes of a group and remove the group. If the group stays busy, it is not
    removed. The next server that starts removes it."""
    with suppress(OSError):
        _write(path / "cgroup.kill", "1")
    for _ in range(_REMOVE_ATTEMPTS):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(_REMOVE_PAUSE_S)
        else:
            return

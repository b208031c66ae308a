"""The processors and the memory that this process may use. In a container, its control groups
(version 2) limit them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

#: Where Linux shows processes and control groups.
PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def own_groups(proc: Path = PROC, groups: Path = GROUPS) -> Iterator[Path]:
    """Yield the folders of this process's control group and of the groups that contain it."""
    try:
        name = (proc / "self" / "cgroup").read_text("ascii").strip().rpartition("::")[2]
    except (OSError, ValueError):
        return
    group = groups / name.strip("/")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(groups):
            return
        yield folder


def available_cpus(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return how many processors this process can keep busy: those that it may run on, or fewer if
    its control group limits its processor time (as a container's quota does)."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    for folder in own_groups(proc, groups):
        try:
            quota, period = (folder / "cpu.max").read_text("ascii").split()
            if quota != "max":
                count = min(count, int(quota) // int(period))
        except (OSError, ValueError):
            continue
    return max(1, count)


def spare_cpus() -> int:
    """Return how many processors a model may use so that one is left for the server, if there are
    several."""
    return max(1, available_cpus() - 1)


def available_bytes(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return the bytes of main memory that are available: on this machine, or in this process's
    control group (version 2) if the group may use less. ``proc``, ``groups``: where Linux shows
    them. On other systems, half of the machine's memory is returned."""
    try:
        lines = (proc / "meminfo").read_text("ascii").splitlines()
        kibibytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return min(int(kibibytes) << 10, *_group_limits(proc, groups))


def _group_limits(proc: Path, groups: Path) -> list[int]:
    """Return the bytes that are left in the control group of this process and in the groups that
    contain it. The list has at least two numbers."""
    limits = [1 << 62, 1 << 62]
    for folder in own_groups(proc, groups):
        try:
            limit = (folder / "memory.max").read_text("ascii").strip()
            if limit != "max":
                used = int((folder / "memory.current").read_text("ascii"))
                limits.append(max(0, int(limit) - used))
        except (OSError, ValueError):
            continue
    return limits

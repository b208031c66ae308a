"""The memory that this process may still use."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["available_bytes"]


def available_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
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
    try:
        name = (proc / "self" / "cgroup").read_text("ascii").strip().rpartition("::")[2]
        group = groups / name.strip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(groups):
                break
            limit = folder / "memory.max"
            if limit.is_file() and (text := limit.read_text("ascii").strip()) != "max":
                used = int((folder / "memory.current").read_text("ascii"))
                limits.append(max(0, int(text) - used))
    except (OSError, ValueError):
        pass
    return limits

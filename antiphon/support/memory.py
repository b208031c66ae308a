"""The memory that this process may still use."""

from __future__ import annotations

import os
from pathlib import Path

from .control_groups import GROUPS, PROC, own_groups


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

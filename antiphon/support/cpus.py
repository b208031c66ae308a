"""The processors that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

from .control_groups import GROUPS, PROC, own_groups


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

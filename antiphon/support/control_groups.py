"""The control groups (version 2) of this process, which limit what a container may use."""

from __future__ import annotations

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

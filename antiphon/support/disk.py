"""Why the operating system cannot write a file."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from antiphon.errors import DISK_FULL, READ_ONLY

_OBSTACLES: Mapping[int | None, str] = {
    errno.ENOSPC: DISK_FULL,
    errno.EDQUOT: DISK_FULL,
    errno.EROFS: READ_ONLY,
}


def disk_obstacle(error: OSError) -> str:
    """Return ``DISK_FULL`` or ``READ_ONLY`` if this is why a write failed; "" for other reasons."""
    return _OBSTACLES.get(error.errno, "")

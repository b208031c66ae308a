"""Why the operating system cannot write or read a file."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from antiphon.errors import DISK_ERROR, DISK_FULL, READ_ONLY

_OBSTACLES: Mapping[int | None, str] = {
    errno.ENOSPC: DISK_FULL,
    errno.EDQUOT: DISK_FULL,
    errno.EROFS: READ_ONLY,
    errno.EIO: DISK_ERROR,
}


def disk_obstacle(error: OSError) -> str:
    """Return which of ``DISK_OBSTACLES`` is the reason of an error; "" for other reasons."""
    return _OBSTACLES.get(error.errno, "")

"""Ends the processes that a coding agent has started and that run on after it, such as daemons.

A daemon leaves the process group and the session of its parent, but it inherits the environment.
Antiphon starts the agent with a variable that has a unique value, and finds its processes by it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: Seconds after which processes that ignore a request to end are killed.
_GRACE_S = 3.0
_CHECK_S = 0.05


def end_leftovers(variable: str) -> None:
    """End all other processes that have this variable (``NAME=value``) in their environment. This
    works on Linux; on other systems, it does nothing."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _GRACE_S
        for pid in _processes(variable):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, kind)
        while any(_processes(variable)):
            if time.monotonic() > deadline:
                break
            time.sleep(_CHECK_S)
        else:
            return


def _processes(variable: str) -> Iterator[int]:
    wanted = variable.encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if int(folder.name) != os.getpid() and wanted in (
                folder / "environ"
            ).read_bytes().split(b"\0"):
                yield int(folder.name)

"""Commands, environments and resource limits for programs that handle untrusted content.

Such a program is a Python file of this package. It runs in a process of its own, and limits its own
resources before it reads its input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def program_command(program: Path, *arguments: str) -> list[str]:
    """Return the command that runs a program. ``program``: the path of its file. The option ``-P``
    prevents the program from importing modules of its own folder."""
    return [sys.executable, "-P", str(program), *arguments]


def program_environment(variables: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the environment variables of a program: the import path and the given ``variables``.
    The ``variables`` must not contain secrets. The program does not inherit the server's
    environment variables, because they may contain secrets."""
    path = os.pathsep.join(path for path in sys.path if path)
    return {**variables, "PYTHONPATH": path}


def limit_program(*, memory: int, cpu_s: int, open_files: int) -> None:
    """Set resource limits for the calling process. From then on, it cannot write files and leaves
    no core dump. ``memory``: bytes of address space. ``cpu_s``: seconds of CPU time.

    If the process already has a lower limit, the lower limit is kept.
    """
    try:
        import resource
    except ImportError:  # not a Unix
        return
    for kind, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard_limit = resource.getrlimit(kind)
        if hard_limit != resource.RLIM_INFINITY:
            limit = min(limit, hard_limit)
        resource.setrlimit(kind, (limit, limit))

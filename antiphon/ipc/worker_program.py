"""Start programs of this package that handle untrusted content, each in a process of its own.

A program is a file that is run by its path. It limits itself before it reads its input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["limit_program", "program_command", "program_environment"]


def program_command(program: Path, *arguments: str) -> list[str]:
    """Return the command that runs a program. ``-P``: it imports nothing from its own folder."""
    return [sys.executable, "-P", str(program), *arguments]


def program_environment(variables: Mapping[str, str] = {}) -> dict[str, str]:
    """Return all that a program gets of the environment: these variables, and where its imports
    are found. So it does not inherit the secrets of the server."""
    path = os.pathsep.join(path for path in sys.path if path)
    return {**variables, "PYTHONPATH": path}


def limit_program(*, memory: int, cpu_s: int, open_files: int) -> None:
    """Limit the calling process. It cannot write files, and leaves no core dump.

    Lower limits that it has already stay. ``memory``: bytes of address space."""
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

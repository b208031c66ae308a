"""Run a program in a process of its own, because the program parses untrusted content."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from .worker_program import program_command, program_environment

_log = structlog.get_logger(__name__)

#: Seconds to wait for the end of a killed process.
_KILL_S = 5.0


class WorkerFailed(Exception):
    """Error for a worker process that failed or was killed, usually because it exceeded a limit.
    ``status``: the exit status; negative if the process was killed."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


async def run_worker(
    program: Path, *arguments: str, content: bytes, variables: Mapping[str, str] = {}
) -> bytes:
    """Run a Python file in a new process. ``content`` is its standard input. Returns its standard
    output.

    The process has a private folder for temporary files. It gets the environment variables
    ``variables`` but not the server's environment, which may contain secrets. If the caller is
    cancelled, the process is killed. The program must set its own limits on time and memory. Raises
    ``WorkerFailed`` if the program fails or is killed, and ``OSError`` if the process cannot be
    started.
    """
    with TemporaryDirectory(prefix="antiphon-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            *program_command(program, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=program_environment({**variables, "TMPDIR": folder}),
        )
        try:
            output, _ = await process.communicate(content)
        finally:
            await _end(process)
    if process.returncode:
        raise WorkerFailed(process.returncode)
    return output


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the process and wait for its end. A process that cannot be killed must not block the
    request or the shutdown."""
    with suppress(ProcessLookupError):
        process.kill()
    try:
        async with asyncio.timeout(_KILL_S):
            await process.wait()
    except TimeoutError:
        _log.warning("a worker process does not end", pid=process.pid)

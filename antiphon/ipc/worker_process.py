"""Run a program in a process of its own, because the program parses untrusted content."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from .worker_program import program_command, program_environment


class WorkerFailed(Exception):
    """Error for a worker process that failed or was killed, usually because it exceeded a limit."""


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
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        raise WorkerFailed(f"exit status {process.returncode}")
    return output

"""Run a program that parses untrusted content in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from antiphon.ipc.worker_program import program_command, program_environment

__all__ = ["WorkerFailed", "run_worker"]


class WorkerFailed(Exception):
    """The program failed or was killed, usually because it exceeded a limit."""


async def run_worker(
    program: Path, *arguments: str, content: bytes, variables: Mapping[str, str] = {}
) -> bytes:
    """Run a Python file with ``content`` as its input and return its output.

    The process has a private folder. Its environment contains only ``variables``, so it does not
    inherit the server's secrets. If the caller is cancelled, the process is killed. The program
    itself sets its limits. Raises ``WorkerFailed``, and ``OSError`` if no process can be started.
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

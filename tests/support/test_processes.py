from __future__ import annotations

import asyncio
import sys

import pytest

from antiphon.support.processes import describe_end, kill


@pytest.mark.parametrize("ends_itself", [True, False])
async def test_process_has_ended_after_it_was_killed(ends_itself: bool) -> None:
    program = "" if ends_itself else "import sys; sys.stdin.read()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdin=asyncio.subprocess.PIPE
    )
    if ends_itself:
        await process.wait()
    await kill(process)
    assert (process.returncode == 0) == ends_itself


def test_end_of_a_process_is_described() -> None:
    assert describe_end(3) == "exit code 3"
    assert describe_end(-11) == "SIGSEGV"
    assert describe_end(-9) == "SIGKILL, perhaps because memory ran out"
    assert describe_end(-99) == "signal 99"

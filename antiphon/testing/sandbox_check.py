"""Checks of the contract of a sandbox, for authors of sandboxes.

Each check takes an open sandbox, opens boxes in it and raises ``AssertionError``. ``FILE_CHECKS``
contains the checks that run no code. The checks do not test whether code can escape from a box:
each kind of isolation needs tests of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from antiphon.errors import ToolError
from antiphon.sandbox.base import Box, ExecutionResult, Limits, Sandbox

from .checks import checks_of

__all__ = ["CHECKS", "FILE_CHECKS", "Check", "check_sandbox"]

Check = Callable[[Sandbox], Awaitable[None]]

#: Seconds in which a check must end. On a busy machine, a box starts slowly.
TIMEOUT_S = 120
#: Time limit of code that does not end by itself, in seconds.
_SHORT_S = 1.0
_MAX_CHARS = 1000
LIMITS = Limits(memory_bytes=256 << 20, disk_bytes=8 << 20, processes=32)


@asynccontextmanager
async def _open(sandbox: Sandbox) -> AsyncIterator[Box]:
    async with asyncio.timeout(TIMEOUT_S):
        box = await sandbox.open(LIMITS)
        try:
            yield box
        finally:
            await box.close()


async def _python(box: Box, code: str, timeout_s: float = TIMEOUT_S) -> ExecutionResult:
    return await box.python(code, timeout_s=timeout_s, max_chars=_MAX_CHARS)


async def _command(box: Box, command: str, timeout_s: float = TIMEOUT_S) -> ExecutionResult:
    return await box.command(command, timeout_s=timeout_s, max_chars=_MAX_CHARS)


# --- files ---------------------------------------------------------------------------------------


async def files_are_kept_until_they_are_removed(sandbox: Sandbox) -> None:
    content = bytes(range(256))
    async with _open(sandbox) as box:
        assert await box.list_files() == (), "a new box must contain no files"
        assert await box.read("a.bin") is None, "read must return None if there is no file"
        await box.write("folder/b.bin", b"")
        await box.write("a.bin", b"old")
        await box.write("a.bin", content)
        assert await box.read("a.bin") == content, "read must return what write wrote last"
        found = [(entry.path, entry.size) for entry in await box.list_files()]
        assert found == [("a.bin", 256), ("folder/b.bin", 0)], f"list_files returned {found}"
        assert await box.remove("a.bin"), "remove must return True for a file"
        assert not await box.remove("a.bin"), "remove must return False if there is no file"
        assert await box.read("a.bin") is None, "a removed file is still there"


async def disk_limit_is_enforced(sandbox: Sandbox) -> None:
    async with _open(sandbox) as box:
        try:
            await box.write("big", bytes(LIMITS.disk_bytes + 1))
        except ToolError:
            return
    raise AssertionError("a file that exceeds disk_bytes must raise ToolError")


async def boxes_share_no_files(sandbox: Sandbox) -> None:
    async with _open(sandbox) as one, _open(sandbox) as other:
        await one.write("a.txt", b"secret")
        assert await other.read("a.txt") is None, "a box contains a file of another box"


async def closed_box_raises_tool_error(sandbox: Sandbox) -> None:
    async with _open(sandbox) as box:
        assert box.is_alive, "a new box must be alive"
        await box.close()
        assert not box.is_alive, "a closed box must not be alive"
        try:
            await box.read("a.txt")
        except ToolError:
            return
    raise AssertionError("a method of a closed box must raise ToolError")


# --- code ----------------------------------------------------------------------------------------


async def variables_persist_in_one_box(sandbox: Sandbox) -> None:
    async with _open(sandbox) as box, _open(sandbox) as other:
        await _python(box, "x = 20")
        result = await _python(box, "print(x + 1)")
        assert (result.output, result.end_reason) == ("21\n", "done"), f"{result}"
        result = await _python(other, "print(x)")
        assert result.end_reason == "raised" and "NameError" in result.output, f"{result}"


async def code_and_commands_use_the_files(sandbox: Sandbox) -> None:
    async with _open(sandbox) as box:
        await box.write("a.txt", b"one")
        result = await _python(box, "print(open('/mnt/data/a.txt').read())")
        assert result.output == "one\n", f"Python code cannot read a file: {result}"
        result = await _command(box, "cat a.txt && printf two > b.txt")
        assert result.output == "one", f"a command must start in /mnt/data: {result}"
        assert await box.read("b.txt") == b"two", "read must find the files of commands"


async def commands_report_output_and_exit_code(sandbox: Sandbox) -> None:
    outputs: list[tuple[str, str]] = []
    async with _open(sandbox) as box:
        result = await box.command(
            "echo out; echo err >&2; exit 3",
            timeout_s=TIMEOUT_S,
            max_chars=_MAX_CHARS,
            on_output=lambda output, error: outputs.append((output, error)),
        )
    found = (result.output, result.stderr, result.exit_code, result.end_reason)
    assert found == ("out\n", "err\n", 3, "done"), f"{result}"
    for stream, text in enumerate(("out\n", "err\n")):
        reported = "".join(each[stream] for each in outputs)
        assert reported == text, f"on_output must receive {text!r}, but received {reported!r}"


async def long_output_is_truncated(sandbox: Sandbox) -> None:
    async with _open(sandbox) as box:
        result = await _python(box, f"print('a' * {9 * _MAX_CHARS} + 'z')")
        assert len(result.output) < 2 * _MAX_CHARS, "output longer than max_chars must be truncated"
        assert result.output.startswith("a") and result.output.endswith("z\n"), (
            "a long output must be truncated in the middle"
        )


async def time_limit_ends_code_and_commands(sandbox: Sandbox) -> None:
    async with _open(sandbox) as box:
        result = await _python(box, "while True: pass", _SHORT_S)
        assert result.end_reason == "timeout", f"Python code exceeded timeout_s: {result}"
        result = await _command(box, "sleep 600", _SHORT_S)
        assert result.end_reason == "timeout", f"a command exceeded timeout_s: {result}"
        result = await _python(box, "print(1)")
        assert result.output == "1\n", f"no code runs after a timeout: {result}"


async def cancelled_call_interrupts_its_code(sandbox: Sandbox) -> None:
    async with _open(sandbox) as box:
        call = asyncio.create_task(_python(box, "while True: pass"))
        await asyncio.sleep(_SHORT_S)
        call.cancel()
        await asyncio.wait((call,))
        assert call.cancelled(), "a cancelled call must raise CancelledError"
        result = await _python(box, "print(1)")
        assert result.output == "1\n", f"no code runs after a cancelled call: {result}"


async def shared_files_replace_earlier_ones(sandbox: Sandbox) -> None:
    async with _open(sandbox) as box:
        files = {"run.sh": b"#!/bin/sh\necho new\n", "docs/a.txt": b"text"}
        await box.share("skill", {"old.txt": b"old"}, ())
        await box.share("skill", files, ("run.sh",))
        result = await _command(box, "cd /mnt/skills/skill && ./run.sh && cat docs/a.txt; ls")
        assert result.output == "new\ntextdocs\nrun.sh\n", f"{result}"
        assert await box.list_files() == (), "list_files must leave shared files out"


async def shared_files_are_read_only(sandbox: Sandbox) -> None:
    async with _open(sandbox) as box:
        await box.share("skill", {"a.txt": b"text"}, ())
        result = await _command(box, "echo x > /mnt/skills/skill/a.txt")
        assert result.exit_code not in (0, None), f"code could change a shared file: {result}"


CHECKS: Mapping[str, Check] = checks_of(globals(), "sandbox")
FILE_CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        files_are_kept_until_they_are_removed,
        disk_limit_is_enforced,
        boxes_share_no_files,
        closed_box_raises_tool_error,
    )
}


async def check_sandbox(sandbox: Sandbox, checks: Mapping[str, Check] = CHECKS) -> None:
    """Run all ``checks`` on an open sandbox, one after the other. The sandbox stays open."""
    for check in checks.values():
        await check(sandbox)

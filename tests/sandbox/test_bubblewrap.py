"""Bubblewrap boxes: interpreter state, time-outs, output, files, and error messages for missing
parts."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import SetupError, ToolError
from antiphon.sandbox import agent_client, bubblewrap
from antiphon.sandbox.agent_client import AgentBox
from antiphon.sandbox.base import Limits
from antiphon.sandbox.bubblewrap import BoxSetup, Bubblewrap
from tests.child_processes import child_processes
from tests.sandbox.real_sandboxes import SMALL, open_box, sandbox

pytestmark = pytest.mark.e2e


@pytest.fixture
async def box() -> AsyncIterator[AgentBox]:
    async with open_box() as box:
        yield box


async def run(box: AgentBox, code: str, timeout_s: float = 10, most: int = 2000) -> str:
    return (await box.python(code, timeout_s=timeout_s, max_chars=most)).output


async def test_variables_persist_and_last_value_is_printed(box: AgentBox) -> None:
    assert await run(box, "x = 20\ndef fake_pyplot(): return 2 * x\nx") == "20\n"
    assert await run(box, "fake_pyplot() + 2") == "42\n"
    assert await run(box, "_ + 1") == "43\n"
    assert await run(box, "fake_pyplot();") == ""
    assert await run(box, "import asyncio\nawait asyncio.sleep(0, 'waited')") == "'waited'\n"


async def test_traceback_omits_frames_of_the_kernel(box: AgentBox) -> None:
    result = await box.python("def f():\n    1 / 0\nprint('so')\nf()", timeout_s=60, max_chars=2000)
    assert result.end_reason == "raised" and result.variables_kept
    assert result.output.startswith('so\nTraceback (most recent call last):\n  File "<cell 1>"')
    assert "    1 / 0\n" in result.output and result.output.endswith("division by zero\n")
    wrong = await box.python("x = = 1", timeout_s=60, max_chars=2000)
    assert wrong.end_reason == "raised" and "SyntaxError" in wrong.output
    assert (await box.python("exit()", timeout_s=60, max_chars=2000)).end_reason == "done"


async def test_timeout_interrupts_code_and_keeps_variables(box: AgentBox) -> None:
    await run(box, "x = 1")
    result = await box.python("while True: pass", timeout_s=0.3, max_chars=2000)
    assert (result.end_reason, result.variables_kept) == ("timeout", True)
    assert "KeyboardInterrupt" in result.output and await run(box, "x") == "1\n"


async def test_code_that_ignores_interrupt_is_killed_and_files_stay(box: AgentBox) -> None:
    await run(box, "x = 1; open('kept.txt', 'w').write('still here')")
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    result = await box.python(stubborn, timeout_s=0.3, max_chars=2000)
    assert (result.end_reason, result.variables_kept) == ("timeout", False)
    assert "NameError" in await run(box, "x")
    assert await run(box, "open('kept.txt').read()") == "'still here'\n"


async def test_interpreter_that_exits_is_reported_as_died(box: AgentBox) -> None:
    result = await box.python(
        "import os\nprint('bye', flush=True)\nos._exit(3)", timeout_s=60, max_chars=99
    )
    assert (result.end_reason, result.variables_kept, result.output) == ("died", False, "bye\n")
    assert await run(box, "1") == "1\n"


async def test_output_is_truncated_in_the_middle(box: AgentBox) -> None:
    cut = await run(box, "print('a' * 5000 + 'z' * 5000)", most=100)
    assert cut.startswith("a" * 50 + "\n[… 9901 bytes left out …]\n") and cut.endswith("z\n")
    endless = await box.python("while True: print('y' * 1000)", timeout_s=60, max_chars=1000)
    assert endless.end_reason == "output" and len(endless.output) < 2000 and endless.variables_kept


async def test_large_files_are_encoded_off_the_event_loop(
    box: AgentBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, content = set[str](), os.urandom(1 << 22)
    for module, name in ((agent_client.msgspec.json, "encode"), (agent_client, "decode_answer")):
        call = getattr(module, name)

        def recorded(value: Any, *args: Any, call: Callable[..., Any] = call) -> Any:
            result = call(value, *args)
            if len(result if isinstance(result, bytes) else value) > len(content):
                threads.add(threading.current_thread().name)
            return result

        monkeypatch.setattr(module, name, recorded)
    await box.write("/mnt/data/large", content)
    assert await box.read("/mnt/data/large") == content
    assert threads and threading.current_thread().name not in threads


async def test_cancelled_call_interrupts_its_code(box: AgentBox) -> None:
    await run(box, "x = 5")
    endless = asyncio.create_task(run(box, "while True: pass", timeout_s=60))
    for _ in range(5):  # until it has been sent
        await asyncio.sleep(0)
    endless.cancel()
    async with asyncio.timeout(80):
        with pytest.raises(asyncio.CancelledError):
            await endless
        assert await run(box, "x") == "5\n"


async def test_command_returns_stdout_stderr_and_exit_code(box: AgentBox) -> None:
    result = await box.command(
        "echo out; echo err >&2; cd /tmp; exit 3", timeout_s=60, max_chars=1000
    )
    assert (result.output, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    slow = await box.command("echo begun; sleep 60", timeout_s=0.3, max_chars=1000)
    assert (slow.output, slow.end_reason) == ("begun\n", "timeout")
    await run(box, "open('shared.txt', 'w').write('by python')")
    assert (await box.command("cat shared.txt", timeout_s=60, max_chars=99)).output == "by python"


async def test_processes_are_paused_between_calls(box: AgentBox) -> None:
    grown = "until [ $(stat -c %s ticks) -gt {size} ]; do sleep 0.01; done"
    count = "touch ticks; ( while true; do echo x >> ticks; done ) & " + grown.format(size=0)
    await box.command(count, timeout_s=60, max_chars=99)
    (before,) = await box.list_files()
    (after,) = await box.list_files()
    assert before == after
    await box.command(grown.format(size=after.size), timeout_s=60, max_chars=99)
    (later,) = await box.list_files()
    assert later.size > after.size


async def test_files_are_written_listed_read_and_removed(box: AgentBox) -> None:
    await box.write("in/data.bin", bytes(range(256)))
    assert await run(box, "len(open('/mnt/data/in/data.bin', 'rb').read())") == "256\n"
    (entry,) = await box.list_files()
    assert (entry.path, entry.size) == ("in/data.bin", 256)
    assert await box.read("in/data.bin") == bytes(range(256))
    assert await box.remove("in/data.bin") and not await box.remove("in/data.bin")
    with pytest.raises(ToolError, match="No space"):
        await box.write("big", bytes(SMALL.disk_bytes + 1))
    with pytest.raises(ToolError, match="leads out"):
        await box.write("../tmp/x", b"")
    assert await box.list_files() == ()


async def test_displayed_images_become_files(box: AgentBox) -> None:
    code = """
class Picture:
    def _repr_png_(self): return b'\\x89PNG so it is'
display(Picture())
Picture()
"""
    result = await box.python(code, timeout_s=60, max_chars=99)
    assert result.images == ("image-1.png", "image-2.png") and result.output == ""
    assert await box.read("image-2.png") == b"\x89PNG so it is"


async def test_open_figures_are_saved_at_the_end(box: AgentBox) -> None:
    """Uses a fake ``matplotlib.pyplot``, which the Python of the box may lack."""
    fake_pyplot = """
import sys, types
plt = types.ModuleType('matplotlib.pyplot')
class Figure:
    def savefig(self, path, **how): open(path, 'wb').write(b'figure')
open_now = [1]
plt.get_fignums = lambda: list(open_now)
plt.figure = lambda number: Figure()
plt.close = lambda which: open_now.clear()
sys.modules['matplotlib.pyplot'] = plt
"""
    assert (await box.python(fake_pyplot, timeout_s=60, max_chars=99)).images == ("image-1.png",)
    assert (await box.python("1", timeout_s=60, max_chars=99)).images == ()


async def test_dead_box_raises_tool_error() -> None:
    others = child_processes()
    async with open_box() as box:
        (pid,) = child_processes() - others
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ToolError, match="has ended"):
            await run(box, "1")
        assert not box.is_alive


async def test_pool_keeps_one_box_ready() -> None:
    others = child_processes()
    pooled = await sandbox(pool=1)
    box = await pooled.open(SMALL)
    other = await pooled.open(Limits(memory_bytes=128 << 20, disk_bytes=4 << 20))
    try:
        assert await run(box, "1") == "1\n" and await run(other, "2") == "2\n"
        async with asyncio.timeout(60):
            while len(child_processes() - others) < 3:
                await asyncio.sleep(0.01)
        assert len(child_processes() - others) == 3
    finally:
        await box.close()
        await other.close()
        await pooled.close()
    assert not child_processes() - others


async def test_missing_parts_are_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await sandbox()
    built = BoxSetup.detect()
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\n")
    broken.chmod(0o755)
    tmp_path.chmod(0o755)
    refused = Bubblewrap(
        BoxSetup(
            bwrap=str(broken),
            python=built.python,
            python_folders=(),
            guest_sources=built.guest_sources,
            seccomp_filter=built.seccomp_filter,
        )
    )
    with pytest.raises(SetupError, match=r"^the sandbox does not start: "):
        await refused.check()
    monkeypatch.setattr(bubblewrap.platform, "machine", lambda: "vax")
    with pytest.raises(SetupError, match="no sandboxes on linux vax"):
        BoxSetup.detect()


def test_invalid_python_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is not a Python that the sandbox can run"):
        bubblewrap.python_folders(str(tmp_path / "python"))


def test_box_works_on_uvloop() -> None:
    """uvloop supports fewer arguments of ``create_subprocess_exec`` than asyncio."""
    uvloop = pytest.importorskip("uvloop")

    async def work() -> str:
        async with open_box() as box:
            return await run(box, "6 * 7")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(work()) == "42\n"


async def test_output_of_a_command_is_reported_while_it_runs(box: AgentBox) -> None:
    reported: list[tuple[str, str]] = []
    first = asyncio.Event()

    def on_output(output: str, errors: str) -> None:
        reported.append((output, errors))
        first.set()

    await box.write("go", b"")
    command = (
        "printf 'ein \\303'; while [ -e go ]; do sleep 0.01; done; printf '\\251'; echo two >&2"
    )
    running = asyncio.create_task(
        box.command(command, timeout_s=60, max_chars=100, on_output=on_output)
    )
    await asyncio.wait_for(first.wait(), 60)
    assert reported == [("ein ", "")] and not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    reported.clear()
    await box.remove("go")
    result = await box.command(command, timeout_s=60, max_chars=100, on_output=on_output)
    assert "".join(out for out, _ in reported) == result.output == "ein é"
    assert "".join(err for _, err in reported) == result.stderr == "two\n"


async def test_reported_output_is_limited_to_max_chars(box: AgentBox) -> None:
    reported: list[str] = []
    result = await box.command(
        "for i in $(seq 2000); do echo line $i; done",
        timeout_s=60,
        max_chars=1000,
        on_output=lambda output, errors: reported.append(output),
    )
    assert "left out" in result.output
    assert 0 < len("".join(reported)) <= 1000 and "".join(reported).startswith("line 1\nline 2\n")


@pytest.mark.parametrize(
    ("files", "remedy"),
    [
        ({"user/max_user_namespaces": "15000"}, ""),
        ({"user/max_user_namespaces": "0"}, "sysctl -w user.max_user_namespaces=15000"),
        (
            {
                "user/max_user_namespaces": "15000",
                "kernel/apparmor_restrict_unprivileged_userns": "1",
            },
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ],
)
def test_setting_that_forbids_namespaces_is_named(
    tmp_path: Path, files: dict[str, str], remedy: str
) -> None:
    for name, value in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    found = bubblewrap.remedy(tmp_path)
    assert found.endswith(remedy) and bool(found) == bool(remedy)

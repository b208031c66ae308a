"""Boxes as they are used: state, time-outs, output, files, and what is missing said in a line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.errors import SetupError, ToolError
from antiphon.sandbox import bubblewrap
from antiphon.sandbox.agent_client import AgentBox
from antiphon.sandbox.base import Limits
from antiphon.sandbox.bubblewrap import Bubblewrap, Built
from tests.sandbox.boxes import SMALL, opened, sandbox


@pytest.fixture
async def box() -> AsyncIterator[AgentBox]:
    async with opened() as box:
        yield box


async def run(box: AgentBox, code: str, timeout_s: float = 10, most: int = 2000) -> str:
    return (await box.python(code, timeout_s=timeout_s, most=most)).output


async def test_variables_stay_and_the_last_value_is_written(box: AgentBox) -> None:
    assert await run(box, "x = 20\ndef double(): return 2 * x\nx") == "20\n"
    assert await run(box, "double() + 2") == "42\n"
    assert await run(box, "_ + 1") == "43\n"
    assert await run(box, "double();") == ""
    assert await run(box, "import asyncio\nawait asyncio.sleep(0, 'waited')") == "'waited'\n"


async def test_what_is_raised_is_told_without_our_frames(box: AgentBox) -> None:
    outcome = await box.python("def f():\n    1 / 0\nprint('so')\nf()", timeout_s=5, most=2000)
    assert outcome.ended == "raised" and outcome.kept
    assert outcome.output.startswith('so\nTraceback (most recent call last):\n  File "<cell 1>"')
    assert "    1 / 0\n" in outcome.output and outcome.output.endswith("division by zero\n")
    wrong = await box.python("x = = 1", timeout_s=5, most=2000)
    assert wrong.ended == "raised" and "SyntaxError" in wrong.output
    assert (await box.python("exit()", timeout_s=5, most=2000)).ended == "done"


async def test_what_takes_too_long_is_interrupted_and_the_rest_stays(box: AgentBox) -> None:
    await run(box, "x = 1")
    outcome = await box.python("while True: pass", timeout_s=0.3, most=2000)
    assert (outcome.ended, outcome.kept) == ("timeout", True)
    assert "KeyboardInterrupt" in outcome.output and await run(box, "x") == "1\n"


async def test_what_does_not_heed_it_is_ended_and_files_stay(box: AgentBox) -> None:
    await run(box, "x = 1; open('kept.txt', 'w').write('still here')")
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    outcome = await box.python(stubborn, timeout_s=0.3, most=2000)
    assert (outcome.ended, outcome.kept) == ("timeout", False)
    assert "NameError" in await run(box, "x")
    assert await run(box, "open('kept.txt').read()") == "'still here'\n"


async def test_one_that_ends_itself_has_died(box: AgentBox) -> None:
    outcome = await box.python(
        "import os\nprint('bye', flush=True)\nos._exit(3)", timeout_s=5, most=99
    )
    assert (outcome.ended, outcome.kept, outcome.output) == ("died", False, "bye\n")
    assert await run(box, "1") == "1\n"


async def test_output_is_cut_in_the_middle(box: AgentBox) -> None:
    cut = await run(box, "print('a' * 5000 + 'z' * 5000)", most=100)
    assert cut.startswith("a" * 50 + "\n[… 9901 bytes left out …]\n") and cut.endswith("z\n")
    endless = await box.python("while True: print('y' * 1000)", timeout_s=20, most=1000)
    assert endless.ended == "output" and len(endless.output) < 2000 and endless.kept


async def test_a_cancelled_call_stops_what_it_runs(box: AgentBox) -> None:
    await run(box, "x = 5")
    endless = asyncio.create_task(run(box, "while True: pass", timeout_s=60))
    while not box._turn.locked():
        await asyncio.sleep(0)
    endless.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await endless
        assert await run(box, "x") == "5\n"


async def test_commands_have_two_outputs_and_a_code(box: AgentBox) -> None:
    outcome = await box.command("echo out; echo err >&2; cd /tmp; exit 3", timeout_s=5, most=1000)
    assert (outcome.output, outcome.errors, outcome.exit_code) == ("out\n", "err\n", 3)
    slow = await box.command("echo begun; sleep 60", timeout_s=0.3, most=1000)
    assert (slow.output, slow.ended) == ("begun\n", "timeout")
    await run(box, "open('shared.txt', 'w').write('by python')")
    assert (await box.command("cat shared.txt", timeout_s=5, most=99)).output == "by python"


async def test_nothing_runs_while_nobody_waits(box: AgentBox) -> None:
    count = "( while true; do echo x >> ticks; sleep 0.005; done ) & sleep 0.1"
    await box.command(count, timeout_s=5, most=99)
    (before,) = await box.entries()
    (after,) = await box.entries()
    assert before == after and before.size > 0
    await box.command("sleep 0.1", timeout_s=5, most=99)
    (later,) = await box.entries()
    assert later.size > after.size


async def test_files_come_and_go(box: AgentBox) -> None:
    await box.write("in/data.bin", bytes(range(256)))
    assert await run(box, "len(open('/mnt/data/in/data.bin', 'rb').read())") == "256\n"
    (entry,) = await box.entries()
    assert (entry.path, entry.size) == ("in/data.bin", 256)
    assert await box.read("in/data.bin") == bytes(range(256))
    assert await box.remove("in/data.bin") and not await box.remove("in/data.bin")
    with pytest.raises(ToolError, match="No space"):
        await box.write("big", bytes(SMALL.disk_bytes + 1))
    with pytest.raises(ToolError, match="leads out"):
        await box.write("../tmp/x", b"")
    assert await box.entries() == ()


async def test_pictures_become_files(box: AgentBox) -> None:
    code = """
class Picture:
    def _repr_png_(self): return b'\\x89PNG so it is'
display(Picture())
Picture()
"""
    outcome = await box.python(code, timeout_s=5, most=99)
    assert outcome.images == ("image-1.png", "image-2.png") and outcome.output == ""
    assert await box.read("image-2.png") == b"\x89PNG so it is"


async def test_figures_are_shown_at_the_end(box: AgentBox) -> None:
    """With a double of ``matplotlib.pyplot``: the Python of the box need not have it."""
    double = """
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
    assert (await box.python(double, timeout_s=5, most=99)).images == ("image-1.png",)
    assert (await box.python("1", timeout_s=5, most=99)).images == ()


async def test_a_dead_box_says_so() -> None:
    async with opened() as box:
        box._process.kill()
        with pytest.raises(ToolError, match="has ended"):
            await run(box, "1")
        assert not box.is_alive


async def test_a_pool_has_one_ready() -> None:
    pooled = await sandbox(pool=1)
    box = await pooled.open(SMALL)
    other = await pooled.open(Limits(memory_bytes=128 << 20, disk_bytes=4 << 20))
    try:
        assert await run(box, "1") == "1\n" and await run(other, "2") == "2\n"
        assert pooled._filling is not None
        await pooled._filling
        assert len(pooled._ready) == 1
    finally:
        await box.close()
        await other.close()
        await pooled.close()
    assert not pooled._ready


async def test_what_is_missing_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built = (await sandbox())._built
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\n")
    broken.chmod(0o755)
    tmp_path.chmod(0o755)
    refused = Bubblewrap(
        Built(
            bwrap=str(broken),
            python=built.python,
            folders=(),
            sources=built.sources,
            filter=built.filter,
        )
    )
    with pytest.raises(SetupError, match=r"^the sandbox does not start: "):
        await refused.check()
    monkeypatch.setattr(bubblewrap.platform, "machine", lambda: "vax")
    with pytest.raises(SetupError, match="no sandboxes on linux vax"):
        Built.find()


def test_a_python_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is no Python that the sandbox could run"):
        bubblewrap._folders(str(tmp_path / "python"))


def test_it_works_on_the_loop_that_serves() -> None:
    """uvloop takes less than asyncio does."""
    uvloop = pytest.importorskip("uvloop")

    async def work() -> str:
        async with opened() as box:
            return await run(box, "6 * 7")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(work()) == "42\n"


async def test_what_a_command_writes_is_heard_as_it_comes(box: AgentBox) -> None:
    heard: list[tuple[str, str]] = []
    first = asyncio.Event()

    def told(output: str, errors: str) -> None:
        heard.append((output, errors))
        first.set()

    await box.write("go", b"")
    command = (
        "printf 'ein \\303'; while [ -e go ]; do sleep 0.01; done; printf '\\251'; echo two >&2"
    )
    running = asyncio.create_task(box.command(command, timeout_s=20, most=100, told=told))
    await asyncio.wait_for(first.wait(), 15)
    assert heard == [("ein ", "")] and not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    heard.clear()
    await box.remove("go")
    outcome = await box.command(command, timeout_s=20, most=100, told=told)
    assert "".join(out for out, _ in heard) == outcome.output == "ein é"
    assert "".join(err for _, err in heard) == outcome.errors == "two\n"


async def test_no_more_is_heard_than_is_kept(box: AgentBox) -> None:
    heard: list[str] = []
    outcome = await box.command(
        "for i in $(seq 2000); do echo line $i; done",
        timeout_s=20,
        most=1000,
        told=lambda output, errors: heard.append(output),
    )
    assert "left out" in outcome.output
    assert 0 < len("".join(heard)) <= 1000 and "".join(heard).startswith("line 1\nline 2\n")

"""The processor time that code in a box gets."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from antiphon.sandbox.guest import processor_share
from antiphon.sandbox.guest.processor_share import ProcessorShare, stat_fields


@pytest.mark.skipif(sys.platform != "linux", reason="scheduling classes are Linux's")
@pytest.mark.parametrize(("free_cpu_s", "is_moved"), [(0.0, True), (1000.0, False)])
def test_long_computation_gets_idle_time(
    monkeypatch: pytest.MonkeyPatch, free_cpu_s: float, is_moved: bool
) -> None:
    monkeypatch.setattr(processor_share, "FREE_CPU_S", free_cpu_s)
    share = ProcessorShare([])
    code = "import os\nwhile sum(os.times()[:2]) < 0.05: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-SIc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "\n"
        share.check([child.pid])
        assert (os.sched_getscheduler(child.pid) == os.SCHED_IDLE) is is_moved
        child.communicate("\n")


@pytest.mark.skipif(sys.platform != "linux", reason="scheduling classes are Linux's")
def test_processes_that_ended_are_ignored() -> None:
    with subprocess.Popen([sys.executable, "-SIc", ""]) as child:
        child.wait()
    share = ProcessorShare([child.pid])
    share.check([child.pid])


@pytest.mark.skipif(sys.platform != "linux", reason="processes are read from /proc")
def test_process_whose_name_is_no_text_is_read() -> None:
    name = "import ctypes\nctypes.CDLL(None).prctl(15, b'\\xff) ', 0, 0, 0)"
    code = f"{name}\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-SIc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "\n"
        assert int(stat_fields(f"/proc/{child.pid}/stat")[1]) == os.getpid()
        child.communicate("\n")

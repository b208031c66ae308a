from __future__ import annotations

from pathlib import Path

from antiphon.support.memory import available_bytes


def test_the_smaller_of_machine_and_control_group_counts(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 4000 kB\n")
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    inner = groups / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    assert available_bytes(proc, groups) == 4000 << 10
    (inner.parent / "memory.max").write_text("3000000\n")
    (inner.parent / "memory.current").write_text("1000000\n")
    assert available_bytes(proc, groups) == 2_000_000


def test_a_system_without_proc_has_memory(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path) > 1 << 20

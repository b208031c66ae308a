from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.support.machine import available_bytes, available_cpus, spare_cpus


@pytest.mark.parametrize(
    ("quotas", "count"),
    [
        ({}, 64),
        ({"inner": "max 100000"}, 64),
        ({"inner": "250000 100000"}, 2),
        ({"inner": "max 100000", "": "800000 100000"}, 8),  # the outer group limits it
        ({"inner": "20000 100000"}, 1),
        ({"inner": "broken"}, 64),
    ],
)
def test_a_quota_of_the_control_group_counts(
    quotas: dict[str, str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)), raising=False)
    proc, outer = tmp_path / "proc", tmp_path / "cgroup" / "outer"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/outer/inner\n")
    (outer / "inner").mkdir(parents=True)
    for folder, quota in quotas.items():
        (outer / folder / "cpu.max").write_text(f"{quota}\n")
    assert available_cpus(proc, tmp_path / "cgroup") == count


def test_processors_that_the_process_may_not_use_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 5}, raising=False)
    assert available_cpus(tmp_path, tmp_path) == 2


def test_one_processor_is_left_for_the_server_if_there_are_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.support.machine.available_cpus", lambda: 8)
    assert spare_cpus() == 7
    monkeypatch.setattr("antiphon.support.machine.available_cpus", lambda: 1)
    assert spare_cpus() == 1


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

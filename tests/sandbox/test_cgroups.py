"""Control groups of boxes, over a folder that behaves like the kernel's, and over the real one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.sandbox import cgroups
from antiphon.sandbox.agent_client import AgentBox
from antiphon.sandbox.base import Limits
from antiphon.sandbox.bubblewrap import BoxSetup, Bubblewrap
from antiphon.sandbox.cgroups import ControlGroups
from tests.sandbox.real_sandboxes import SMALL, sandbox

LIMITS = Limits(memory_bytes=256 << 20, processes=32)
PID = str(os.getpid())
#: Files of a group; the first ones are in the root too.
FILES = (
    "cgroup.procs",
    "cgroup.subtree_control",
    "cgroup.kill",
    "cpu.weight",
    "memory.max",
    "memory.swap.max",
    "pids.max",
)


class Kernel:
    """A cgroup hierarchy in a folder. ``delegated``: the groups that systemd has marked."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.own = root.parent / "own"
        self.delegated: set[Path] = set()
        self.controllers = "cpu memory pids"
        self.killed: list[str] = []
        root.mkdir()
        self._fill(root)
        for name, function in (
            ("_write", self.write),
            ("_make", self.make),
            ("_remove", self.remove),
        ):
            patch.setattr(cgroups, name, function)
        patch.setattr(os, "getxattr", self._xattr)
        patch.setattr(os, "geteuid", lambda: 0)

    def start_in(self, name: str, *others: str) -> None:
        """Put this process, and others, into a group."""
        group = self.root / name.removeprefix("/")
        for path in [*reversed(group.relative_to(self.root).parents), Path(name.lstrip("/"))]:
            self.make(self.root / path)
        (group / "cgroup.procs").write_text("\n".join([PID, *others]))
        self.own.write_text(f"1:cpu:/other\n0::{name}\n")

    def detect(self) -> ControlGroups | None:
        return ControlGroups.detect(self.root, self.own)

    def read(self, name: str) -> str:
        return (self.root / name).read_text()

    def make(self, path: Path) -> None:
        if not path.is_dir():
            path.mkdir()
            self._fill(path)

    def write(self, path: Path, text: str) -> None:
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        if path.name == "cgroup.subtree_control":
            if (path.parent / "cgroup.procs").read_text().strip():
                raise OSError(errno.EBUSY, "Device or resource busy")
            text = " ".join([path.read_text(), *text.replace("+", "").split()])
        elif path.name == "cgroup.procs":
            for procs in self.root.rglob("cgroup.procs"):
                pids = [pid for pid in procs.read_text().split() if pid != text]
                procs.write_text("\n".join([*pids, text] if procs == path else pids))
            return
        path.write_text(text)

    def remove(self, path: Path) -> None:
        self.killed.append(path.name)
        shutil.rmtree(path, ignore_errors=True)

    def _fill(self, path: Path) -> None:
        limits = (
            () if path == self.root else ("memory.max", "pids.max", "cpu.weight", "cgroup.kill")
        )
        for name in ("cgroup.procs", "cgroup.subtree_control", "memory.swap.max", *limits):
            (path / name).write_text("")
        (path / "cgroup.events").write_text("populated 0\nfrozen 0\n")
        (path / "memory.events").write_text("low 0\noom 0\noom_kill 0\n")
        (path / "cgroup.controllers").write_text(self.controllers)

    def _xattr(self, path: Path, attribute: str) -> bytes:
        if attribute == "trusted.delegate" and path in self.delegated:
            return b"1"
        raise OSError(errno.ENODATA, "No data available")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path / "cgroup", monkeypatch)


def test_a_box_gets_the_limits_of_its_group(kernel: Kernel) -> None:
    kernel.start_in("/antiphon.service")
    kernel.delegated = {kernel.root / "antiphon.service"}
    groups = kernel.detect()
    assert groups is not None
    boxes = kernel.root / "antiphon.service/antiphon-boxes"
    assert PID in kernel.read("antiphon.service/antiphon-server/cgroup.procs").split()
    assert set((boxes / "cgroup.subtree_control").read_text().split()) == {"cpu", "memory", "pids"}
    assert (boxes / "cpu.weight").read_text() == "10"
    box = groups.open(LIMITS)
    (path,) = boxes.glob("box-*")
    assert int((path / "memory.max").read_text()) == (256 << 20) + (64 << 20)
    assert (path / "memory.swap.max").read_text() == "0"
    assert int((path / "pids.max").read_text()) == 32 + 8
    box.join()
    assert (path / "cgroup.procs").read_text() == "0", "the process itself"
    assert box.oom_kills() == 0
    (path / "memory.events").write_text("oom 3\noom_kill 2\n")
    assert box.oom_kills() == 2
    box.remove()
    box.remove()
    assert kernel.killed == [path.name]


def test_a_server_in_a_subgroup_uses_the_group_around_it(kernel: Kernel) -> None:
    kernel.start_in("/antiphon.service/main")
    kernel.delegated = {kernel.root / "antiphon.service"}
    assert kernel.detect() is not None
    assert kernel.read("antiphon.service/main/cgroup.procs") == PID, "it stays where it is"
    assert (kernel.root / "antiphon.service/antiphon-boxes").is_dir()
    assert kernel.detect() is not None, "again, for another sandbox"


def test_the_root_of_a_container_is_used(kernel: Kernel) -> None:
    kernel.start_in("/")
    assert kernel.detect() is None, "the root of the machine"
    (kernel.root / "cgroup.type").write_text("domain")
    assert kernel.detect() is not None
    assert PID in kernel.read("antiphon-server/cgroup.procs").split()


def test_without_delegation_nothing_is_touched(kernel: Kernel) -> None:
    kernel.start_in("/system.slice/antiphon.service")
    before = sorted(kernel.root.rglob("*"))
    assert kernel.detect() is None
    assert sorted(kernel.root.rglob("*")) == before


def test_a_group_with_processes_of_others_is_left(kernel: Kernel) -> None:
    kernel.start_in("/shared.service", "4000000")
    kernel.delegated = {kernel.root / "shared.service"}
    assert kernel.detect() is None
    assert kernel.read("shared.service/cgroup.procs").split() == ["4000000", PID]
    assert not (kernel.root / "shared.service/antiphon-server").exists()


@pytest.mark.parametrize("controllers", ["", "cpu pids", "memory"])
def test_without_the_controllers_there_are_no_groups(
    kernel: Kernel, tmp_path: Path, controllers: str
) -> None:
    kernel.controllers = controllers
    kernel.start_in("/antiphon.service")
    kernel.delegated = {kernel.root / "antiphon.service"}
    assert kernel.detect() is None
    (kernel.root / "cgroup.controllers").write_text(controllers)
    assert kernel.detect() is None
    assert ControlGroups.detect(tmp_path / "none", tmp_path / "none") is None
    kernel.own.write_text("4:memory:/only\n")
    assert kernel.detect() is None, "a hierarchy of version 1"


def test_groups_of_a_crashed_server_are_removed(kernel: Kernel) -> None:
    kernel.start_in("/antiphon.service")
    kernel.delegated = {kernel.root / "antiphon.service"}
    groups = kernel.detect()
    assert groups is not None
    boxes = kernel.root / "antiphon.service/antiphon-boxes"
    mine = groups.open(LIMITS)
    kernel.make(boxes / "box-4194305-dead")
    kernel.make(boxes / "box-4194306-busy")
    (boxes / "box-4194306-busy/cgroup.events").write_text("populated 1\n")
    assert groups.remove_abandoned() == 1
    assert kernel.killed == ["box-4194305-dead"]
    mine.remove()


async def test_a_box_starts_in_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await sandbox()).close()

    def make(path: Path) -> None:
        path.mkdir()
        for name in FILES:
            (path / name).write_text("")
        (path / "memory.events").write_text("oom_kill 0")

    monkeypatch.setattr(cgroups, "_make", make)
    monkeypatch.setattr(cgroups, "_remove", shutil.rmtree)
    boxes = Bubblewrap(BoxSetup.detect(), groups=ControlGroups(tmp_path))
    box = await boxes.open(SMALL)
    (group,) = tmp_path.iterdir()
    assert (group / "cgroup.procs").read_text() == "0", "it has moved before it started"
    assert (await box.python("1 + 1", timeout_s=9, max_chars=99)).output == "2\n"

    def kill(output: str, _: str) -> None:
        (group / "memory.events").write_text("oom_kill 2")

    ended = await box.command(
        "echo ready",
        timeout_s=9,
        max_chars=99,
        on_output=kill,
    )
    assert ended.end_reason == "memory"
    await box.close()
    await boxes.close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
async def grouped() -> AsyncIterator[AgentBox]:
    """A box in a real control group."""
    await (await sandbox()).close()
    groups = ControlGroups.detect()
    if groups is None:
        pytest.skip("no part of a cgroup hierarchy (version 2) is delegated to this process")
    boxes = Bubblewrap(BoxSetup.detect(), groups=groups)
    box = await boxes.open(SMALL)
    yield box
    await box.close()
    await boxes.close()


async def test_the_kernel_counts_the_memory_of_a_box(grouped: AgentBox) -> None:
    code = "import os\nblocks = []\nwhile True: blocks.append(os.urandom(1 << 22))"
    result = await grouped.python(code, timeout_s=20, max_chars=999)
    assert result.end_reason == "memory"


async def test_the_kernel_counts_the_processes_of_a_box(grouped: AgentBox) -> None:
    code = (
        "import os, time\nfor n in range(100):\n    if os.fork() == 0: time.sleep(30); os._exit(0)"
    )
    result = await grouped.python(code, timeout_s=20, max_chars=999)
    assert "BlockingIOError" in result.output

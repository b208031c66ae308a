"""GPUs are found by the programs and files of their drivers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.support import gpus
from antiphon.support.gpus import Gpu, find_gpu


def printing(text: str) -> Callable[[tuple[str, ...]], str]:
    return lambda command: text


def missing(command: tuple[str, ...]) -> str:
    raise FileNotFoundError(command[0])


@pytest.fixture(autouse=True)
def without_vulkan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "find_library", lambda name: None)


@pytest.mark.parametrize(
    ("driver", "build"), [("580.65.06", "cu132"), ("550.54", "cu128"), ("470.1", "vulkan")]
)
def test_driver_of_nvidia_decides_the_build(driver: str, build: str, tmp_path: Path) -> None:
    line = f"NVIDIA GeForce RTX 4090, 24564 MiB, {driver}\n"
    assert find_gpu(run=printing(line), root=tmp_path) == Gpu(
        name="NVIDIA GeForce RTX 4090", build=build, memory_bytes=24564 << 20
    )


def test_memory_of_several_gpus_is_added(tmp_path: Path) -> None:
    found = find_gpu(run=printing("H200, 143771 MiB, 580.1\n" * 2), root=tmp_path)
    assert found is not None
    assert found.memory_bytes == 2 * 143771 << 20


@pytest.mark.parametrize("text", ["", "No devices were found", "a, b, c", "H200, [N/A], 580"])
def test_other_output_is_no_gpu(text: str, tmp_path: Path) -> None:
    assert find_gpu(run=printing(text), root=tmp_path) is None


def test_gpu_of_amd_is_found_by_its_driver(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for node, count in (("0", 0), ("1", 120)):
        (nodes / node / "mem_banks/0").mkdir(parents=True)
        (nodes / node / "properties").write_text(f"cpu_cores_count 8\nsimd_count {count}\n")
        (nodes / node / "mem_banks/0/properties").write_text("size_in_bytes 17163091968\n")
    found = find_gpu(run=missing, root=tmp_path)
    assert found == Gpu(name="AMD GPU", build="rocm-7.2", memory_bytes=17163091968)


def test_other_gpus_need_vulkan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/renderD128").touch()
    assert find_gpu(run=missing, root=tmp_path) is None
    monkeypatch.setattr(gpus, "find_library", lambda name: "libvulkan.so.1")
    found = find_gpu(run=missing, root=tmp_path)
    assert found is not None
    assert found.build == "vulkan"


def test_macs_need_no_other_build(tmp_path: Path) -> None:
    assert find_gpu(run=printing("H200, 1 MiB, 580"), root=tmp_path, system="darwin") is None

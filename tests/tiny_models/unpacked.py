"""The models of this folder, unpacked once and then shared by every checkout of this user."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from pathlib import Path

_PACKED = Path(__file__).parent / "tiny-gpt-oss-trained-q8_0.gguf.gz"


def tiny_gpt_oss() -> Path:
    """The GGUF file of the tiny gpt-oss."""
    head = _PACKED.read_bytes()[-8:].hex()  # CRC and length of what is packed (RFC 1952)
    file = Path.home() / ".cache" / "antiphon" / "tests" / head / _PACKED.stem
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        with (
            gzip.open(_PACKED) as packed,
            tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as created,
        ):
            shutil.copyfileobj(packed, created)
        os.replace(created.name, file)
    return file

"""A tiny random LoRA adapter for a real model. The resulting text has no meaning. Tests check that
the adapter changes the computation.
"""

from __future__ import annotations

import math
import random
from array import array
from pathlib import Path

from tests.engines.gguf.test_reader import head


def write_adapter(path: Path, embedding: int, layers: int, *, seed: int = 0, rank: int = 4) -> Path:
    """A LoRA of the attention's outputs."""
    drawn = random.Random(seed)
    rows: list[tuple[str, tuple[int, ...], int, int]] = []
    content = b""
    for layer in range(layers):
        for part, shape in (("a", (embedding, rank)), ("b", (rank, embedding))):
            rows.append((f"blk.{layer}.attn_output.weight.lora_{part}", shape, 0, len(content)))
            scale = 1 / math.sqrt(shape[0])
            values = [drawn.uniform(-scale, scale) for _ in range(math.prod(shape))]
            content += _aligned(array("f", values).tobytes())
    metadata = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 64.0,
    }
    path.write_bytes(_aligned(head(metadata, rows)) + content)
    return path


def _aligned(content: bytes) -> bytes:
    return content.ljust((len(content) + 31) // 32 * 32, b"\0")

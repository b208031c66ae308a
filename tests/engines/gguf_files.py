"""Tiny random GGUF files to go with a real model: a picture encoder, a LoRA adapter.

What they say means nothing; that they are computed, and how, is what tests are about.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .test_gguf import head

__all__ = ["IMAGE_TOKENS", "write_adapter", "write_projector"]

_SIZE, _PATCH, _WIDTH, _HIDDEN = 28, 14, 32, 64
#: Each image is so many tokens: a square of patches.
IMAGE_TOKENS = (_SIZE // _PATCH) ** 2

Tensors = Mapping[str, tuple[int, ...]]


def write_projector(path: Path, embedding: int, *, seed: int = 0) -> Path:
    """An encoder in LLaVA's form for a model with so many ``embedding`` dimensions."""
    tensors: dict[str, tuple[int, ...]] = {
        "v.class_embd": (_WIDTH,),
        "v.patch_embd.weight": (_PATCH, _PATCH, 3, _WIDTH),
        "v.position_embd.weight": (_WIDTH, IMAGE_TOKENS + 1),
        "mm.0.weight": (_WIDTH, embedding),
        "mm.0.bias": (embedding,),
        "mm.2.weight": (embedding, embedding),
        "mm.2.bias": (embedding,),
    }
    for norm in ("v.pre_ln", "v.post_ln", *(f"v.blk.{n}.ln{m}" for n in range(2) for m in (1, 2))):
        tensors |= {f"{norm}.weight": (_WIDTH,), f"{norm}.bias": (_WIDTH,)}
    for layer in range(2):
        block = f"v.blk.{layer}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            tensors |= {
                f"{block}.{name}.weight": (_WIDTH, _WIDTH),
                f"{block}.{name}.bias": (_WIDTH,),
            }
        tensors |= {
            f"{block}.ffn_up.weight": (_WIDTH, _HIDDEN),
            f"{block}.ffn_up.bias": (_HIDDEN,),
            f"{block}.ffn_down.weight": (_HIDDEN, _WIDTH),
            f"{block}.ffn_down.bias": (_WIDTH,),
        }
    metadata = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "mlp",
        "clip.vision.image_size": _SIZE,
        "clip.vision.patch_size": _PATCH,
        "clip.vision.embedding_length": _WIDTH,
        "clip.vision.feed_forward_length": _HIDDEN,
        "clip.vision.projection_dim": embedding,
        "clip.vision.block_count": 2,
        "clip.vision.attention.head_count": 4,
        "clip.vision.attention.layer_norm_epsilon": 1e-5,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
        "clip.use_gelu": True,
    }
    return _write(path, metadata, tensors, seed)


def write_adapter(path: Path, embedding: int, layers: int, *, seed: int = 0, rank: int = 4) -> Path:
    """A LoRA of the attention's outputs."""
    tensors: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        tensors[f"blk.{layer}.attn_output.weight.lora_a"] = (embedding, rank)
        tensors[f"blk.{layer}.attn_output.weight.lora_b"] = (rank, embedding)
    metadata = {
        "general.architecture": "llama",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 64.0,
    }
    return _write(path, metadata, tensors, seed)


def _write(path: Path, metadata: Mapping[str, Any], tensors: Tensors, seed: int) -> Path:
    drawn = random.Random(seed)
    rows: list[tuple[str, tuple[int, ...], int, int]] = []
    content = b""
    for name, shape in tensors.items():
        rows.append((name, shape, 0, len(content)))
        count, scale = math.prod(shape), 1 / math.sqrt(shape[0])
        if name.endswith(("ln1.weight", "ln2.weight", "_ln.weight")):
            values = array("f", [1.0] * count)
        else:
            values = array("f", [drawn.uniform(-scale, scale) for _ in range(count)])
        content += values.tobytes().ljust((4 * count + 31) // 32 * 32, b"\0")
    begin = head(metadata, rows)
    path.write_bytes(begin.ljust((len(begin) + 31) // 32 * 32, b"\0") + content)
    return path

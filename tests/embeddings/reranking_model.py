"""A reranker for tests, made from the tiny model that calls tools. It has the form of a Qwen3
reranker: a prompt with query and text, and a classifier with the labels yes and no."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from antiphon.engines.gguf.reader import read_gguf
from tests.tiny_models.tiny_tools import GGUF

_TEMPLATE = "<|im_start|>user\nQuery: {query}\nText: {document}<|im_end|>\n<|im_start|>assistant\n"
_U32, _STRING, _ARRAY, _F32 = 4, 8, 9, 0
_RANK = 4
_WIDTH, _LABELS = 128, ("yes", "no")


def write_reranker(path: Path) -> None:
    """Write the model's GGUF file."""
    header, data = read_gguf(GGUF), GGUF.read_bytes()
    labels = struct.pack("<IIQ", _ARRAY, _STRING, len(_LABELS)) + b"".join(map(_text, _LABELS))
    metadata = (
        _text("qwen3.pooling_type") + struct.pack("<II", _U32, _RANK),
        _text("qwen3.classifier.output_labels") + labels,
        _text("tokenizer.chat_template.rerank") + struct.pack("<I", _STRING) + _text(_TEMPLATE),
    )
    draw = random.Random(1)
    classifier = [draw.uniform(-0.3, 0.3) for _ in range(_WIDTH * len(_LABELS))]
    tensors = [
        (each.name, each.shape, each.type, data[each.start : each.start + each.length])
        for each in header.tensors
    ]
    weights = struct.pack(f"<{len(classifier)}f", *classifier)
    tensors.append(("cls.output.weight", (_WIDTH, len(_LABELS)), _F32, weights))
    magic, version, _, count = struct.unpack_from("<4sIQQ", data)
    out = struct.pack("<4sIQQ", magic, version, len(tensors), count + len(metadata))
    out += data[len(out) : header.metadata_end] + b"".join(metadata)
    start = 0
    for name, shape, kind, content in tensors:
        out += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        out += struct.pack("<IQ", kind, start)
        start += len(_padded(content, header.alignment))
    contents = (_padded(content, header.alignment) for *_, content in tensors)
    path.write_bytes(_padded(out, header.alignment) + b"".join(contents))


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _padded(content: bytes, alignment: int) -> bytes:
    return content + bytes(-len(content) % alignment)

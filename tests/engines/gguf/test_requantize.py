from __future__ import annotations

import struct
from pathlib import Path

import pytest

from antiphon.engines.gguf.reader import read_gguf
from antiphon.engines.gguf.requantize import Q4_1, Q8_0, to_q8_0
from antiphon.errors import SetupError

pytest.importorskip("xllamacpp")

ROWS = 3


def q4_1(scale: float, least: float) -> bytes:
    """A block of 32 values: ``least + scale * n``, n = 0 … 15 in the low halves and the high."""
    return struct.pack("<ee", scale, least) + bytes(n | (15 - n) << 4 for n in range(16))


def expected(scale: float, least: float) -> list[float]:
    numbers = [*range(16), *(15 - n for n in range(16))]
    return [least + scale * n for n in numbers]


def unpack_q8_0(block: bytes) -> list[float]:
    (scale,) = struct.unpack("<e", block[:2])
    return [scale * value for value in struct.unpack("<32b", block[2:])]


def test_says_the_same_in_another_type(tmp_path: Path) -> None:
    source, target = tmp_path / "q4_1.gguf", tmp_path / "q8_0.gguf"
    blocks = [(0.5, -2.0), (0.25, 1.0), (1.0, -8.0)]
    weights = b"".join(q4_1(*block) for block in blocks)
    plain = struct.pack("<5f", 1, 2, 3, 4, 5)
    name = b"general.architecture"
    head = (
        b"GGUF" + struct.pack("<IQQ", 3, 2, 1)
        + struct.pack("<Q", len(name)) + name + struct.pack("<IQ", 8, 4) + b"test"
        + struct.pack("<Q1sIQIQ", 1, b"p", 1, 5, 0, 0)
        + struct.pack("<Q1sIQQIQ", 1, b"w", 2, 32, ROWS, Q4_1, 32)
    )  # fmt: skip
    padded = head + bytes(-len(head) % 32)
    source.write_bytes(padded + plain.ljust(32, b"\0") + weights.ljust(64, b"\0"))

    to_q8_0(source, target)

    before, after = read_gguf(source), read_gguf(target)
    assert after.metadata == before.metadata
    remaining, changed = after.tensors
    content = target.read_bytes()
    assert content[remaining.start : remaining.start + remaining.length] == plain
    assert (changed.type, changed.shape, changed.length) == (Q8_0, (32, ROWS), ROWS * 34)
    for row, block in enumerate(blocks):
        start = changed.start + 34 * row
        values = unpack_q8_0(content[start : start + 34])
        largest = max(map(abs, expected(*block)))
        assert values == pytest.approx(expected(*block), abs=largest / 127)


def test_leaves_nothing_behind_when_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(SetupError):
        to_q8_0(tmp_path / "broken.gguf", tmp_path / "out.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.gguf"]

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from antiphon.engines.gguf.reader import Tensor, read_gguf
from antiphon.errors import SetupError
from tests.hypothesis_settings import examples

TYPES = {int: (4, "<I"), float: (6, "<f"), bool: (7, "<?")}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(of: Any) -> bytes:
    """Type and value, as the specification writes them."""
    if isinstance(of, str):
        return struct.pack("<I", 8) + text(of)
    if isinstance(of, list):
        packed = [value(each) for each in of]
        return (
            struct.pack("<I", 9)
            + packed[0][:4]
            + struct.pack("<Q", len(of))
            + b"".join(each[4:] for each in packed)
        )
    kind, form = TYPES[type(of)]
    return struct.pack("<I", kind) + struct.pack(form, of)


def head(
    metadata: Mapping[str, Any], tensors: list[tuple[str, tuple[int, ...], int, int]]
) -> bytes:
    pairs = b"".join(text(key) + value(each) for key, each in metadata.items())
    rows = b"".join(
        text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        for name, shape, kind, offset in tensors
    )
    return b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + pairs + rows


METADATA = {
    "general.architecture": "llama",
    "llama.context_length": 4096,
    "llama.rope": 0.5,
    "general.yes": True,
    "general.nested": [[1, 2], [3]],
    "tokenizer.ggml.tokens": ["a", "", "ü🦄"],
    "tokenizer.ggml.scores": [0.5, -1.0],
}
TENSORS = [("one", (32, 2), 3, 0), ("two", (4,), 0, 64)]  # Q4_1: 40 bytes; F32: 16 bytes
HEAD = head(METADATA, TENSORS)
FIRST = (len(HEAD) + 31) // 32 * 32
FILE = HEAD.ljust(FIRST + 64 + 16, b"\0")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_reads_metadata_and_the_table_of_tensors(path: Path) -> None:
    path.write_bytes(FILE)
    found = read_gguf(path)
    assert found.metadata == METADATA
    assert found.architecture == "llama"
    assert found.architecture_value("context_length") == 4096
    assert found.architecture_value("absent") is None
    assert found.tensors == (
        Tensor("one", (32, 2), 3, FIRST, 40),
        Tensor("two", (4,), 0, FIRST + 64, 16),
    )
    assert FILE[found.metadata_end :].startswith(text("one"))


def test_digest_depends_only_on_the_vocabulary(path: Path) -> None:
    def digest(**changed: Any) -> str:
        path.write_bytes(head({**METADATA, **changed}, []))
        return read_gguf(path).vocabulary_digest

    assert digest() == digest(**{"llama.context_length": 1})
    assert digest() != digest(**{"tokenizer.ggml.tokens": ["a", "b", "ü🦄"]})


def test_missing_file_raises_setup_error(path: Path) -> None:
    with pytest.raises(SetupError, match="no model file"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04" + FILE, "does not begin with"),
        (FILE[:4] + struct.pack("<I", 1) + FILE[8:], "version 1"),
        (FILE[:4] + struct.pack(">I", 3) + FILE[8:], "version"),
        (FILE[:-1], "'two' ends 1 bytes after the end"),
        (FILE[:FIRST], "'one' ends 40 bytes after the end"),
        (head({"general.alignment": 0}, []), "alignment"),
        (head({"general.alignment": "32"}, []), "alignment"),
        (head({}, [("x", (1,) * 5, 0, 0)]), "5 dimensions"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<I", 99), "type 99"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 62),
            "middle of its metadata",
        ),
    ],
)
def test_says_what_is_wrong(path: Path, content: bytes, reason: str) -> None:
    path.write_bytes(content)
    with pytest.raises(SetupError, match=reason) as raised:
        read_gguf(path)
    assert "\n" not in str(raised.value)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be read"):
        read_gguf(tmp_path)


def test_every_truncation_of_the_header_raises(path: Path) -> None:
    for end in range(1, len(HEAD)):
        path.write_bytes(FILE[:end])
        with pytest.raises(SetupError):
            read_gguf(path)


@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, len(HEAD) - 8), damage=st.binary(min_size=1, max_size=8))
def test_damaged_files_are_read_or_refused(path: Path, at: int, damage: bytes) -> None:
    path.write_bytes(FILE[:at] + damage + FILE[at + len(damage) :])
    try:
        found = read_gguf(path)
    except SetupError:
        return
    assert all(tensor.start + tensor.length <= len(FILE) for tensor in found.tensors)

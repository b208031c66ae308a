"""The files of models on this machine, and the memory that they need."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.engines.gguf.reader import read_gguf
from antiphon.models import files
from antiphon.models.files import estimate_memory, fetch_files, local_files
from tests.engines.gguf.test_reader import head

SHAPE = {
    "general.architecture": "llama",
    "llama.block_count": 10,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "llama.embedding_length": 512,
    "llama.context_length": 4096,
}
#: Two (keys, values), two bytes, layers, heads, head size.
TOKEN_BYTES = 2 * 2 * 10 * 2 * 64


def tiny_gguf(path: Path) -> Path:
    """Write a GGUF file without weights."""
    path.write_bytes(head(SHAPE, []))
    return path


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 4096 * 4),
        ({"context_size": 1000, "parallel": 2}, 2000),
        ({"context_size": 9000}, 16384),
    ],
)
async def test_estimate_is_weights_and_cache_of_a_gguf_file(
    tmp_path: Path, fields: dict[str, int], tokens: int
) -> None:
    file = tiny_gguf(tmp_path / "m.gguf")
    model = Model(source=str(file), **fields)  # type: ignore[arg-type]
    assert await estimate_memory(model, Settings()) == file.stat().st_size + TOKEN_BYTES * tokens


async def test_gguf_file_is_read_again_only_if_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each list of models contains the estimates, and a header may have megabytes."""
    read: list[Path] = []
    monkeypatch.setattr(files, "read_gguf", lambda path: read.append(path) or read_gguf(path))
    model = Model(source=str(file := tiny_gguf(tmp_path / "m.gguf")))
    first = await estimate_memory(model, Settings())
    assert await estimate_memory(model, Settings()) == first and read == [file]
    file.write_bytes(head({**SHAPE, "llama.block_count": 20}, []))
    os.utime(file, (1, 1))
    assert await estimate_memory(model, Settings()) > first and read == [file, file]


async def test_estimate_of_a_folder_reads_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "num_hidden_layers": 10,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "hidden_size": 512,
                "max_position_embeddings": 4096,
            }
        )
    )
    for number in (1, 2):
        (tmp_path / f"model-0000{number}-of-00002.safetensors").write_bytes(b"0" * 100)
    model = Model(source=str(tmp_path), engine="transformers", parallel=1)
    assert await estimate_memory(model, Settings()) == 200 + TOKEN_BYTES * 4096
    (tmp_path / "config.json").write_text("[]")
    assert await estimate_memory(model, Settings()) == 200, "no guess of the cache"


async def test_setting_replaces_the_estimate_and_unknown_is_nothing(tmp_path: Path) -> None:
    assert await estimate_memory(Model(engine="vllm", source="x", memory_mb=7), Settings()) == (
        7 * 2**20
    )
    settings = Settings(cache_dir=tmp_path)
    for model in (Model(source="owner/repo:Q4_0"), Model(source="Hi.", engine="scripted")):
        assert await estimate_memory(model, settings) == 0


async def test_split_and_downloaded_models_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "hf" / "owner" / "repo"
    folder.mkdir(parents=True)
    names = [f"m-Q4_0-0000{number}-of-00002.gguf" for number in (1, 2)]
    settings = Settings(cache_dir=tmp_path)
    model = Model(source="owner/repo:Q4_0")
    (folder / names[0]).write_bytes(b"1")
    assert local_files(model, settings) == (), "one of its files is missing"
    (folder / names[1]).write_bytes(b"2")
    assert [file.name for file in local_files(model, settings)] == names
    assert await fetch_files(model, settings, None) == folder / names[0]
    assert await fetch_files(Model(source="http://h", engine="responses"), settings, None) is None

"""The files of a model: download them, and estimate the memory that the loaded model needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from antiphon.backends.on_demand import ProgressCallback
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.engines.gguf.reader import read_gguf
from antiphon.errors import SetupError

from .download import COMPLETE_MARK, fetch_gguf, model_files, pull_folder, resolve
from .engine_choice import is_openvino_folder

_MIB = 2**20
#: Bytes per number in the key-value cache. By default, engines store 16-bit floats.
_CACHE_BYTES = 2
#: The context size in tokens that engines use if the settings do not set a size.
_DEFAULT_CONTEXT = 8192
_WEIGHTS = ("*.safetensors", "*.gguf", "*.bin")

#: Downloads the files of a source and returns the GGUF file or the folder.
_Fetch = Callable[[str, Path, ProgressCallback | None], Awaitable[Path]]

#: Name of an engine → function that downloads the files of a model. Other engines have no files on
#: this machine.
_FETCHERS: Mapping[str, _Fetch] = {
    "auto": fetch_gguf,
    "llama": fetch_gguf,
    "llama_embeddings": fetch_gguf,
    "llama_rerank": fetch_gguf,
    "openvino": fetch_gguf,
    "transformers": pull_folder,
    "vllm": pull_folder,
    "whisper": pull_folder,
}


def has_files(model: Model) -> bool:
    """Return whether the model's engine reads model files from the disk of this machine. It is
    false if another server or a Python package provides the model."""
    return model.engine in _FETCHERS


async def fetch_files(
    model: Model, settings: Settings, progress: ProgressCallback | None
) -> Path | None:
    """Download the model's files if they are not on this machine. Returns the GGUF file or the
    model's folder. Returns None if the model's engine reads no files. Raises ``SetupError``."""
    fetch = _FETCHERS.get(model.engine)
    if fetch is None:
        return None
    source = Path(model.source).expanduser()
    if source.is_dir() and (model.engine == "openvino" or is_openvino_folder(source)):
        return source
    return await fetch(model.source, settings.cache_dir, progress)


def local_files(model: Model, settings: Settings) -> tuple[Path, ...]:
    """Return the files of the model's weights on this machine. Returns an empty tuple if the
    weights must be downloaded first."""
    fetch = _FETCHERS.get(model.engine)
    source = Path(model.source).expanduser()
    if fetch is None:
        return ()
    if source.is_dir():
        return _weights(source)
    if fetch is pull_folder:
        folder = settings.cache_dir / "hf" / model.source.removeprefix("hf:")
        return _weights(folder) if folder.is_dir() else ()
    found = resolve(model.source, settings.cache_dir)
    return () if found is None else model_files(found)


def deletable_files(
    model: Model, settings: Settings, others: Iterable[Model] = ()
) -> tuple[Path, ...]:
    """Return the downloaded files of a model. Returns none if the model has no files in the setting
    ``cache_dir``, because other files belong to the operator, or if one of ``others`` uses the same
    files."""
    files = local_files(model, settings)
    cache = settings.cache_dir.resolve()
    if not all(file.resolve().is_relative_to(cache) for file in files):
        return ()
    if any(not set(files).isdisjoint(local_files(other, settings)) for other in others):
        return ()
    return files


def delete_files(files: Sequence[Path]) -> None:
    """Delete the downloaded files of a model."""
    for file in files:
        file.unlink(missing_ok=True)
    # Without its mark, a folder counts as not completely downloaded.
    (files[0].parent / COMPLETE_MARK).unlink(missing_ok=True)


async def estimate_memory(model: Model, settings: Settings) -> int:
    """Estimate how many bytes of memory the loaded model needs.

    If the model's setting ``memory_mb`` is set, it is the estimate. Otherwise the estimate is the
    size of the weights plus the size of the key-value cache. Returns 0 if the weights are not on
    this machine yet.
    """
    if model.memory_mb is not None:
        return model.memory_mb * _MIB
    return await asyncio.to_thread(_estimate, model, local_files(model, settings))


def _estimate(model: Model, files: tuple[Path, ...]) -> int:
    if not files:
        return 0
    weights = sum(file.stat().st_size for file in files)
    return weights + _cache_size(model, files[0])


def _cache_size(model: Model, first: Path) -> int:
    """Return the size in bytes of the key-value cache for all concurrent requests of a model.
    ``first``: first file of its weights. Returns 0 if the size is unknown."""
    try:
        if first.suffix == ".gguf":
            shape = _gguf_shape(first, first.stat().st_mtime_ns)
        else:
            shape = _config_shape(first.parent)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OSError, SetupError):
        return 0
    layers, heads, head_size, trained = shape
    context = min(model.context_size or _DEFAULT_CONTEXT, trained)
    return 2 * _CACHE_BYTES * layers * heads * head_size * context * model.parallel


@lru_cache(maxsize=64)
def _gguf_shape(file: Path, modified_ns: int) -> tuple[int, int, int, int]:
    """Return the number of layers, the number of key-value heads, the head size and the trained
    context size of a GGUF file. The result is kept until the file changes, because the header
    contains the whole vocabulary and clients often ask for the list of models."""
    header = read_gguf(file)

    def number(key: str) -> int:
        value = header.architecture_value(key)
        return max(value) if isinstance(value, list) else int(value)

    heads = number("attention.head_count")
    key_length = header.architecture_value("attention.key_length")
    return (
        number("block_count"),
        number("attention.head_count_kv"),
        int(key_length or number("embedding_length") // heads),
        number("context_length"),
    )


def _config_shape(folder: Path) -> tuple[int, int, int, int]:
    """Return the number of layers, the number of key-value heads, the head size and the trained
    context size from the ``config.json`` of a Hugging Face folder."""
    config: dict[str, Any] = msgspec.json.decode((folder / "config.json").read_bytes())
    config = {**config, **config.get("text_config", {})}
    heads = int(config["num_attention_heads"])
    return (
        int(config["num_hidden_layers"]),
        int(config.get("num_key_value_heads") or heads),
        int(config.get("head_dim") or config["hidden_size"] // heads),
        int(config["max_position_embeddings"]),
    )


def _weights(folder: Path) -> tuple[Path, ...]:
    """Return the weight files of a folder. If the folder has weights in several formats, return the
    files of the preferred format."""
    found = (tuple(sorted(folder.glob(pattern))) for pattern in _WEIGHTS)
    return next((files for files in found if files), ())

"""Where a model's file is, by what its settings call its source."""

from __future__ import annotations

from pathlib import Path

from antiphon.errors import SetupError

from .download import Progress, pull

__all__ = ["gguf_file"]


async def gguf_file(source: str, cache: Path, progress: Progress | None) -> Path:
    """The GGUF file a source stands for, fetched where it is not there. Raises ``SetupError``."""
    path = Path(source).expanduser()
    if path.is_dir():
        return _only_gguf(path)
    return await pull(str(path) if path.is_file() else source, cache, progress)


def _only_gguf(folder: Path) -> Path:
    # "mmproj" files are picture encoders; of a model in several files the first one stands for all.
    files = sorted(
        file
        for file in folder.glob("*.gguf")
        if "mmproj" not in file.name.lower() and _is_first(file.name)
    )
    if len(files) == 1:
        return files[0]
    if files:
        offered = ", ".join(file.name for file in files)
        raise SetupError(f"{folder} holds several models: name one of {offered}")
    if (folder / "config.json").is_file():
        raise SetupError(
            f"{folder} is a Hugging Face folder of weights: set engine = 'transformers', or convert"
            " the model to GGUF for the engine 'llama'"
        )
    raise SetupError(f"{folder} holds no GGUF file")


def _is_first(name: str) -> bool:
    numbered = name.rsplit("-of-", 1)
    return len(numbered) == 1 or numbered[0].endswith("-00001")

"""How far transformers is with reading weights: heard where it would draw a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["report_load_progress"]

_Progress = Callable[[str, int, int | None], None]
#: What the library calls the bar over its tensors.
_BAR_NAME = "Loading weights"


@contextmanager
def report_load_progress(folder: Path, progress: _Progress | None) -> Iterator[None]:
    """While this lasts, ``progress`` hears of the weights in ``folder``, by their bytes. The
    library counts tensors: each is taken for as large as any other."""
    if progress is None:
        yield
        return
    from transformers.utils import logging

    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))

    def bar(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("desc") != _BAR_NAME:
            return factory(*args, **kwargs)
        return _report_each(list(args[0]), size, progress)

    before = logging.set_tqdm_hook(bar)
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


def _report_each(tensors: Sequence[Any], size: int, progress: _Progress) -> Iterator[Any]:
    for number, tensor in enumerate(tensors):
        progress("weights", size * number // len(tensors), size)
        yield tensor
    progress("weights", size, size)

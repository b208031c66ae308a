"""Report the progress of loading weights. The progress comes from transformers' hook for progress
bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_Progress = Callable[[str, int, int | None], None]
#: The library's description of the progress bar over tensors.
_BAR_NAME = "Loading weights"


@contextmanager
def report_load_progress(folder: Path, progress: _Progress | None) -> Iterator[None]:
    """Context manager. Within the ``with`` block, transformers loads the weights in ``folder``, and
    ``progress`` is called with the number of bytes loaded so far.

    transformers counts loaded tensors and not bytes. So the number of bytes is an estimate: every
    tensor is assumed to have the same size.
    """
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

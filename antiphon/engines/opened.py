"""Images of a prompt as Pillow opens them, for engines that take them so. It knows no engine."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from antiphon.errors import SetupError, UnreadableImage
from antiphon.tokens import Image

__all__ = ["opened", "require"]


def require(extra: str) -> None:
    """``extra``: of ours, the one that brings Pillow. Raises ``SetupError``."""
    if importlib.util.find_spec("PIL") is None:
        raise SetupError(f'Pillow is not installed: pip install "antiphon[{extra}]"')


def opened(images: Sequence[Image]) -> list[Any]:
    """Each in RGB. Raises ``UnreadableImage`` for one that cannot be read."""
    import PIL.Image

    found = []
    for image in images:
        try:
            found.append(PIL.Image.open(BytesIO(image.content)).convert("RGB"))
        except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
            raise UnreadableImage(str(error), image.content) from None
    return found

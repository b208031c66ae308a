"""The tiny model that sees, and pictures of what it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from antiphon.engines.base import Engine
from antiphon.inference.tokens import EncodedImage, Prompt
from tests.attachments.samples import Color, drawn

FOLDER = Path(__file__).with_name("tiny-eyes")
GGUF = FOLDER / "tiny-eyes.gguf"
PROJECTOR = FOLDER / "mmproj-tiny-eyes.gguf"
#: A square of patches for each picture.
IMAGE_TOKENS = 16

_WHITE = (255, 255, 255)
_COLOURS: Mapping[str, Color] = {
    "red": (230, 20, 20),
    "green": (10, 150, 40),
    "blue": (20, 40, 230),
    "yellow": (250, 230, 30),
    "purple": (130, 20, 150),
    "orange": (255, 140, 0),
}
#: Whether a place is within, counted from the middle.
_SHAPES: Mapping[str, Callable[[float, float], bool]] = {
    "circle": lambda x, y: x * x + y * y < 0.09,
    "square": lambda x, y: max(abs(x), abs(y)) < 0.28,
    "triangle": lambda x, y: -0.3 < y < 0.25 and abs(x) < (y + 0.3) * 0.6,
    "cross": lambda x, y: min(abs(x), abs(y)) < 0.1 and max(abs(x), abs(y)) < 0.32,
}


def picture(colour: str, shape: str, width: int = 64, height: int = 64) -> bytes:
    """Return a PNG of a shape in one colour on a white background."""
    within, ink = _SHAPES[shape], _COLOURS[colour]
    side = min(width, height)

    def color(x: float, y: float) -> Color:
        inside = within((x - 0.5) * width / side, (y - 0.5) * height / side)
        return ink if inside else _WHITE

    return drawn(width, height, color)


def image_message(engine: Engine, *parts: str | bytes) -> Prompt:
    """Texts, and images with the template's word for one."""
    word = tuple(engine.tokenizer.encode("<image>", special=True))
    ids: list[int] = []
    images = []
    for part in parts:
        if isinstance(part, bytes):
            images.append(EncodedImage(part, "image/png", len(ids), word))
        ids += word if isinstance(part, bytes) else engine.tokenizer.encode(part, special=True)
    return Prompt(tuple(ids), tuple(images))

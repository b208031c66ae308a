"""Pictures written as files of a format, by Pillow."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from .base import Image, ImageRequest, image_of

__all__ = ["WRITTEN", "encoded", "rewritten"]

#: What can be written.
WRITTEN = ("png", "jpeg", "webp")


def encoded(picture: Any, wish: ImageRequest) -> Image:
    """A picture of Pillow's as it is wished for."""
    more: dict[str, Any] = {}
    if wish.output_format != "png":
        level = 100 if wish.output_compression is None else wish.output_compression
        more["quality"] = max(1, level) if wish.output_format == "jpeg" else level
    out = BytesIO()
    picture = picture.convert("RGB") if wish.output_format == "jpeg" else picture
    picture.save(out, wish.output_format.upper(), **more)
    image = image_of(out.getvalue())
    assert image is not None
    return image


def rewritten(image: Image, wish: ImageRequest) -> Image:
    """The image in the format that is wished for; as it is, where that cannot be had."""
    if image.format == wish.output_format or {image.format, wish.output_format} - {*WRITTEN}:
        return image
    try:
        from PIL import Image as pictures
    except ImportError:
        return image
    try:
        with pictures.open(BytesIO(image.content)) as picture:
            return encoded(picture, wish)
    except (OSError, ValueError, pictures.DecompressionBombError):
        return image

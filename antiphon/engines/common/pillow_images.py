"""Decode and convert images with Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from antiphon.errors import InvalidRequest, UnreadableImage
from antiphon.inference.tokens import EncodedImage
from antiphon.support.installation import needs_extra


def open_images(images: Sequence[EncodedImage]) -> list[Any]:
    """Decode the images to Pillow images in RGB. Raises ``UnreadableImage`` if an image cannot be
    decoded."""
    import PIL.Image

    opened = []
    for image in images:
        try:
            opened.append(PIL.Image.open(BytesIO(image.content)).convert("RGB"))
        except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
            raise UnreadableImage(str(error), image.content) from None
    return opened


def as_png(content: bytes, mime: str) -> bytes:
    """Convert an image to PNG.

    Raises ``UnreadableImage`` if the image cannot be decoded. Raises ``InvalidRequest`` if Pillow
    is not installed.
    """
    try:
        import PIL.Image
    except ImportError:
        raise InvalidRequest(
            needs_extra("This server does not read images of this format", "images"),
            param="input",
            code="invalid_image_format",
        ) from None
    out = BytesIO()
    try:
        with PIL.Image.open(BytesIO(content), formats=[mime.partition("/")[2]]) as opened:
            opened.convert("RGB").save(out, "PNG")
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError):
        raise UnreadableImage("it cannot be decoded", content) from None
    return out.getvalue()

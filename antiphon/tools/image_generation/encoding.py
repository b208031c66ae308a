"""Encode images in a file format, with the library Pillow."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from .base import Image, ImageRequest, read_image

#: The file formats in which images can be encoded.
WRITABLE_FORMATS = ("png", "jpeg", "webp")


def encode_picture(picture: Any, request: ImageRequest) -> Image:
    """Encode a Pillow image with the requested format and compression level."""
    more: dict[str, Any] = {}
    if request.output_format != "png":
        level = 100 if request.output_compression is None else request.output_compression
        more["quality"] = max(1, level) if request.output_format == "jpeg" else level
    out = BytesIO()
    picture = picture.convert("RGB") if request.output_format == "jpeg" else picture
    picture.save(out, request.output_format.upper(), **more)
    image = read_image(out.getvalue())
    assert image is not None
    return image


def convert_image(image: Image, request: ImageRequest) -> Image:
    """Return the image in the requested format. If the image cannot be converted, return it
    unchanged."""
    if image.format == request.output_format or {image.format, request.output_format} - {
        *WRITABLE_FORMATS
    }:
        return image
    try:
        from PIL import Image as pictures
    except ImportError:
        return image
    try:
        with pictures.open(BytesIO(image.content)) as picture:
            return encode_picture(picture, request)
    except (OSError, ValueError, pictures.DecompressionBombError):
        return image

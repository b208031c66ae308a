"""The contract of a maker of images: words and images in, images out. It knows no responses, no
conversation and no HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from antiphon.attachments.image_header import Broken, sniff

__all__ = [
    "MIME_TYPES",
    "GeneratedImage",
    "Image",
    "ImageGenerator",
    "ImageRequest",
    "ImageTask",
    "PartialImage",
    "UnsupportedOption",
    "read_image",
]

#: ``output_format`` → the type of such bytes.
MIME_TYPES: Mapping[str, str] = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "gif": "image/gif",
    "svg": "image/svg+xml",
}
_FORMATS = {mime: name for name, mime in MIME_TYPES.items()}


class Image(Struct, frozen=True):
    """An image as bytes, with what these tell of it. Sizes are pixels; those of an ``svg`` are 0:
    it has none."""

    content: bytes
    format: str
    width: int
    height: int

    @property
    def size(self) -> str | None:
        """As the API writes it."""
        return f"{self.width}x{self.height}" if self.width else None


def read_image(content: bytes) -> Image | None:
    """The image that these bytes are; None if they are none."""
    try:
        head = sniff(content)
    except Broken:
        return None
    if head is not None:
        return Image(content, _FORMATS[head.mime], head.width, head.height)
    begins = content[:512].lstrip(b"\xef\xbb\xbf \t\r\n")
    is_svg = begins.startswith(b"<svg") or (begins.startswith(b"<?xml") and b"<svg" in content)
    return Image(content, "svg", 0, 0) if is_svg else None


class ImageRequest(Struct, frozen=True, kw_only=True):
    """How images are to be, as a request's tool says it. None: as the maker sees fit. The fields
    have the names and values of the API, but ``auto``; ``model`` is what the maker calls it, and
    ``partial_images`` how many previews of an image are wanted."""

    model: str | None = None
    size: tuple[int, int] | None = None
    quality: str | None = None
    background: str | None = None
    output_format: str = "png"
    output_compression: int | None = None
    moderation: str | None = None
    input_fidelity: str | None = None
    complexity: str | None = None
    frame_count: int | None = None
    frame_duration_ms: int | None = None
    svg: Mapping[str, Any] | None = None
    partial_images: int = 0


class ImageTask(Struct, frozen=True, kw_only=True):
    """One image to make: of words alone, or of ``images`` too. What ``mask`` (a PNG as large as the
    first image) shows transparent is to change, the rest to stay."""

    prompt: str
    request: ImageRequest
    images: tuple[Image, ...] = ()
    mask: Image | None = None


class PartialImage(Struct, frozen=True):
    """A preview."""

    image: Image


class GeneratedImage(Struct, frozen=True, kw_only=True):
    """The image. What the maker tells of it: None, where it does not. ``used``: tokens, by the
    names of ``tool_usage.image_gen``."""

    image: Image
    quality: str | None = None
    background: str | None = None
    revised_prompt: str | None = None
    svg_usage: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] = {}


class UnsupportedOption(Exception):
    """What a request wants, the maker cannot do. ``field``: of ``Wish``."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ImageGenerator(Protocol):
    """One a server; its calls may come side by side."""

    @property
    def supports_edits(self) -> bool:
        """It takes images."""

    @property
    def supports_masks(self) -> bool:
        """It takes a mask."""

    def check(self, request: ImageRequest) -> None:
        """Raises ``Unable`` for what it would otherwise have to leave out."""

    def generate(self, task: ImageTask) -> AsyncGenerator[PartialImage | GeneratedImage, None]:
        """Previews, if they are wanted, and the image last. Closing the iterator stops the work, at
        the next step of it. Raises ``RunError``; its code is ``image_content_policy_violation``
        for what the maker will not show."""

    async def close(self) -> None: ...

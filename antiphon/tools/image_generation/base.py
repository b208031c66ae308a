"""The interface of image generators. A generator makes an image from a prompt and, for edits, input
images."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from antiphon.attachments.image_header import InvalidImage, sniff

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

#: ``output_format`` → MIME type.
MIME_TYPES: Mapping[str, str] = {
    "png": "image/png",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "gif": "image/gif",
    "svg": "image/svg+xml",
}
_FORMATS = {mime: name for name, mime in MIME_TYPES.items()}


class Image(Struct, frozen=True):
    """An encoded image. ``width`` and ``height`` are in pixels. Both are 0 for an SVG."""

    content: bytes
    format: str
    width: int
    height: int

    @property
    def size(self) -> str | None:
        """Width and height in the form of the API (``WIDTHxHEIGHT``). None for an SVG."""
        return f"{self.width}x{self.height}" if self.width else None


def read_image(content: bytes) -> Image | None:
    """Detect the format and size of the image in ``content``. Return None if ``content`` is no
    image in a known format."""
    try:
        head = sniff(content)
    except InvalidImage:
        return None
    if head is not None:
        return Image(content, _FORMATS[head.mime], head.width, head.height)
    begins = content[:512].lstrip(b"\xef\xbb\xbf \t\r\n")
    is_svg = begins.startswith(b"<svg") or (begins.startswith(b"<?xml") and b"<svg" in content)
    return Image(content, "svg", 0, 0) if is_svg else None


class ImageRequest(Struct, frozen=True, kw_only=True):
    """The options of the ``image_generation`` tool in a request. If an option is None, the
    generator uses its default.

    The fields have the names and values of the API, except that ``auto`` becomes None. ``model`` is
    the name that the generator uses for the model. ``partial_images`` is the number of previews.
    """

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
    """A task for an image generator: it must make one image from the prompt. If there are input
    ``images``, it must use them too.

    ``mask`` is a PNG with the size of the first image. The generator changes only the areas of this
    image where the mask is transparent. ``idempotency_key`` identifies the task. If the same task
    runs again after an interruption, the key is the same.
    """

    prompt: str
    request: ImageRequest
    images: tuple[Image, ...] = ()
    mask: Image | None = None
    idempotency_key: str = ""


class PartialImage(Struct, frozen=True):
    """A preview of an image that is being generated."""

    image: Image


class GeneratedImage(Struct, frozen=True, kw_only=True):
    """The final image. A field is None if the generator does not report its value.

    ``usage``: token counts, with the field names of ``tool_usage.image_gen``.
    """

    image: Image
    quality: str | None = None
    background: str | None = None
    revised_prompt: str | None = None
    svg_usage: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] = {}


class UnsupportedOption(Exception):
    """Raised for an option that the generator does not support. ``field``: the name of the option
    in ``ImageRequest``."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ImageGenerator(Protocol):
    """Generates images. A server has one image generator. Its calls may run concurrently."""

    @property
    def supports_edits(self) -> bool:
        """Whether the generator accepts input images."""

    @property
    def supports_masks(self) -> bool:
        """Whether the generator accepts a mask."""

    def check(self, request: ImageRequest) -> None:
        """Raise ``UnsupportedOption`` if the generator would ignore an option of the request."""

    def generate(self, task: ImageTask) -> AsyncGenerator[PartialImage | GeneratedImage, None]:
        """Yield the requested previews, and the final image last.

        Closing the iterator stops the generation. A local model stops at its next denoising step.
        Raises ``RunError``. If the generator's moderation rejects the image, the code of the error
        is ``image_content_policy_violation``.
        """

    async def close(self) -> None: ...

"""Read format and size of an image from its first bytes, without decoding it.

Supports PNG, JPEG, GIF and WebP, the four image formats of OpenAI's API. The file name and the
declared media type are ignored.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping

from msgspec import Struct

#: Maximum number of JPEG segments before the frame header. Cameras and editors write a few dozen.
_MAX_JPEG_SEGMENTS = 10_000
_JPEG_FILL = re.compile(rb"\xff+(?=\xff)")


class ImageHeader(Struct, frozen=True):
    """The media type of an image, and its width and height in pixels."""

    mime: str
    width: int
    height: int


class InvalidImage(ValueError):
    """Error for a content that begins like an image of a known format but is not valid."""


def sniff(content: bytes) -> ImageHeader | None:
    """Read the format and the size of an image. Returns None for an unknown format. Raises
    ``InvalidImage``."""
    for mime, (begins, size) in _FORMATS.items():
        if begins(content):
            try:
                width, height = size(content)
            except (struct.error, IndexError):
                raise InvalidImage("it ends before the size") from None
            if not width or not height:
                raise InvalidImage("it has no size")
            return ImageHeader(mime, width, height)
    return None


def _png(content: bytes) -> tuple[int, int]:
    if content[12:16] != b"IHDR":
        raise InvalidImage("it has no header")
    width, height = struct.unpack_from(">II", content, 16)
    return width, height


def _gif(content: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", content, 6)
    return width, height


def _jpeg(content: bytes) -> tuple[int, int]:
    """Return width and height of a JPEG. They are in the frame header, so all earlier segments are
    skipped (ITU T.81, B.2.2)."""
    at = 2
    for _ in range(_MAX_JPEG_SEGMENTS):
        if content[at] != 0xFF:
            raise InvalidImage("its segments are damaged")
        if (fill := _JPEG_FILL.match(content, at)) is not None:
            at = fill.end()
        marker = content[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", content, at + 5)
            return width, height
        if marker in (0xD9, 0xDA):
            raise InvalidImage("it has no frame")
        at += 2
        if not (marker == 0x01 or 0xD0 <= marker <= 0xD8):
            (length,) = struct.unpack_from(">H", content, at)
            at += max(2, length)
    raise InvalidImage("it has no frame")


def _webp(content: bytes) -> tuple[int, int]:
    kind = content[12:16]
    if kind == b"VP8X":
        return _uint24(content, 24) + 1, _uint24(content, 27) + 1
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", content, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", content, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise InvalidImage("it has no header")


def _uint24(content: bytes, at: int) -> int:
    """Read the 24-bit little-endian integer at position ``at``. Raises ``IndexError`` if the
    content is too short."""
    if len(content) < at + 3:
        raise IndexError
    return int.from_bytes(content[at : at + 3], "little")


#: Media type → function that recognizes the first bytes of the format, and function that returns
#: width and height.
_FORMATS: Mapping[str, tuple[Callable[[bytes], bool], Callable[[bytes], tuple[int, int]]]] = {
    "image/png": (lambda content: content.startswith(b"\x89PNG\r\n\x1a\n"), _png),
    "image/jpeg": (lambda content: content.startswith(b"\xff\xd8\xff"), _jpeg),
    "image/gif": (lambda content: content.startswith((b"GIF87a", b"GIF89a")), _gif),
    "image/webp": (lambda content: content[:4] == b"RIFF" and content[8:12] == b"WEBP", _webp),
}
MIMES = tuple(_FORMATS)

"""What an image is, from its first bytes: format and size. Nothing is decoded.

Four formats, those of OpenAI's API. It trusts neither names nor declared types.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from msgspec import Struct

__all__ = ["MIMES", "Broken", "ImageHead", "sniff"]


class ImageHead(Struct, frozen=True):
    """A format, and the size in pixels."""

    mime: str
    width: int
    height: int


class Broken(ValueError):
    """It begins like an image and is none."""


def sniff(content: bytes) -> ImageHead | None:
    """What ``content`` is; None if it is no image we know. Raises ``Broken``."""
    for mime, (begins, size) in _FORMATS.items():
        if begins(content):
            try:
                width, height = size(content)
            except (struct.error, IndexError):
                raise Broken("it ends before its size is told") from None
            if not width or not height:
                raise Broken("it has no size")
            return ImageHead(mime, width, height)
    return None


def _png(content: bytes) -> tuple[int, int]:
    if content[12:16] != b"IHDR":
        raise Broken("it has no header")
    width, height = struct.unpack_from(">II", content, 16)
    return width, height


def _gif(content: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", content, 6)
    return width, height


def _jpeg(content: bytes) -> tuple[int, int]:
    """Segment by segment to the frame header (ITU T.81, B.2.2)."""
    at = 2
    while True:
        if content[at] != 0xFF:
            raise Broken("its segments are torn")
        marker = content[at + 1]
        if marker == 0xFF:  # fill
            at += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", content, at + 5)
            return width, height
        if marker in (0xD9, 0xDA):
            raise Broken("it has no frame")
        at += 2
        if not (marker == 0x01 or 0xD0 <= marker <= 0xD8):
            (length,) = struct.unpack_from(">H", content, at)
            at += max(2, length)


def _webp(content: bytes) -> tuple[int, int]:
    kind = content[12:16]
    if kind == b"VP8X":
        return _little(content, 24) + 1, _little(content, 27) + 1
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", content, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", content, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise Broken("it has no header")


def _little(content: bytes, at: int) -> int:
    """Three bytes, the least first."""
    if len(content) < at + 3:
        raise IndexError
    return int.from_bytes(content[at : at + 3], "little")


#: MIME type → how its bytes begin, and where its size is told.
_FORMATS: Mapping[str, tuple[Callable[[bytes], bool], Callable[[bytes], tuple[int, int]]]] = {
    "image/png": (lambda content: content.startswith(b"\x89PNG\r\n\x1a\n"), _png),
    "image/jpeg": (lambda content: content.startswith(b"\xff\xd8\xff"), _jpeg),
    "image/gif": (lambda content: content.startswith((b"GIF87a", b"GIF89a")), _gif),
    "image/webp": (lambda content: content[:4] == b"RIFF" and content[8:12] == b"WEBP", _webp),
}
MIMES = tuple(_FORMATS)

"""Image format and size from the first bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.attachments.image_header import MIMES, ImageHeader, InvalidImage, sniff

from .samples import GIF, JPEG, WEBPS, png

IMAGES = (png(), GIF, JPEG, *WEBPS)


@pytest.mark.parametrize(
    ("content", "head"),
    [
        (png(2, 3), ImageHeader("image/png", 2, 3)),
        (GIF, ImageHeader("image/gif", 4, 5)),
        (JPEG, ImageHeader("image/jpeg", 6, 7)),
        *((webp, ImageHeader("image/webp", 8, 9)) for webp in WEBPS),
    ],
)
def test_size_is_read_in_all_four_formats(content: bytes, head: ImageHeader) -> None:
    assert sniff(content) == head


@pytest.mark.parametrize("content", [b"", b"hello", b"BM6\0\0\0", b"<svg/>", b"\x89PN", b"RIFF"])
def test_unknown_format_returns_none(content: bytes) -> None:
    assert sniff(content) is None


@pytest.mark.parametrize("content", [png(0, 3), png()[:20], GIF[:7], JPEG[:9], b"\xff\xd8\xff\xd9"])
def test_truncated_image_is_invalid(content: bytes) -> None:
    with pytest.raises(InvalidImage):
        sniff(content)


@given(st.sampled_from(IMAGES), st.integers(0, 60), st.binary(max_size=40))
def test_any_content_raises_at_most_invalid_image(whole: bytes, at: int, rest: bytes) -> None:
    try:
        head = sniff(whole[:at] + rest)
    except InvalidImage:
        return
    assert head is None or (head.mime in MIMES and head.width > 0 and head.height > 0)

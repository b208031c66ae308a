"""What an image is, from its first bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.attachments.image_header import MIMES, Broken, ImageHead, sniff

from .samples import GIF, JPEG, WEBPS, png

WHOLE = (png(), GIF, JPEG, *WEBPS)


@pytest.mark.parametrize(
    ("content", "head"),
    [
        (png(2, 3), ImageHead("image/png", 2, 3)),
        (GIF, ImageHead("image/gif", 4, 5)),
        (JPEG, ImageHead("image/jpeg", 6, 7)),
        *((webp, ImageHead("image/webp", 8, 9)) for webp in WEBPS),
    ],
)
def test_the_four_formats_tell_their_size(content: bytes, head: ImageHead) -> None:
    assert sniff(content) == head


@pytest.mark.parametrize("content", [b"", b"hello", b"BM6\0\0\0", b"<svg/>", b"\x89PN", b"RIFF"])
def test_anything_else_is_none(content: bytes) -> None:
    assert sniff(content) is None


@pytest.mark.parametrize("content", [png(0, 3), png()[:20], GIF[:7], JPEG[:9], b"\xff\xd8\xff\xd9"])
def test_what_only_begins_like_one_is_broken(content: bytes) -> None:
    with pytest.raises(Broken):
        sniff(content)


@given(st.sampled_from(WHOLE), st.integers(0, 60), st.binary(max_size=40))
def test_whatever_follows_it_never_fails_otherwise(whole: bytes, at: int, rest: bytes) -> None:
    try:
        head = sniff(whole[:at] + rest)
    except Broken:
        return
    assert head is None or (head.mime in MIMES and head.width > 0 and head.height > 0)

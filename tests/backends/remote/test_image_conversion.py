"""Images in formats that an upstream cannot read."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace

from antiphon.attachments.data_urls import decode_inline
from antiphon.backends.remote.image_conversion import convert_images
from antiphon.errors import UnreadableImage
from antiphon.inference.conversation import Conversation
from antiphon.wire import items as it
from tests.attachments.samples import data_url, png

UNREAD = frozenset({"image/webp"})
PNG = it.InputImage(image_url=data_url(png()))


def webp(detail: str = "low") -> it.InputImage:
    pillow = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    pillow.new("RGB", (3, 5), "red").save(out, "WEBP", lossless=True)
    return it.InputImage(image_url=data_url(out.getvalue(), "image/webp"), detail=detail)


async def test_unreadable_images_are_converted_in_every_item() -> None:
    shot = it.ComputerScreenshot(image_url=webp().image_url)
    items = (
        it.Message(id="m", role="user", content=(it.InputText(text="Look:"), webp(), PNG)),
        it.FunctionCallOutput(call_id="a", output=(webp(),)),
        it.FunctionCallOutput(call_id="b", output="data:image/webp;base64,AAAA"),
        it.ComputerCallOutput(call_id="c", output=shot),
        it.FunctionCall(id="f", call_id="d", name="look", arguments="{}"),
    )
    found = await convert_images(Conversation(items), UNREAD)
    assert await convert_images(found, UNREAD) is found
    message, output, text, screen, call = found.items
    _, picture, same = message.content
    assert same is PNG and picture.detail == "low"
    for part in (picture, output.output[0], screen.output):
        mime, content = decode_inline(part.image_url)
        assert (mime, content[:8]) == ("image/png", b"\x89PNG\r\n\x1a\n")
    assert (text, call) == (items[2], items[4])


async def test_readable_formats_are_unchanged() -> None:
    conversation = Conversation((it.Message(id="m", role="user", content=(webp(), PNG)),))
    assert await convert_images(conversation, ()) is conversation
    other = replace(conversation, items=(it.Message(id="m", role="user", content=(PNG,)),))
    assert await convert_images(other, UNREAD) is other


async def test_undecodable_image_is_named() -> None:
    pytest.importorskip("PIL")
    torn = it.InputImage(image_url=data_url(b"RIFF1234WEBPVP8 ", "image/webp"))
    with pytest.raises(UnreadableImage) as raised:
        await convert_images(
            Conversation((it.Message(id="m", role="user", content=(torn,)),)), UNREAD
        )
    assert raised.value.content == b"RIFF1234WEBPVP8 "

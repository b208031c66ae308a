"""Images in a prompt: each leaves a mark in the text until the text becomes token ids.

Also the notes that replace images for models without vision.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Literal

from msgspec import UNSET, Struct

from antiphon.errors import InvalidRequest
from antiphon.wire import items as it

__all__ = [
    "ImageMarkup",
    "PromptImage",
    "PromptImages",
    "Unreadable",
    "omission_note",
    "unused_characters",
]

#: What happens to images and other parts that a text model cannot read: a note replaces them, or
#: the request is rejected.
Unreadable = Literal["note", "refuse"]

#: The private-use characters that can be marks.
_FIRST, _LAST = 0x10F000, 0x10FF00


class PromptImage(Struct, frozen=True):
    """An image from a data URL."""

    content: bytes
    mime: str


class ImageMarkup(Struct, frozen=True):
    """The text a template writes for an image, and before and after it among the parts of a
    message.
    """

    text: str
    before: str = ""
    after: str = ""


class PromptImages:
    """The images of one rendering, in the order of their marks in the text.

    ``markup``: how the model's template shows an image. The text around an image is taken from it.
    """

    def __init__(self, mark: str, markup: ImageMarkup | None = None) -> None:
        self.mark = mark
        self.markup = markup or ImageMarkup(mark)
        self.images: list[PromptImage] = []

    def add(self, part: it.InputImage | it.ComputerScreenshot) -> str | None:
        """Add an image and return its mark; None if the part contains no image data."""
        url = part.image_url
        if url is UNSET or not url.startswith("data:image/"):
            return None
        head, _, body = url.partition(";base64,")
        try:
            content = base64.b64decode(body, validate=True)
        except binascii.Error:
            return None
        if not content:
            return None
        self.images.append(PromptImage(content, head.removeprefix("data:")))
        return self.mark


def unused_characters(text: str) -> Iterator[str]:
    """Yield private-use characters that ``text`` does not contain, for use as marks."""
    return (chr(code) for code in range(_FIRST, _LAST) if chr(code) not in text)


def omission_note(what: str, path: str, unreadable: Unreadable) -> str:
    """Return the note that replaces content a text model cannot read.

    The model can mention it, and a conversation that once had an image stays usable. Raises
    ``InvalidRequest`` if ``unreadable`` is ``refuse``. ``path``: the path of the part.
    """
    if unreadable == "refuse":
        raise InvalidRequest(
            f"Invalid value: this model reads text only and cannot process the {what}.",
            param=path,
            code="invalid_value",
        )
    return f"[{what} omitted: this model reads text only]"

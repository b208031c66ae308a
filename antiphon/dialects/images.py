"""Images in the text of a prompt: each leaves a mark that nobody wrote, until the text becomes ids.

And what takes the place of what a model cannot see. It knows parts, no templates.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Literal

from msgspec import UNSET, Struct

from antiphon.errors import InvalidRequest
from antiphon.wire import items as it

__all__ = ["Picture", "Place", "PromptImages", "Unreadable", "marks", "omitted"]

#: What becomes of images and other parts that a text model cannot read: a note takes their place,
#: or the request is refused.
Unreadable = Literal["note", "refuse"]

#: Characters of the last plane that could be a mark. A text that holds all of them has none left.
_FIRST, _LAST = 0x10F000, 0x10FF00


class Picture(Struct, frozen=True):
    """An image as it stands in a data URL."""

    content: bytes
    mime: str


class Place(Struct, frozen=True):
    """What a template writes for an image, and around it among the parts of a message."""

    word: str
    before: str = ""
    after: str = ""


class PromptImages:
    """The images of one rendering, in the order in which the text has their marks. ``place``: how
    the model's template shows one, if it does; what stands around an image is taken from it."""

    def __init__(self, mark: str, place: Place | None = None) -> None:
        self.mark = mark
        self.place = place or Place(mark)
        self.found: list[Picture] = []

    def take(self, part: it.InputImage | it.ComputerScreenshot) -> str | None:
        """The mark of an image that is there; None for one that is only named."""
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
        self.found.append(Picture(content, head.removeprefix("data:")))
        return self.mark


def marks(text: str) -> Iterator[str]:
    """Characters that ``text`` does not hold, to be marks."""
    return (chr(code) for code in range(_FIRST, _LAST) if chr(code) not in text)


def omitted(what: str, path: str, unreadable: Unreadable) -> str:
    """What a text model cannot read leaves a note in its place: the model can say so, and a
    conversation that once had an image stays usable. Raises ``InvalidRequest`` where it is to be
    refused; ``path``: where it stands."""
    if unreadable == "refuse":
        raise InvalidRequest(
            f"Invalid value: this model reads text only and cannot be given the {what}.",
            param=path,
            code="invalid_value",
        )
    return f"[{what} omitted: this model reads text only]"

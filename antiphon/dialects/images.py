"""Images in a prompt. In the prompt's text, one special character (the mark) stands for each image
until the text is encoded as token ids.

The module also writes the notes that replace images for models without vision.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Literal

from msgspec import UNSET, Struct

from antiphon.errors import InvalidRequest
from antiphon.wire import items as it

#: What happens to images and other parts that a model cannot read: a note replaces them, or the
#: request is rejected.
Unreadable = Literal["describe", "refuse"]

#: The private-use characters that can be marks.
_FIRST, _LAST = 0x10F000, 0x10FF00


class PromptImage(Struct, frozen=True):
    """An image from a data URL: its bytes and its MIME type."""

    content: bytes
    mime: str


class ImageMarkup(Struct, frozen=True):
    """The texts that a chat template writes for an image.

    ``text``: the text for the image itself. ``before``, ``after``: the texts that separate the
    image from the part of the message before it and from the part after it.
    """

    text: str
    before: str = ""
    after: str = ""


class PromptImages:
    """The images of one rendered prompt, in the order in which they stand in the text.

    ``mark``: the character that stands for each image in the text. ``markup``: the texts that the
    model's template writes for an image, before it and after it.
    """

    def __init__(self, mark: str, markup: ImageMarkup | None = None) -> None:
        self.mark = mark
        self.markup = markup or ImageMarkup(mark)
        self.images: list[PromptImage] = []

    def add(self, part: it.InputImage | it.ComputerScreenshot) -> str | None:
        """Add an image. Returns the mark, the character that stands for the image in the prompt's
        text. Returns None and adds nothing if ``part`` contains no image data."""
        url = part.image_url
        if url is UNSET or not url.startswith("data:image/"):
            return None
        head, _, body = url.partition(";base64,")
        try:
            content = base64.b64decode(body, validate=True)
        except ValueError:
            return None
        if not content:
            return None
        self.images.append(PromptImage(content, head.removeprefix("data:")))
        return self.mark


def unused_characters(text: str) -> Iterator[str]:
    """Yield Unicode private-use characters that ``text`` does not contain. The caller
    chooses one of these characters as the mark, which stands for every image in the text."""
    return (chr(code) for code in range(_FIRST, _LAST) if chr(code) not in text)


def omission_note(what: str, path: str, unreadable: Unreadable) -> str:
    """Return the note that replaces content that a model cannot read, such as an image.
    ``what``: the kind of content. ``path``: the path of the content in the request.

    With the note, the model can tell the user about the omitted content. Raises ``InvalidRequest``
    if ``unreadable`` is ``refuse``.
    """
    if unreadable == "refuse":
        raise InvalidRequest(
            f"Invalid value: this model cannot read the {what}. Send text instead, or use a model "
            "whose 'input_modalities' in GET /v1/models allow it. With the model's setting "
            "'unsupported_modality = \"describe\"', a note replaces such parts.",
            param=path,
            code="invalid_value",
        )
    return f"[{what} omitted: this model cannot read it]"

"""Prompts with images, as llama.cpp takes them: a text with a marker for each, and their bytes.

Text is tokenized again there, control tokens spelled out. What a user wrote that looks like one, or
like the marker, is parted by an invisible character, so that it stays text; so are words without
end, which llama.cpp would not survive (``unbroken``). Sans-IO.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from antiphon.engines.common.pillow_images import as_png
from antiphon.errors import InvalidRequest
from antiphon.tokens import Image, Prompt, Tokenizer

from .long_words import split_long_words

__all__ = [
    "UNSUPPORTED_FORMATS",
    "PromptDetokenizer",
    "check_image_positions",
    "measuring_prompt",
    "readable_content",
]

#: Formats of images that llama.cpp cannot read.
UNSUPPORTED_FORMATS = frozenset({"image/webp"})

#: WORD JOINER: no width, no break.
_SEPARATOR = "\u2060"
#: HANGUL CHOSEONG FILLER: not to be seen either, but a letter, which parts signs.
_LETTER_SEPARATOR = "\u115f"


class PromptDetokenizer:
    """Ids as text for one tokenizer. ``marker``: what stands for an image. ``bos``: the id that
    llama.cpp puts before every text, if it does."""

    def __init__(self, tokenizer: Tokenizer, marker: str = "", bos: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._marker = marker
        self._bos = bos
        self._literals = {id: literal for literal, id in tokenizer.special.items()}
        literals = filter(None, (*tokenizer.special, marker))
        longest_first = sorted(literals, key=len, reverse=True)
        self._forbidden = re.compile("|".join(map(re.escape, longest_first)))

    def request_prompt(self, prompt: Prompt) -> dict[str, Any]:
        """As a request carries it. Raises ``InvalidRequest`` for an image that cannot be read."""
        content = [base64.b64encode(readable_content(image)).decode() for image in prompt.images]
        return {"prompt_string": self.text(prompt), "multimodal_data": content}

    def text(self, prompt: Prompt) -> str:
        """The prompt's text, with a marker where each image stands."""
        start = 1 if self._bos is not None and prompt.ids[:1] == (self._bos,) else 0
        parts: list[str] = []
        for image in prompt.images:
            at = max(start, image.at)
            parts += (*self._texts(prompt.ids[start:at]), self._marker)
            start = at
        return "".join((*parts, *self._texts(prompt.ids[start:])))

    def escaped_ids(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """The ids, but for text that has to be parted: for who spells them again."""
        escaped: list[int] = []
        for control, run in self._runs(ids):
            text, found = ("", 0) if control else self._escape(run)
            escaped += self._tokenizer.encode(text, special=False) if found else run
        return tuple(escaped)

    def _texts(self, ids: tuple[int, ...]) -> Iterator[str]:
        for control, run in self._runs(ids):
            yield self._literals[run[0]] if control else self._escape(run)[0]

    def _runs(self, ids: tuple[int, ...]) -> Iterator[tuple[bool, tuple[int, ...]]]:
        """Each control token, and each stretch of text between two."""
        start = 0
        for at, id in enumerate(ids):
            if id in self._literals:
                yield False, ids[start:at]
                yield True, (id,)
                start = at + 1
        yield False, ids[start:]

    def _escape(self, plain: tuple[int, ...]) -> tuple[str, int]:
        """The text, and how often something had to be parted."""
        text = b"".join(map(self._tokenizer.piece, plain)).decode("utf-8", "replace")
        text, found = self._forbidden.subn(lambda at: f"{at[0][0]}{_SEPARATOR}{at[0][1:]}", text)
        first, *rest = split_long_words(text, {})
        return first + "".join(_separator_before(each) + each for each in rest), found + len(rest)


def _separator_before(text: str) -> str:
    """What parts a text from another of its kind before it."""
    return _SEPARATOR if text[0].isalnum() or text[0].isspace() else _LETTER_SEPARATOR


def measuring_prompt(image: Image, tokenizer: Tokenizer, bos: int | None) -> Prompt:
    """A prompt to measure the image with. Text stands on both sides: llama.cpp cannot go on behind
    an image. ``bos``: see ``Speller``."""
    around = tokenizer.encode("a", special=False)
    before = (*around,) if bos is None else (bos, *around)
    return Prompt((*before, *around), (replace(image, at=len(before)),))


def check_image_positions(prompt: Prompt) -> None:
    """Raises ``InvalidRequest`` where nothing comes behind the last image: that would end
    llama.cpp's process."""
    if prompt.images and prompt.images[-1].at >= len(prompt.ids):
        raise InvalidRequest("An image cannot be the end of a prompt.", param="input")


def readable_content(image: Image) -> bytes:
    """The image as llama.cpp can read it. Raises ``InvalidRequest``."""
    return as_png(image.content, image.mime) if image.mime in UNSUPPORTED_FORMATS else image.content

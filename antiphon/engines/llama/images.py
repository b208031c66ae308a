"""Prompts with images in llama.cpp's format: a text with image markers, and the images' bytes.

llama.cpp tokenizes the text again and parses control tokens in the text. User text may look like a
control token or a marker. An invisible separator is inserted into such user text, so it stays plain
text. A very long word would crash llama.cpp, so separators also split very long words into shorter
ones (``long_words``). Sans-IO.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from antiphon.engines.common.pillow_images import as_png
from antiphon.errors import InvalidRequest
from antiphon.inference.tokens import EncodedImage, Prompt, Tokenizer

from .long_words import split_long_words

#: Image formats that llama.cpp cannot read.
UNSUPPORTED_FORMATS = frozenset({"image/webp"})

#: WORD JOINER: no width, no break.
_SEPARATOR = "\u2060"
#: HANGUL CHOSEONG FILLER: invisible too, but a letter, so it separates punctuation.
_LETTER_SEPARATOR = "\u115f"


class PromptDetokenizer:
    """Converts the ids of prompts to text, which llama.cpp tokenizes again. User text that looks
    like a control token stays plain text.

    ``marker``: the text that stands for an image. ``bos``: the id that llama.cpp adds before every
    text, or None if it adds no id.
    """

    def __init__(self, tokenizer: Tokenizer, marker: str = "", bos: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._marker = marker
        self._bos = bos
        self._literals = {id: literal for literal, id in tokenizer.special.items()}
        literals = filter(None, (*tokenizer.special, marker))
        longest_first = sorted(literals, key=len, reverse=True)
        self._forbidden = re.compile("|".join(map(re.escape, longest_first)))

    def request_prompt(self, prompt: Prompt) -> dict[str, Any]:
        """Return the JSON value of the field ``prompt`` in a request to llama.cpp. Raises
        ``InvalidRequest`` for an unreadable image."""
        content = [base64.b64encode(readable_content(image)).decode() for image in prompt.images]
        return {"prompt_string": self.text(prompt), "multimodal_data": content}

    def text(self, prompt: Prompt) -> str:
        """Return the prompt's text with a marker at the position of each image."""
        start = 1 if self._bos is not None and prompt.ids[:1] == (self._bos,) else 0
        parts: list[str] = []
        for image in prompt.images:
            at = max(start, image.position)
            parts += (*self._texts(prompt.ids[start:at]), self._marker)
            start = at
        return "".join((*parts, *self._texts(prompt.ids[start:])))

    def escaped_ids(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return a copy of the prompt's token ids. If user text looks like a control token, a
        separator is inserted in it.

        This is needed for a server that converts the ids back to text and then searches the text
        for control tokens.
        """
        escaped: list[int] = []
        for control, run in self._runs(ids):
            text, found = ("", 0) if control else self._escape(run)
            escaped += self._tokenizer.encode(text, special=False) if found else run
        return tuple(escaped)

    def _texts(self, ids: tuple[int, ...]) -> Iterator[str]:
        for control, run in self._runs(ids):
            yield self._literals[run[0]] if control else self._escape(run)[0]

    def _runs(self, ids: tuple[int, ...]) -> Iterator[tuple[bool, tuple[int, ...]]]:
        """Split the ids into control tokens and sequences of text tokens. For each part, yield
        whether the part is a control token, and the ids of the part."""
        start = 0
        for at, id in enumerate(ids):
            if id in self._literals:
                yield False, ids[start:at]
                yield True, (id,)
                start = at + 1
        yield False, ids[start:]

    def _escape(self, plain: tuple[int, ...]) -> tuple[str, int]:
        """Return the text of the text tokens ``plain``, and the number of separators inserted in
        it. A separator breaks a text that looks like a control token, or a very long word."""
        text = b"".join(map(self._tokenizer.piece, plain)).decode("utf-8", "replace")
        text, found = self._forbidden.subn(lambda at: f"{at[0][0]}{_SEPARATOR}{at[0][1:]}", text)
        first, *rest = split_long_words(text, {})
        return first + "".join(_separator_before(each) + each for each in rest), found + len(rest)


def _separator_before(text: str) -> str:
    """Return the separator to insert before ``text``, which is the rest of a very long word. To
    split the word, the separator must be of another character class than the word."""
    return _SEPARATOR if text[0].isalnum() or text[0].isspace() else _LETTER_SEPARATOR


def measuring_prompt(image: EncodedImage, tokenizer: Tokenizer, bos: int | None) -> Prompt:
    """Return a prompt with this image, for a request that counts the image's tokens.

    The prompt has text before and after the image, because llama.cpp cannot continue directly after
    an image. ``bos``: see ``PromptDetokenizer``.
    """
    text = tokenizer.encode("a", special=False)
    before = (*text,) if bos is None else (bos, *text)
    return Prompt((*before, *text), (replace(image, position=len(before)),))


def check_image_positions(prompt: Prompt) -> None:
    """Raise ``InvalidRequest`` if the prompt ends with an image. llama.cpp would end its whole
    process on such a prompt."""
    if prompt.images and prompt.images[-1].position >= len(prompt.ids):
        raise InvalidRequest("An image cannot be the end of a prompt.", param="input")


def readable_content(image: EncodedImage) -> bytes:
    """Return the image's bytes in a format that llama.cpp can read. Raises ``InvalidRequest`` if
    the image cannot be converted."""
    return as_png(image.content, image.mime) if image.mime in UNSUPPORTED_FORMATS else image.content

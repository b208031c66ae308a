"""A cache that stores how many tokens each image takes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import sha256

from antiphon.inference.tokens import EncodedImage

_MAX_IMAGES = 4096


class ImageTokenCache:
    """Maps the hash of an image's content to the number of tokens of the image.

    When the cache is full, the oldest entry is removed.
    """

    def __init__(self) -> None:
        self._tokens: OrderedDict[bytes, int] = OrderedDict()

    async def get_or_measure(
        self, image: EncodedImage, measure: Callable[[EncodedImage], Awaitable[int]]
    ) -> int:
        """Return the number of tokens of the image. If the number is not cached, call ``measure``
        and store its result. Raises the exceptions of ``measure``."""
        key = sha256(image.content).digest()
        tokens = self._tokens.get(key)
        if tokens is None:
            tokens = self._tokens[key] = await measure(image)
            if len(self._tokens) > _MAX_IMAGES:
                self._tokens.popitem(last=False)
        return tokens

"""How many tokens images take, remembered: whoever can measure one is asked once. It knows no
engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import sha256

from antiphon.tokens import Image

__all__ = ["ImageTokenCache"]

_MAX_IMAGES = 4096


class ImageTokenCache:
    """By what is in the image; those measured first are forgotten first."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[bytes, int] = OrderedDict()

    async def get_or_measure(self, image: Image, measure: Callable[[Image], Awaitable[int]]) -> int:
        """The tokens of the image; raises what ``measure`` does."""
        known = self.get(image)
        return self.put(image, await measure(image)) if known is None else known

    def get(self, image: Image) -> int | None:
        return self._tokens.get(sha256(image.content).digest())

    def put(self, image: Image, tokens: int) -> int:
        """Returns ``tokens``."""
        self._tokens[sha256(image.content).digest()] = tokens
        if len(self._tokens) > _MAX_IMAGES:
            self._tokens.popitem(last=False)
        return tokens

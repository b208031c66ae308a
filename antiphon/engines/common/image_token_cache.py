"""How many tokens images take, remembered: whoever can measure one is asked once. It knows no
engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import sha256

from antiphon.tokens import Image

__all__ = ["ImageSizes"]

_MOST = 4096


class ImageSizes:
    """By what is in the image; those measured first are forgotten first."""

    def __init__(self) -> None:
        self._found: OrderedDict[bytes, int] = OrderedDict()

    async def of(self, image: Image, measure: Callable[[Image], Awaitable[int]]) -> int:
        """The tokens of the image; raises what ``measure`` does."""
        known = self.known(image)
        return self.keep(image, await measure(image)) if known is None else known

    def known(self, image: Image) -> int | None:
        return self._found.get(sha256(image.content).digest())

    def keep(self, image: Image, tokens: int) -> int:
        """Returns ``tokens``."""
        self._found[sha256(image.content).digest()] = tokens
        if len(self._found) > _MOST:
            self._found.popitem(last=False)
        return tokens

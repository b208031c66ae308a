"""A maker of images for tests: it paints one colour, and does what the words of a prompt say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from antiphon.errors import BackendError
from antiphon.tools.image_generation.base import (
    Image,
    ImageRequest,
    Made,
    Order,
    Partial,
    Unable,
    image_of,
)
from antiphon.tools.image_generation.conversation_images import Sources
from antiphon.tools.image_generation.provider import ImageGeneration, Rules
from tests.attachments.samples import png
from tests.conformance.boxes import Uploads

__all__ = ["USED", "Painter", "painted", "provider"]

USED = {
    "input_tokens": 10,
    "input_tokens_details": {"image_tokens": 4, "text_tokens": 6},
    "output_tokens": 20,
    "total_tokens": 30,
}


def painted(width: int = 2, height: int = 3, color: tuple[int, int, int] = (200, 10, 10)) -> Image:
    image = image_of(png(width, height, color))
    assert image is not None
    return image


class Painter:
    """What is ``moderated``, ``broken`` or ``slow`` fails, ``hang`` takes for ever, and at ``wait``
    the client leaves. ``orders``: what it was asked; ``left``: how many went before their image;
    ``more``: previews beyond those that are wanted."""

    def __init__(self, *, edits: bool = True, masks: bool = True, more: int = 0) -> None:
        self.more = more
        self.edits = edits
        self.masks = masks
        self.orders: list[Order] = []
        self.left = 0
        self.waiting = asyncio.Event()
        #: What a client does that leaves.
        self.leave: Callable[[], object] = lambda: None

    def check(self, wish: ImageRequest) -> None:
        if wish.complexity is not None:
            raise Unable("complexity", "painters do not plan")

    async def make(self, order: Order) -> AsyncGenerator[Partial | Made, None]:
        self.orders.append(order)
        try:
            for part in range(order.wish.partial_images + self.more):
                yield Partial(painted(color=(part, 0, 0)))
            await self._does(order.prompt)
            size = order.wish.size or (2, 3)
            yield Made(image=painted(*size, color=(9, 9, len(self.orders))), used=USED)
        except (asyncio.CancelledError, GeneratorExit):
            self.left += 1
            raise

    async def _does(self, prompt: str) -> None:
        if "moderated" in prompt:
            code = "image_content_policy_violation"
            raise BackendError("This is against the rules.", code=code)
        if "broken" in prompt:
            raise BackendError("The upstream failed.")
        if "slow" in prompt:
            raise TimeoutError
        if "wait" in prompt:
            self.leave()
        if "hang" in prompt or "wait" in prompt:
            self.waiting.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    async def close(self) -> None: ...


def provider(
    painter: Painter, uploads: Mapping[tuple[str, str], tuple[str, bytes]] = {}, **rules: Any
) -> ImageGeneration:
    """``image_generation`` over a painter."""
    kept = {"most_pixels": 4096 * 4096, "most_bytes": 100_000, "at_once": 2, **rules}
    return ImageGeneration(painter, Sources(Uploads(uploads), None, 100_000), Rules(**kept))

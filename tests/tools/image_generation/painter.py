"""A maker of images for tests: it paints one colour, and does what the words of a prompt say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from antiphon.errors import BackendError
from antiphon.tools.image_generation.base import (
    GeneratedImage,
    Image,
    ImageRequest,
    ImageTask,
    PartialImage,
    UnsupportedOption,
    read_image,
)
from antiphon.tools.image_generation.conversation_images import ImageSources
from antiphon.tools.image_generation.provider import ImageGenerationProvider, ImagePolicy
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
    image = read_image(png(width, height, color))
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
        self.orders: list[ImageTask] = []
        self.left = 0
        self.waiting = asyncio.Event()
        #: What a client does that leaves.
        self.leave: Callable[[], object] = lambda: None

    def check(self, wish: ImageRequest) -> None:
        if wish.complexity is not None:
            raise UnsupportedOption("complexity", "painters do not plan")

    async def make(self, order: ImageTask) -> AsyncGenerator[PartialImage | GeneratedImage, None]:
        self.orders.append(order)
        try:
            for part in range(order.request.partial_images + self.more):
                yield PartialImage(painted(color=(part, 0, 0)))
            await self._does(order.prompt)
            size = order.request.size or (2, 3)
            yield GeneratedImage(image=painted(*size, color=(9, 9, len(self.orders))), usage=USED)
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
) -> ImageGenerationProvider:
    """``image_generation`` over a painter."""
    kept = {"max_pixels": 4096 * 4096, "max_bytes": 100_000, "concurrency": 2, **rules}
    return ImageGenerationProvider(
        painter, ImageSources(Uploads(uploads), None, 100_000), ImagePolicy(**kept)
    )

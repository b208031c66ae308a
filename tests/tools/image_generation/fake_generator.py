"""A fake image generator that paints one colour, controlled by words in the prompt."""

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
from tests.conformance.fake_containers import Uploads

USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"image_tokens": 4, "text_tokens": 6},
    "output_tokens": 20,
    "total_tokens": 30,
}


def solid_image(
    width: int = 2, height: int = 3, color: tuple[int, int, int] = (200, 10, 10)
) -> Image:
    image = read_image(png(width, height, color))
    assert image is not None
    return image


class FakeImageGenerator:
    """An image generator whose prompt controls its behavior.

    A prompt with ``moderated``, ``broken`` or ``slow`` fails, ``hang`` never ends, and at ``wait``
    the client disconnects. ``tasks``: the tasks so far. ``abandoned_count``: tasks closed before
    their image. ``extra_previews``: previews beyond the requested number.
    """

    def __init__(
        self, *, supports_edits: bool = True, supports_masks: bool = True, extra_previews: int = 0
    ) -> None:
        self.extra_previews = extra_previews
        self.supports_edits = supports_edits
        self.supports_masks = supports_masks
        self.tasks: list[ImageTask] = []
        self.abandoned_count = 0
        self.is_hanging = asyncio.Event()
        #: What a client does that leaves.
        self.leave: Callable[[], object] = lambda: None

    def check(self, request: ImageRequest) -> None:
        if request.complexity is not None:
            raise UnsupportedOption("complexity", "painters do not plan")

    async def generate(
        self, task: ImageTask
    ) -> AsyncGenerator[PartialImage | GeneratedImage, None]:
        self.tasks.append(task)
        try:
            for index in range(task.request.partial_images + self.extra_previews):
                yield PartialImage(solid_image(color=(index, 0, 0)))
            await self._does(task.prompt)
            size = task.request.size or (2, 3)
            yield GeneratedImage(
                image=solid_image(*size, color=(9, 9, len(self.tasks))), usage=USAGE
            )
        except (asyncio.CancelledError, GeneratorExit):
            self.abandoned_count += 1
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
            self.is_hanging.set()
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    async def close(self) -> None: ...


def image_provider(
    generator: FakeImageGenerator,
    uploads: Mapping[tuple[str, str], tuple[str, bytes]] = {},
    **options: Any,
) -> ImageGenerationProvider:
    """Return the ``image_generation`` provider over a generator."""
    policy = {"max_pixels": 4096 * 4096, "max_bytes": 100_000, "concurrency": 2, **options}
    return ImageGenerationProvider(
        generator, ImageSources(Uploads(uploads), None, 100_000), ImagePolicy(**policy)
    )

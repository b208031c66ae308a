"""What every maker of images must do, as one check. Raises ``AssertionError`` with what does not
hold."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.errors import RunError
from antiphon.tools.image_generation.base import (
    GeneratedImage,
    Image,
    ImageGenerator,
    ImageRequest,
    ImageTask,
    PartialImage,
    read_image,
)

__all__ = ["check_image_generator"]

_SECONDS = 60.0


async def check_image_generator(
    generator: ImageGenerator, request: ImageRequest, *, previews: int = 0
) -> None:
    """One image, several side by side, edits, previews, and giving up. ``wish``: one it can fulfil;
    ``previews``: how many it is to make, which it may fall short of. Closes it."""
    async with asyncio.timeout(_SECONDS):
        generator.check(request)
        order = ImageTask(prompt="A red square", request=request)
        _, made = await _made(generator, order)
        _holds(made, request)
        for _, each in await asyncio.gather(*(_made(generator, order) for _ in range(3))):
            _holds(each, request)
        if generator.supports_edits:
            await _edits(generator, order, made.image)
        if previews:
            await _previews(
                generator, replace(order, request=replace(request, partial_images=previews))
            )
        await _gives_up(generator, order)
        await generator.close()


async def _made(
    maker: ImageGenerator, order: ImageTask
) -> tuple[list[PartialImage], GeneratedImage]:
    """The image comes last, and once."""
    previews: list[PartialImage] = []
    made: GeneratedImage | None = None
    async with aclosing(maker.generate(order)) as images:
        async for image in images:
            assert made is None, "something came after the image"
            if isinstance(image, GeneratedImage):
                made = image
            else:
                previews.append(image)
    assert made is not None, "it ended without an image"
    return previews, made


def _holds(made: GeneratedImage, wish: ImageRequest) -> None:
    image = made.image
    assert read_image(image.content) == image, "it does not tell what its bytes are"
    assert image.format == wish.output_format, f"{image.format} in place of {wish.output_format}"
    if wish.size is not None:
        assert (image.width, image.height) == wish.size, "it has another size"


async def _edits(maker: ImageGenerator, order: ImageTask, image: Image) -> None:
    _, changed = await _made(maker, replace(order, images=(image,)))
    _holds(changed, order.request)


async def _previews(maker: ImageGenerator, order: ImageTask) -> None:
    maker.check(order.request)
    previews, made = await _made(maker, order)
    assert len(previews) <= order.request.partial_images, "more previews than were asked for"
    for preview in previews:
        assert read_image(preview.image.content) == preview.image
    _holds(made, order.request)


async def _gives_up(maker: ImageGenerator, order: ImageTask) -> None:
    """Whoever leaves, at whatever moment, leaves nothing behind."""

    async def waits() -> None:
        try:
            await _made(maker, order)
        except RunError as error:
            raise AssertionError(f"it failed: {error.message}") from None

    for turns in range(6):
        task = asyncio.create_task(waits())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.done(), "an image that nobody waits for goes on"
    await waits()

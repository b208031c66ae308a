"""Check of the contract of an image generator, for authors of image generators. It raises
``AssertionError``."""

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
    """Check an image generator: one image, parallel images, edits, previews and cancellation.
    Closes the generator.

    ``request``: a request that the generator supports. ``previews``: number of previews to request.
    The generator may return fewer previews.
    """
    async with asyncio.timeout(_SECONDS):
        generator.check(request)
        task = ImageTask(prompt="A red square", request=request)
        _, generated = await _generate(generator, task)
        _check_image(generated, request)
        for _, each in await asyncio.gather(*(_generate(generator, task) for _ in range(3))):
            _check_image(each, request)
        if generator.supports_edits:
            await _check_edit(generator, task, generated.image)
        if previews:
            await _check_previews(
                generator, replace(task, request=replace(request, partial_images=previews))
            )
        await _check_cancellation(generator, task)
        await generator.close()


async def _generate(
    generator: ImageGenerator, task: ImageTask
) -> tuple[list[PartialImage], GeneratedImage]:
    """Generate one image. Returns its previews and the image. Checks that the image comes after all
    previews."""
    previews: list[PartialImage] = []
    generated: GeneratedImage | None = None
    async with aclosing(generator.generate(task)) as images:
        async for image in images:
            assert generated is None, "the generator returned something after the image"
            if isinstance(image, GeneratedImage):
                generated = image
            else:
                previews.append(image)
    assert generated is not None, "the generator returned no image"
    return previews, generated


def _check_image(generated: GeneratedImage, request: ImageRequest) -> None:
    image = generated.image
    assert read_image(image.content) == image, "the image's fields do not match its bytes"
    assert image.format == request.output_format, (
        f"the format is {image.format}, not {request.output_format}"
    )
    if request.size is not None:
        assert (image.width, image.height) == request.size, (
            "the image does not have the requested size"
        )


async def _check_edit(generator: ImageGenerator, task: ImageTask, image: Image) -> None:
    _, changed = await _generate(generator, replace(task, images=(image,)))
    _check_image(changed, task.request)


async def _check_previews(generator: ImageGenerator, task: ImageTask) -> None:
    generator.check(task.request)
    previews, generated = await _generate(generator, task)
    assert len(previews) <= task.request.partial_images, "more previews than requested"
    for preview in previews:
        assert read_image(preview.image.content) == preview.image
    _check_image(generated, task.request)


async def _check_cancellation(generator: ImageGenerator, task: ImageTask) -> None:
    """Check that a generation ends when it is cancelled, and that later generations still work. The
    check cancels several generations, each after a different delay."""

    async def generate() -> None:
        try:
            await _generate(generator, task)
        except RunError as error:
            raise AssertionError(f"it failed: {error.message}") from None

    for turns in range(6):
        running = asyncio.create_task(generate())
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running], timeout=10)
        assert running.done(), "a cancelled generation did not stop"
    await generate()

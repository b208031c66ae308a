"""The diffusers generator with a tiny random model: generate, edit, inpaint and stop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import BackendError, SetupError
from antiphon.testing.image_generator_check import check_image_generator
from antiphon.testing.tool_check import ToolCheckCase, check_tool
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
from antiphon.tools.image_generation.diffusers import Diffusers, _Cancelled
from antiphon.tools.image_generation.provider import ImageGenerationProvider, ImagePolicy
from antiphon.wire.tools import ImageGeneration as Tool

from .fake_generator import solid_image
from .tiny_pipeline import save_tiny_pipeline

pytestmark = [
    pytest.mark.engines,
    # of diffusers about transformers, and of these about each other
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]
pytest.importorskip("diffusers")

SMALL = ImageRequest(size=(32, 32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_pipeline(tmp_path_factory.mktemp("tiny"))


def load(folder: Path, **options: Any) -> Diffusers:
    return Diffusers.load(str(folder), {"steps": 6, "device": "cpu", **options})


@pytest.fixture
async def generator(folder: Path) -> AsyncIterator[Diffusers]:
    generator = load(folder)
    yield generator
    await generator.close()


async def generate(
    diffusers: Diffusers, task: ImageTask
) -> tuple[list[PartialImage], GeneratedImage]:
    async with asyncio.timeout(60), aclosing(diffusers.generate(task)) as images:
        results = [image async for image in images]
    assert isinstance(results[-1], GeneratedImage)
    return [image for image in results if isinstance(image, PartialImage)], results[-1]


def mask(size: tuple[int, int] = (32, 32), *, clear: bool = True) -> Image:
    from PIL import Image as pictures

    picture = pictures.new("RGBA", size, (0, 0, 0, 255))
    if clear:
        picture.paste((0, 0, 0, 0), (0, 0, size[0] // 2, size[1]))
    out = BytesIO()
    picture.save(out, "PNG")
    image = read_image(out.getvalue())
    assert image is not None
    return image


async def test_diffusers_meets_both_contracts(folder: Path) -> None:
    generator = load(folder)
    assert generator.supports_edits and generator.supports_masks
    policy = ImagePolicy(max_pixels=10_000, max_bytes=1_000_000, concurrency=2)
    image_provider = ImageGenerationProvider(generator, ImageSources(None, None, 1_000_000), policy)
    call = ("image_generation", '{"prompt": "A cat"}')
    bad = ("image_generation", '{"prompt": "A cat", "images": [99]}')
    error = (
        Tool(quality="max"),
        Tool(size="33x32"),
        Tool(background="transparent"),
        Tool(output_format="gif"),
        Tool(complexity="low"),
    )
    tool = Tool(size="32x32", partial_images=2)
    await check_tool(
        image_provider,
        ToolCheckCase(tool=tool, successful_call=call, failing_call=bad, rejected_tools=error),
    )
    await check_image_generator(generator, SMALL, previews=3)


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_previews_come_at_evenly_spaced_steps(generator: Diffusers, count: int) -> None:
    request = ImageRequest(size=(48, 32), partial_images=count)
    previews, image = await generate(generator, ImageTask(prompt="A cat", request=request))
    assert len(previews) == count
    images = [each.image for each in (*previews, image)]
    assert {each.size for each in images} == {"48x32"}
    assert len({each.content for each in images}) == len(images)


async def test_quality_sets_steps_and_format_is_encoded(generator: Diffusers) -> None:
    steps: list[int] = []
    pipeline = generator._text_to_image

    class Counted:
        """The pipeline, watched."""

        def __call__(self, prompt: str, num_inference_steps: int = 50, **more: Any) -> Any:
            steps.append(num_inference_steps)
            return pipeline(prompt=prompt, num_inference_steps=num_inference_steps, **more)

    generator._text_to_image = Counted()
    for quality, output_format in (
        ("low", "jpeg"),
        ("medium", "webp"),
        ("high", "png"),
        (None, "png"),
    ):
        request = ImageRequest(quality=quality, output_format=output_format)
        _, image = await generate(generator, ImageTask(prompt="A cat", request=request))
        assert image.image.format == output_format and image.background == "opaque"
    assert steps == [3, 6, 12, 6]


async def test_output_compression_changes_file_size(generator: Diffusers) -> None:
    from PIL import Image as pictures

    from antiphon.tools.image_generation.encoding import encode_picture

    noise = pictures.effect_noise((64, 64), 90).convert("RGB")
    for output_format in ("jpeg", "webp"):
        sizes = [
            len(
                encode_picture(
                    noise, ImageRequest(output_format=output_format, output_compression=level)
                ).content
            )
            for level in (0, 50, 100)
        ]
        assert sizes == sorted(sizes) and sizes[0] < sizes[2]


async def test_edit_keeps_the_aspect_ratio(generator: Diffusers) -> None:
    task = ImageTask(prompt="Bluer", request=ImageRequest(), images=(solid_image(80, 40),))
    _, image = await generate(generator, task)
    assert image.image.size == "32x16"  # of 32 x 32 pixels at most, in steps of 16
    two_images = ImageTask(
        prompt="x", request=ImageRequest(), images=(solid_image(), solid_image())
    )
    with pytest.raises(BackendError, match="At most 1 images"):
        await generate(generator, two_images)


async def test_input_fidelity_sets_the_strength(generator: Diffusers) -> None:
    from PIL import Image as pictures

    def mean_difference(image: Image) -> float:
        """From the one it was made of."""
        pixels = pictures.open(BytesIO(image.content)).convert("RGB").tobytes()
        original = bytes((200, 10, 10)) * (len(pixels) // 3)
        return sum(abs(a - b) for a, b in zip(pixels, original, strict=True)) / len(pixels)

    task = ImageTask(prompt="x", request=SMALL, images=(solid_image(32, 32),))
    assert generator._pipeline_arguments(generator._image_to_image, task)["strength"] == 0.8
    high = ImageTask(
        prompt="x", request=ImageRequest(size=(32, 32), input_fidelity="high"), images=task.images
    )
    assert generator._pipeline_arguments(generator._image_to_image, high)["strength"] == 0.5
    _, image = await generate(generator, high)
    assert mean_difference(image.image) < 255


async def test_transparent_mask_area_is_repainted(generator: Diffusers) -> None:
    task = ImageTask(prompt="x", request=SMALL, images=(solid_image(32, 32),), mask=mask())
    white = generator._pipeline_arguments(generator._inpainting, task)["mask_image"]
    assert (white.getpixel((0, 0)), white.getpixel((31, 0))) == (255, 0)
    _, image = await generate(generator, task)
    assert image.image.size == "32x32"
    opaque_mask = ImageTask(
        prompt="x", request=SMALL, images=(solid_image(32, 32),), mask=mask(clear=False)
    )
    with pytest.raises(BackendError, match="no transparent area"):
        await generate(generator, opaque_mask)


async def test_cancellation_stops_the_pipeline_between_steps(folder: Path) -> None:
    generator = load(folder, steps=100_000)
    stopped = threading.Event()
    pipeline = generator._text_to_image

    class Watched:
        """The pipeline; it tells that it was stopped."""

        vae = pipeline.vae

        def __call__(self, **more: Any) -> Any:
            try:
                return pipeline(**more)
            except _Cancelled:
                stopped.set()
                raise

        __call__.__signature__ = inspect.signature(pipeline.__call__)  # type: ignore[attr-defined]

    generator._text_to_image = Watched()
    request = ImageRequest(size=(32, 32), partial_images=1)
    running = asyncio.create_task(generate(generator, ImageTask(prompt="x", request=request)))
    queued = asyncio.create_task(generate(generator, ImageTask(prompt="x", request=request)))
    while not generator._thread._work_queue.qsize():
        await asyncio.sleep(0)
    for task in (running, queued):
        task.cancel()
    await asyncio.wait([running, queued])
    assert await asyncio.to_thread(stopped.wait, 30)
    generator._text_to_image, generator._options = pipeline, load(folder)._options
    await generate(generator, ImageTask(prompt="x", request=SMALL))
    await generator.close()


async def test_unsupported_options_are_rejected(generator: Diffusers) -> None:
    generator.check(
        ImageRequest(quality="high", input_fidelity="low", moderation="low", partial_images=3)
    )
    generator._text_to_image.safety_checker = lambda: None
    for request, name in (
        (ImageRequest(quality="xhigh"), "quality"),
        (ImageRequest(size=(16, 20)), "size"),
        (ImageRequest(moderation="low"), "moderation"),
    ):
        with pytest.raises(UnsupportedOption) as error:
            generator.check(request)
        assert error.value.field == name
    generator._image_to_image = None
    assert not generator.supports_edits
    with pytest.raises(UnsupportedOption, match="does not support it"):
        generator.check(ImageRequest(input_fidelity="low"))
    generator._text_to_image.vae = None
    with pytest.raises(UnsupportedOption, match="no previews"):
        generator.check(ImageRequest(partial_images=1))


async def test_pipeline_failure_raises_backend_error(generator: Diffusers) -> None:
    generator._text_to_image.unet = None
    with pytest.raises(BackendError, match="The image model failed"):
        await generate(generator, ImageTask(prompt="x", request=SMALL))
    broken = ImageTask(prompt="x", request=SMALL, images=(Image(b"\x89PNG", "png", 8, 8),))
    with pytest.raises(BackendError, match="damaged"):
        await generate(generator, broken)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 1}, "image_generation_options"),
        ({"device": "nowhere"}, "cannot be loaded"),
        ({"variant": "none"}, "cannot be loaded"),
    ],
)
def test_invalid_options_raise_setup_error(
    folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SetupError, match=message) as error:
        Diffusers.load(str(folder), options)
    assert "\n" not in str(error.value)


def test_missing_model_raises_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be loaded"):
        Diffusers.load(str(tmp_path), {})

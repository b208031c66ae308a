"""Images by diffusers: a tiny model of random weights draws, changes, fills and stops."""

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
from antiphon.testing.tool_check import ToolTrial, check_tool
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

from .painter import painted
from .tiny import saved

pytestmark = [
    pytest.mark.engines,
    # of diffusers about transformers, and of these about each other
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]
pytest.importorskip("diffusers")

SMALL = ImageRequest(size=(32, 32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("tiny"))


def load(folder: Path, **told: Any) -> Diffusers:
    return Diffusers.load(str(folder), {"steps": 6, "device": "cpu", **told})


@pytest.fixture
async def maker(folder: Path) -> AsyncIterator[Diffusers]:
    opened = load(folder)
    yield opened
    await opened.close()


async def made(over: Diffusers, order: ImageTask) -> tuple[list[PartialImage], GeneratedImage]:
    async with asyncio.timeout(60), aclosing(over.generate(order)) as images:
        found = [image async for image in images]
    assert isinstance(found[-1], GeneratedImage)
    return [image for image in found if isinstance(image, PartialImage)], found[-1]


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


async def test_it_keeps_both_contracts(folder: Path) -> None:
    maker = load(folder)
    assert maker.supports_edits and maker.supports_masks
    rules = ImagePolicy(max_pixels=10_000, max_bytes=1_000_000, concurrency=2)
    provider = ImageGenerationProvider(maker, ImageSources(None, None, 1_000_000), rules)
    call = ("image_generation", '{"prompt": "A cat"}')
    bad = ("image_generation", '{"prompt": "A cat", "images": [99]}')
    refused = (
        Tool(quality="max"),
        Tool(size="33x32"),
        Tool(background="transparent"),
        Tool(output_format="gif"),
        Tool(complexity="low"),
    )
    tool = Tool(size="32x32", partial_images=2)
    await check_tool(
        provider,
        ToolTrial(tool=tool, successful_call=call, failing_call=bad, rejected_tools=refused),
    )
    await check_image_generator(maker, SMALL, previews=3)


@pytest.mark.parametrize("wanted", [1, 2, 3])
async def test_previews_come_at_evenly_spread_steps(maker: Diffusers, wanted: int) -> None:
    wish = ImageRequest(size=(48, 32), partial_images=wanted)
    previews, image = await made(maker, ImageTask(prompt="A cat", request=wish))
    assert len(previews) == wanted
    every = [each.image for each in (*previews, image)]
    assert {each.size for each in every} == {"48x32"}
    assert len({each.content for each in every}) == len(every)


async def test_quality_is_steps_and_formats_are_written(maker: Diffusers) -> None:
    steps: list[int] = []
    draw = maker._text_to_image

    class Counted:
        """The pipeline, watched."""

        def __call__(self, prompt: str, num_inference_steps: int = 50, **more: Any) -> Any:
            steps.append(num_inference_steps)
            return draw(prompt=prompt, num_inference_steps=num_inference_steps, **more)

    maker._text_to_image = Counted()
    for quality, form in (("low", "jpeg"), ("medium", "webp"), ("high", "png"), (None, "png")):
        wish = ImageRequest(quality=quality, output_format=form)
        _, image = await made(maker, ImageTask(prompt="A cat", request=wish))
        assert image.image.format == form and image.background == "opaque"
    assert steps == [3, 6, 12, 6]


async def test_a_level_of_compression_makes_smaller_files(maker: Diffusers) -> None:
    from PIL import Image as pictures

    from antiphon.tools.image_generation.encoding import encode_picture

    noise = pictures.effect_noise((64, 64), 90).convert("RGB")
    for form in ("jpeg", "webp"):
        sizes = [
            len(
                encode_picture(
                    noise, ImageRequest(output_format=form, output_compression=level)
                ).content
            )
            for level in (0, 50, 100)
        ]
        assert sizes == sorted(sizes) and sizes[0] < sizes[2]


async def test_an_image_is_changed_in_its_own_shape(maker: Diffusers) -> None:
    order = ImageTask(prompt="Bluer", request=ImageRequest(), images=(painted(80, 40),))
    _, image = await made(maker, order)
    assert image.image.size == "32x16"  # of 32 x 32 pixels at most, in steps of 16
    several = ImageTask(prompt="x", request=ImageRequest(), images=(painted(), painted()))
    with pytest.raises(BackendError, match="At most 1 images"):
        await made(maker, several)


async def test_fidelity_is_how_little_is_made_anew(maker: Diffusers) -> None:
    from PIL import Image as pictures

    def far(image: Image) -> float:
        """From the one it was made of."""
        pixels = pictures.open(BytesIO(image.content)).convert("RGB").tobytes()
        asked = bytes((200, 10, 10)) * (len(pixels) // 3)
        return sum(abs(a - b) for a, b in zip(pixels, asked, strict=True)) / len(pixels)

    order = ImageTask(prompt="x", request=SMALL, images=(painted(32, 32),))
    assert maker._pipeline_arguments(maker._image_to_image, order)["strength"] == 0.8
    high = ImageTask(
        prompt="x", request=ImageRequest(size=(32, 32), input_fidelity="high"), images=order.images
    )
    assert maker._pipeline_arguments(maker._image_to_image, high)["strength"] == 0.5
    _, image = await made(maker, high)
    assert far(image.image) < 255


async def test_a_mask_says_what_changes(maker: Diffusers) -> None:
    order = ImageTask(prompt="x", request=SMALL, images=(painted(32, 32),), mask=mask())
    white = maker._pipeline_arguments(maker._inpainting, order)["mask_image"]
    assert (white.getpixel((0, 0)), white.getpixel((31, 0))) == (255, 0)
    _, image = await made(maker, order)
    assert image.image.size == "32x32"
    nowhere = ImageTask(
        prompt="x", request=SMALL, images=(painted(32, 32),), mask=mask(clear=False)
    )
    with pytest.raises(BackendError, match="nowhere transparent"):
        await made(maker, nowhere)


async def test_whoever_leaves_stops_it_between_steps(folder: Path) -> None:
    maker = load(folder, steps=100_000)
    stopped = threading.Event()
    draw = maker._text_to_image

    class Watched:
        """The pipeline; it tells that it was stopped."""

        vae = draw.vae

        def __call__(self, **more: Any) -> Any:
            try:
                return draw(**more)
            except _Cancelled:
                stopped.set()
                raise

        __call__.__signature__ = inspect.signature(draw.__call__)  # type: ignore[attr-defined]

    maker._text_to_image = Watched()
    wish = ImageRequest(size=(32, 32), partial_images=1)
    waiting = asyncio.create_task(made(maker, ImageTask(prompt="x", request=wish)))
    behind = asyncio.create_task(made(maker, ImageTask(prompt="x", request=wish)))
    while not maker._thread._work_queue.qsize():
        await asyncio.sleep(0)
    for task in (waiting, behind):
        task.cancel()
    await asyncio.wait([waiting, behind])
    assert await asyncio.to_thread(stopped.wait, 30)
    maker._text_to_image, maker._options = draw, load(folder)._options
    await made(maker, ImageTask(prompt="x", request=SMALL))
    await maker.close()


async def test_what_a_model_cannot_do_is_refused(maker: Diffusers) -> None:
    maker.check(
        ImageRequest(quality="high", input_fidelity="low", moderation="low", partial_images=3)
    )
    maker._text_to_image.safety_checker = lambda: None
    for wish, name in (
        (ImageRequest(quality="xhigh"), "quality"),
        (ImageRequest(size=(16, 20)), "size"),
        (ImageRequest(moderation="low"), "moderation"),
    ):
        with pytest.raises(UnsupportedOption) as unable:
            maker.check(wish)
        assert unable.value.field == name
    maker._image_to_image = None
    assert not maker.supports_edits
    with pytest.raises(UnsupportedOption, match="cannot be told"):
        maker.check(ImageRequest(input_fidelity="low"))
    maker._text_to_image.vae = None
    with pytest.raises(UnsupportedOption, match="no previews"):
        maker.check(ImageRequest(partial_images=1))


async def test_what_breaks_is_an_error_in_words(maker: Diffusers) -> None:
    maker._text_to_image.unet = None
    with pytest.raises(BackendError, match="The image model failed"):
        await made(maker, ImageTask(prompt="x", request=SMALL))
    broken = ImageTask(prompt="x", request=SMALL, images=(Image(b"\x89PNG", "png", 8, 8),))
    with pytest.raises(BackendError, match="damaged"):
        await made(maker, broken)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"step": 1}, "image_generation_options"),
        ({"device": "nowhere"}, "cannot be loaded"),
        ({"variant": "none"}, "cannot be loaded"),
    ],
)
def test_what_is_set_wrong_is_named(folder: Path, told: dict[str, Any], why: str) -> None:
    with pytest.raises(SetupError, match=why) as refused:
        Diffusers.load(str(folder), told)
    assert "\n" not in str(refused.value)


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be loaded"):
        Diffusers.load(str(tmp_path), {})

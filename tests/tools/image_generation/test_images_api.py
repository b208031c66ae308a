"""Images by an Images API: what is asked, what comes back, and what goes wrong; over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from antiphon.attachments.fetch import Fetcher
from antiphon.errors import BackendError, SetupError
from antiphon.security.ssrf import parse_network
from antiphon.testing.image_generator_check import check_image_generator
from antiphon.testing.tool_check import ToolTrial, check_tool
from antiphon.tools.image_generation.base import (
    GeneratedImage,
    ImageRequest,
    ImageTask,
    PartialImage,
    UnsupportedOption,
)
from antiphon.tools.image_generation.conversation_images import ImageSources
from antiphon.tools.image_generation.images_api import ImagesApi
from antiphon.tools.image_generation.provider import ImageGenerationProvider, ImagePolicy
from antiphon.wire.tools import ImageGeneration as Tool
from tests.attachments.samples import png

from .api import USAGE, Studio, studio
from .painter import painted

KEY = "sk-of-the-operator"


@asynccontextmanager
async def maker(playing: Studio, *, fetcher: Any = None, most: int = 100_000, **told: Any) -> Any:
    opened = ImagesApi.open(playing.url, key=KEY, settings=told, fetcher=fetcher, max_bytes=most)

    async def at_once(seconds: float) -> None: ...

    opened._upstream._pause = at_once
    try:
        yield opened
    finally:
        await opened.close()


async def made(over: ImagesApi, **more: Any) -> tuple[list[PartialImage], GeneratedImage]:
    order = ImageTask(prompt="A cat", request=more.pop("wish", ImageRequest()), **more)
    async with asyncio.timeout(10), aclosing(over.generate(order)) as images:
        found = [image async for image in images]
    assert isinstance(found[-1], GeneratedImage)
    return [image for image in found if isinstance(image, PartialImage)], found[-1]


async def test_it_keeps_the_contract_of_makers() -> None:
    async with studio() as playing, maker(playing) as over:
        await check_image_generator(over, ImageRequest(size=(16, 32)), previews=3)


async def test_it_keeps_the_contract_of_tools() -> None:
    trial = ToolTrial(
        tool=Tool(partial_images=2, size="16x16"),
        successful_call=("image_generation", '{"prompt": "A cat"}'),
        failing_call=("image_generation", '{"prompt": "What is forbidden"}'),
        hanging_call=("image_generation", '{"prompt": "hang"}'),
        rejected_tools=(Tool(quality="low"), Tool(size="16")),
    )
    rules = ImagePolicy(max_pixels=10_000, max_bytes=100_000, concurrency=2)
    async with studio() as playing, maker(playing, without=["quality"]) as over:
        await check_tool(
            ImageGenerationProvider(over, ImageSources(None, None, 100_000), rules), trial
        )


async def test_an_image_is_asked_for_in_json() -> None:
    wish = ImageRequest(
        model="m",
        size=(16, 32),
        quality="low",
        background="opaque",
        moderation="low",
        input_fidelity="high",
        complexity="low",
    )
    async with studio() as playing, maker(playing, body={"n": 1}) as over:
        previews, image = await made(over, wish=wish)
        (asked,) = playing.asked
    assert (asked.route, asked.key) == ("generations", f"Bearer {KEY}")
    assert asked.fields == {
        "n": 1,
        "prompt": "A cat",
        "model": "m",
        "size": "16x32",
        "quality": "low",
        "background": "opaque",
        "moderation": "low",
        "complexity": "low",
    }
    assert previews == [] and image.image.content == png(16, 32, (200, 0, 0))
    assert (image.quality, image.background, image.revised_prompt) == ("low", "opaque", "Revised.")
    assert image.usage == USAGE


async def test_previews_are_streamed() -> None:
    async with studio() as playing, maker(playing) as over:
        previews, image = await made(over, wish=ImageRequest(partial_images=2))
        (asked,) = playing.asked
    assert asked.fields == {"prompt": "A cat", "stream": True, "partial_images": 2}
    assert [each.image.content for each in previews] == [png(8, 6, (n, 0, 0)) for n in range(2)]
    assert image.image.size == "8x6" and image.usage == USAGE


async def test_an_edit_is_a_form() -> None:
    red, blue = painted(color=(255, 0, 0)), painted(color=(0, 0, 255))
    wish = ImageRequest(
        input_fidelity="high", output_format="svg", svg={"reasoning": {"effort": "low"}}
    )
    async with studio() as playing, maker(playing) as over:
        _, image = await made(over, images=(red,), mask=blue, wish=wish)
        await made(over, images=(red, blue), wish=ImageRequest(partial_images=1))
        one, several = playing.asked
    assert image.image.content == png(8, 6, (0, 200, 0))
    assert one.route == "edits" and one.fields == {
        "prompt": "A cat",
        "input_fidelity": "high",
        "output_format": "svg",
        "svg[reasoning][effort]": "low",
    }
    assert one.files == [
        ("image", "image1.png", "image/png", red.content),
        ("mask", "mask.png", "image/png", blue.content),
    ]
    assert [(name, content) for name, *_, content in several.files] == [
        ("image[]", red.content),
        ("image[]", blue.content),
    ]
    assert (several.fields["stream"], several.fields["partial_images"]) == ("true", "1")


@asynccontextmanager
async def fetching(*networks: str) -> AsyncIterator[Fetcher]:
    allowed = tuple(parse_network(text, "x") for text in networks)
    fetcher = Fetcher.open(most=100_000, clock=lambda: 0.0, networks=allowed)
    try:
        yield fetcher
    finally:
        await fetcher.close()


async def test_an_image_behind_a_url_is_fetched_like_all_urls_of_others() -> None:
    async with studio("url") as playing:
        async with fetching("127.0.0.1") as fetcher, maker(playing, fetcher=fetcher) as over:
            _, image = await made(over)
            assert image.image.content == png(8, 6)
        async with fetching() as fetcher, maker(playing, fetcher=fetcher) as over:
            with pytest.raises(BackendError, match="not a public one"):
                await made(over)
        async with maker(playing) as over:
            with pytest.raises(BackendError, match="fetches none"):
                await made(over)


async def test_a_failure_that_may_pass_is_tried_again() -> None:
    async with studio(503, 429, "paint") as playing, maker(playing) as over:
        await made(over)
        assert len(playing.asked) == 3


@pytest.mark.parametrize(
    ("act", "told", "code"),
    [
        (400, "refused the request \\(its 'size'\\): No more of this.", "invalid_prompt"),
        (401, "does not accept this server's key", "server_error"),
        (404, "no such model or address", "server_error"),
        (500, "The upstream failed", "server_error"),
        ("moderate", "rejected by the safety system", "image_content_policy_violation"),
        ("error", "rejected by the safety system", "image_content_policy_violation"),
        ("garbage", "no image", "server_error"),
        ("nothing", "no image", "server_error"),
        ("break", "broke off", "server_error"),
    ],
)
async def test_what_goes_wrong_is_told_by_its_kind(act: Any, told: str, code: str) -> None:
    async with studio(act) as playing, maker(playing) as over:
        with pytest.raises(BackendError, match=told) as failed:
            await made(over, wish=ImageRequest(partial_images=1))
        assert failed.value.code == code and KEY not in failed.value.message


async def test_an_image_that_is_too_large_is_not_read() -> None:
    async with studio() as playing, maker(playing, most=20) as over:
        with pytest.raises(BackendError, match="too large"):
            await made(over)


async def test_whoever_leaves_ends_the_request() -> None:
    async with studio("hang") as playing, maker(playing) as over:
        waiting = asyncio.create_task(made(over))
        while not playing.asked:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        async with asyncio.timeout(10):
            await playing.gone.wait()
        assert playing.left == 1


async def test_an_operator_says_what_the_upstream_cannot_do() -> None:
    told = {"streams": False, "edits": False, "without": ["quality", "output_format"]}
    async with studio() as playing, maker(playing, **told) as over:
        assert not over.edits and not over.masks
        over.check(ImageRequest())
        for wish, name in (
            (ImageRequest(partial_images=1), "partial_images"),
            (ImageRequest(quality="low"), "quality"),
            (ImageRequest(output_format="webp"), "output_format"),
        ):
            with pytest.raises(UnsupportedOption) as unable:
                over.check(wish)
            assert unable.value.field == name


@pytest.mark.parametrize(
    ("told", "why"),
    [({"stream": True}, "image_generation_options"), ({"without": ["x"]}, "no tool has 'x'")],
)
def test_what_is_set_wrong_is_named(told: dict[str, Any], why: str) -> None:
    with pytest.raises(SetupError, match=why):
        ImagesApi.open("http://h/v1", key=None, settings=told, fetcher=None, max_bytes=1)

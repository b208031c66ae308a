"""The Images API generator: requests, answers and failures, over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import pytest

from antiphon.attachments.fetch import Fetcher
from antiphon.errors import BackendError, SetupError
from antiphon.security.ssrf import parse_network
from antiphon.testing.image_generator_check import check_image_generator
from antiphon.testing.tool_check import ToolCheckCase, check_tool
from antiphon.tools.image_generation import images_api as images_api_module
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
from antiphon.upstream.client import Upstream
from antiphon.wire.tools import ImageGeneration as Tool
from tests.attachments.samples import png

from .api import USAGE, FakeImagesApi, serve_images_api
from .fake_generator import solid_image

KEY = "sk-of-the-operator"


@asynccontextmanager
async def open_images_api(
    api: FakeImagesApi, *, fetcher: Any = None, max_bytes: int = 100_000, **options: Any
) -> Any:
    async def no_pause(seconds: float) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images_api_module, "Upstream", partial(Upstream, pause=no_pause))
        images_api = ImagesApi.open(
            api.url, key=KEY, settings=options, fetcher=fetcher, max_bytes=max_bytes
        )
    try:
        yield images_api
    finally:
        await images_api.close()


async def generate(
    generator: ImagesApi, **task_fields: Any
) -> tuple[list[PartialImage], GeneratedImage]:
    task = ImageTask(
        prompt="A cat", request=task_fields.pop("request", ImageRequest()), **task_fields
    )
    async with asyncio.timeout(60), aclosing(generator.generate(task)) as images:
        results = [image async for image in images]
    assert isinstance(results[-1], GeneratedImage)
    return [image for image in results if isinstance(image, PartialImage)], results[-1]


async def test_images_api_meets_the_generator_contract() -> None:
    async with serve_images_api() as api, open_images_api(api) as generator:
        await check_image_generator(generator, ImageRequest(size=(16, 32)), previews=3)


async def test_provider_meets_the_tool_contract() -> None:
    case = ToolCheckCase(
        tool=Tool(partial_images=2, size="16x16"),
        successful_call=("image_generation", '{"prompt": "A cat"}'),
        failing_call=("image_generation", '{"prompt": "What is forbidden"}'),
        hanging_call=("image_generation", '{"prompt": "hang"}'),
        rejected_tools=(Tool(quality="low"), Tool(size="16")),
    )
    policy = ImagePolicy(max_pixels=10_000, max_bytes=100_000, concurrency=2)
    async with serve_images_api() as api, open_images_api(api, without=["quality"]) as generator:
        await check_tool(
            ImageGenerationProvider(generator, ImageSources(None, None, 100_000), policy), case
        )


async def test_upstream_gets_the_idempotency_key() -> None:
    async with serve_images_api() as api, open_images_api(api) as generator:
        await generate(generator, idempotency_key="ig_1")
        await generate(generator)
        first, second = api.requests
    assert (first.idempotency_key, second.idempotency_key) == ("ig_1", None)


async def test_generation_request_is_json() -> None:
    request = ImageRequest(
        model="m",
        size=(16, 32),
        quality="low",
        background="opaque",
        moderation="low",
        input_fidelity="high",
        complexity="low",
    )
    async with serve_images_api() as api, open_images_api(api, body={"n": 1}) as generator:
        previews, image = await generate(generator, request=request)
        (request,) = api.requests
    assert (request.route, request.key) == ("generations", f"Bearer {KEY}")
    assert request.fields == {
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
    async with serve_images_api() as api, open_images_api(api) as generator:
        previews, image = await generate(generator, request=ImageRequest(partial_images=2))
        (request,) = api.requests
    assert request.fields == {"prompt": "A cat", "stream": True, "partial_images": 2}
    assert [each.image.content for each in previews] == [png(8, 6, (n, 0, 0)) for n in range(2)]
    assert image.image.size == "8x6" and image.usage == USAGE


async def test_edit_request_is_a_multipart_form() -> None:
    red, blue = solid_image(color=(255, 0, 0)), solid_image(color=(0, 0, 255))
    request = ImageRequest(
        input_fidelity="high", output_format="svg", svg={"reasoning": {"effort": "low"}}
    )
    async with serve_images_api() as api, open_images_api(api) as generator:
        _, image = await generate(generator, images=(red,), mask=blue, request=request)
        await generate(generator, images=(red, blue), request=ImageRequest(partial_images=1))
        one, multiple = api.requests
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
    assert [(name, content) for name, *_, content in multiple.files] == [
        ("image[]", red.content),
        ("image[]", blue.content),
    ]
    assert (multiple.fields["stream"], multiple.fields["partial_images"]) == ("true", "1")


@asynccontextmanager
async def open_fetcher(*networks: str) -> AsyncIterator[Fetcher]:
    allowed = tuple(parse_network(text, "x") for text in networks)
    fetcher = Fetcher.open(max_bytes=100_000, clock=lambda: 0.0, networks=allowed)
    try:
        yield fetcher
    finally:
        await fetcher.close()


async def test_image_url_is_fetched_with_the_ssrf_guard() -> None:
    async with serve_images_api("url") as api:
        async with (
            open_fetcher("127.0.0.1") as fetcher,
            open_images_api(api, fetcher=fetcher) as generator,
        ):
            _, image = await generate(generator)
            assert image.image.content == png(8, 6)
        async with open_fetcher() as fetcher, open_images_api(api, fetcher=fetcher) as generator:
            with pytest.raises(BackendError, match="not a public one"):
                await generate(generator)
        async with open_images_api(api) as generator:
            with pytest.raises(BackendError, match="does not fetch URLs"):
                await generate(generator)


async def test_transient_failures_are_retried() -> None:
    async with serve_images_api(503, 429, "paint") as api, open_images_api(api) as generator:
        await generate(generator)
        assert len(api.requests) == 3


@pytest.mark.parametrize(
    ("behavior", "message", "code"),
    [
        (400, "refused the request \\(its 'size'\\): No more of this.", "invalid_prompt"),
        (401, "rejects this server's API key", "invalid_prompt"),
        (404, "no such model or endpoint", "invalid_prompt"),
        (500, "The upstream failed", "server_is_overloaded"),
        ("moderate", "rejected by the safety system", "image_content_policy_violation"),
        ("error", "rejected by the safety system", "image_content_policy_violation"),
        ("garbage", "no image", "server_error"),
        ("nothing", "no image", "server_error"),
        ("break", "broke off", "server_error"),
    ],
)
async def test_upstream_failures_have_their_message_and_code(
    behavior: Any, message: str, code: str
) -> None:
    async with serve_images_api(behavior) as api, open_images_api(api) as generator:
        with pytest.raises(BackendError, match=message) as failed:
            await generate(generator, request=ImageRequest(partial_images=1))
        assert failed.value.code == code and KEY not in failed.value.message


async def test_too_large_image_is_rejected() -> None:
    async with serve_images_api() as api, open_images_api(api, max_bytes=20) as generator:
        with pytest.raises(BackendError, match="too large"):
            await generate(generator)


async def test_cancellation_ends_the_upstream_request() -> None:
    async with serve_images_api("hang") as api, open_images_api(api) as generator:
        running = asyncio.create_task(generate(generator))
        while not api.requests:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        async with asyncio.timeout(60):
            await api.disconnected.wait()
        assert api.abandoned_count == 1


async def test_configured_limitations_are_rejected() -> None:
    options = {"streams": False, "edits": False, "without": ["quality", "output_format"]}
    async with serve_images_api() as api, open_images_api(api, **options) as generator:
        assert not generator.supports_edits and not generator.supports_masks
        generator.check(ImageRequest())
        for request, name in (
            (ImageRequest(partial_images=1), "partial_images"),
            (ImageRequest(quality="low"), "quality"),
            (ImageRequest(output_format="webp"), "output_format"),
        ):
            with pytest.raises(UnsupportedOption) as error:
                generator.check(request)
            assert error.value.field == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": True}, "image_generation.options"),
        ({"without": ["x"]}, "the tool has no field 'x'"),
    ],
)
def test_invalid_options_raise_setup_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        ImagesApi.open("http://h/v1", key=None, settings=options, fetcher=None, max_bytes=1)

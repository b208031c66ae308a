"""The ``image_generation`` provider: contracts, fields of the tool, and the images of an edit."""

from __future__ import annotations

import base64
from contextlib import aclosing
from typing import Any

import pytest

from antiphon.errors import InvalidRequest, ToolError
from antiphon.testing.image_generator_check import check_image_generator
from antiphon.testing.tool_check import ToolCheckCase, check_tool
from antiphon.tools.base import CallContext, ResponseContext, ToolProgress, ToolResult
from antiphon.tools.image_generation.base import Image, ImageRequest, read_image
from antiphon.tools.image_generation.encoding import convert_image
from antiphon.wire import items as it
from antiphon.wire.tools import ImageGeneration as Tool
from tests.attachments.samples import GIF, data_url, png

from .fake_generator import USAGE, FakeImageGenerator, image_provider, solid_image

CONTEXT = CallContext(tenant="t", response_id="r", call_id="c", max_result_bytes=1000)
RED, BLUE = png(color=(255, 0, 0)), png(color=(0, 0, 255))


def response_context(*items: it.Item) -> ResponseContext:
    return ResponseContext(tenant="t", response_id="r", items=items)


def user_message(*images: bytes, id: str = "msg_1") -> it.Message:
    parts = tuple(it.InputImage(image_url=data_url(image)) for image in images)
    return it.Message(id=id, role="user", content=(it.InputText(text="Look"), *parts))


def image_call(image: bytes, id: str = "ig_1") -> it.ImageGenerationCall:
    return it.ImageGenerationCall(id=id, result=base64.b64encode(image).decode())


async def run_calls(
    generator: FakeImageGenerator, tool: Tool, *calls: str, items: Any = (), **options: Any
) -> Any:
    """Run calls and return the events of the last one."""
    provider = image_provider(generator, **options)
    provider.check(tool, "tools[0]")
    steps: list[ToolProgress | ToolResult] = []
    async with provider.open(tool, response_context(*items)) as toolset:
        (function,) = toolset.functions
        for arguments in calls:
            assert function.handler is not None
            async with aclosing(function.handler(arguments, CONTEXT)) as events:
                steps = [step async for step in events]
    return steps


async def images_of_call(tool: Tool, arguments: str, *items: it.Item) -> list[bytes]:
    """Return the images that a call uses."""
    generator = FakeImageGenerator()
    await run_calls(generator, tool, arguments, items=items)
    return [image.content for image in generator.tasks[0].images]


async def test_provider_meets_the_tool_contract() -> None:
    case = ToolCheckCase(
        tool=Tool(partial_images=2),
        successful_call=("image_generation", '{"prompt": "A cat"}'),
        failing_call=("image_generation", '{"prompt": "A broken cat"}'),
        hanging_call=("image_generation", '{"prompt": "hang"}'),
        rejected_tools=(Tool(size="big"), Tool(complexity="low"), Tool(model="other")),
    )
    await check_tool(image_provider(FakeImageGenerator()), case)


async def test_fake_generator_meets_the_generator_contract() -> None:
    await check_image_generator(FakeImageGenerator(), ImageRequest(size=(4, 4)), previews=3)


async def test_successful_call_sends_previews_and_item_fields() -> None:
    tool = Tool(partial_images=2, quality="low", size="8x6")
    steps = await run_calls(FakeImageGenerator(extra_previews=2), tool, '{"prompt": " A cat "}')
    names = [step.name for step in steps[:-1]]
    assert names == ["generating", "partial_image", "partial_image"]
    partial = steps[2].fields
    assert partial["partial_image_index"] == 1 and partial["output_format"] == "png"
    assert read_image(base64.b64decode(partial["partial_image_b64"])) is not None
    result = steps[-1]
    assert result.usage == {"image_gen": USAGE}
    fields = dict(result.fields)
    image = read_image(base64.b64decode(fields.pop("result")))
    assert isinstance(image, Image) and image.size == "8x6"
    assert fields == {
        "action": "generate",
        "background": "auto",
        "output_format": "png",
        "quality": "low",
        "revised_prompt": "A cat",
        "size": "8x6",
    }
    assert result.text == "Image 1 (8x6 png) was generated, and the user sees it."


async def test_moderated_image_has_openai_error_fields() -> None:
    result = (await run_calls(FakeImageGenerator(), Tool(), '{"prompt": "moderated"}'))[-1]
    assert result.failed and "This is against the rules." in result.text
    assert result.fields["error"] == {
        "type": "image_generation_user_error",
        "code": "moderation_blocked",
        "message": "This is against the rules.",
        "param": None,
    }


async def test_image_above_max_bytes_fails() -> None:
    result = (await run_calls(FakeImageGenerator(), Tool(), '{"prompt": "x"}', max_bytes=10))[-1]
    assert result.failed and "too large" in result.text


# --- images of an edit ---------------------------------------------------------------------------


async def test_images_are_numbered_in_conversation_order() -> None:
    items = (user_message(RED, BLUE), image_call(GIF))
    for numbers, expected in {
        "[1]": [RED],
        "[2, 3]": [BLUE, GIF],
        "[-1]": [GIF],
        "2": [BLUE],
        '["1", 1]': [RED],
        "null": [],
    }.items():
        arguments = f'{{"prompt": "x", "images": {numbers}}}'
        assert await images_of_call(Tool(), arguments, *items) == expected, numbers
    for numbers in ("[0]", "[4]", "[-4]", '"cat"', '[{"a": 1}]', "[1e999]"):
        with pytest.raises(ToolError):
            await images_of_call(Tool(), f'{{"prompt": "x", "images": {numbers}}}', *items)


async def test_edit_without_numbers_uses_the_latest_images() -> None:
    arguments, edit = '{"prompt": "x"}', Tool(action="edit")
    assert await images_of_call(edit, arguments, image_call(GIF), user_message(RED, BLUE)) == [
        RED,
        BLUE,
    ]
    assert await images_of_call(edit, arguments, user_message(RED), image_call(GIF)) == [GIF]
    assert await images_of_call(
        edit, arguments, image_call(GIF), user_message(RED), image_call(GIF)
    ) == [GIF]
    result = it.FunctionCallOutput(
        call_id="c", output=(it.InputImage(image_url=data_url(BLUE)), it.InputText(text="there"))
    )
    assert await images_of_call(edit, arguments, user_message(RED), result) == [BLUE]


async def test_images_of_a_continued_response_keep_their_numbers() -> None:
    """A response that was interrupted after its first image continues on another server."""
    generator = FakeImageGenerator()
    response = ResponseContext(
        tenant="t",
        response_id="r",
        items=(user_message(RED),),
        interrupted_items=(image_call(GIF),),
    )
    async with image_provider(generator).open(Tool(action="edit"), response) as toolset:
        (function,) = toolset.functions
        assert function.handler is not None
        call = function.handler('{"prompt": "x", "images": [2]}', CONTEXT)
        async with aclosing(call) as events:
            steps = [step async for step in events]
    assert [image.content for image in generator.tasks[0].images] == [GIF]
    assert isinstance(steps[-1], ToolResult) and steps[-1].text.startswith("Image 3 ")


async def test_image_of_an_earlier_call_can_be_edited() -> None:
    generator = FakeImageGenerator()
    edit_call = '{"prompt": "y", "images": [-1]}'
    steps = await run_calls(
        generator, Tool(), '{"prompt": "x"}', edit_call, items=(user_message(RED),)
    )
    assert generator.tasks[1].images == (solid_image(color=(9, 9, 1)),)
    assert steps[-1].fields["action"] == "edit" and steps[-1].text.startswith("Image 3 ")


async def test_uploaded_image_is_read_only_for_its_tenant() -> None:
    uploads = {("t", "file-1"): ("a.png", RED), ("other", "file-2"): ("b.png", BLUE)}
    edit = Tool(action="edit")
    for file_id, exists in {"file-1": True, "file-2": False}.items():
        part = it.InputImage(file_id=file_id)
        item = it.Message(role="user", content=(part,))
        generator = FakeImageGenerator()
        arguments = run_calls(generator, edit, '{"prompt": "x"}', items=(item,), uploads=uploads)
        if exists:
            await arguments
            assert generator.tasks[0].images[0].content == RED
        else:
            with pytest.raises(ToolError, match="file-2"):
                await arguments


async def test_invalid_image_raises_tool_error() -> None:
    for url in ("data:image/png;base64,AAAA", "no base64!", "https://a.example/x.png", ""):
        item = it.Message(role="user", content=(it.InputImage(image_url=url),))
        with pytest.raises(ToolError, match="cannot be read"):
            await images_of_call(Tool(action="edit"), '{"prompt": "x"}', item)


async def test_image_numbers_are_ignored_without_images() -> None:
    assert await images_of_call(Tool(), '{"prompt": "x", "images": [1]}') == []


async def test_function_without_edits_has_no_images_parameter() -> None:
    for provider, tool in (
        (FakeImageGenerator(supports_edits=False), Tool()),
        (FakeImageGenerator(), Tool(action="generate")),
    ):
        async with image_provider(provider).open(
            tool, response_context(user_message(RED))
        ) as toolset:
            (function,) = toolset.functions
            assert function.tool.parameters["properties"].keys() == {"prompt"}  # type: ignore[union-attr,index]
        await run_calls(
            provider, tool, '{"prompt": "x", "images": [1]}', items=(user_message(RED),)
        )
        assert provider.tasks[0].images == ()


# --- the fields of the tool ----------------------------------------------------------------------


async def test_mask_is_passed_with_the_edited_image() -> None:
    tool = Tool(input_image_mask={"image_url": data_url(BLUE)})
    generator = FakeImageGenerator()
    await run_calls(generator, tool, '{"prompt": "x"}', items=(user_message(RED),))
    (order,) = generator.tasks
    assert order.mask is not None and order.mask.content == BLUE
    assert [image.content for image in order.images] == [RED]


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({"action": "paint"}, "action"),
        ({"background": "blue"}, "background"),
        ({"background": "transparent", "output_format": "jpeg"}, "background"),
        ({"complexity": "high"}, "complexity"),
        ({"complexity": {}}, "complexity"),
        ({"frame_count": 3}, "frame_count"),
        ({"frame_count": 17, "output_format": "gif"}, "frame_count"),
        ({"frame_duration_ms": 0, "output_format": "gif"}, "frame_duration_ms"),
        ({"input_fidelity": "medium"}, "input_fidelity"),
        ({"input_image_mask": {}}, "input_image_mask"),
        ({"input_image_mask": {"url": "x"}}, "input_image_mask.url"),
        ({"input_image_mask": {"image_url": 1}}, "input_image_mask.image_url"),
        ({"input_image_mask": {"file_id": "x"}, "action": "generate"}, "input_image_mask"),
        ({"input_image_mask": {"file_id": "x"}, "output_format": "gif"}, "input_image_mask"),
        ({"model": "gpt-image-9"}, "model"),
        ({"moderation": "none"}, "moderation"),
        ({"output_compression": 50}, "output_compression"),
        ({"output_format": "bmp"}, "output_format"),
        ({"partial_images": 1, "output_format": "gif"}, "partial_images"),
        ({"quality": "best"}, "quality"),
        ({"size": "0x8"}, "size"),
        ({"size": "99999x99999"}, "size"),
        ({"svg": {}}, "svg"),
        ({"svg": {"style": 1}, "output_format": "svg"}, "svg"),
        ({"svg": {"reasoning": 1}, "output_format": "svg"}, "svg.reasoning"),
        ({"svg": {"reasoning": {"effort": "x"}}, "output_format": "svg"}, "svg.reasoning.effort"),
    ],
)
async def test_invalid_field_is_rejected_with_its_path(tool: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        image_provider(FakeImageGenerator()).check(Tool(**tool), "tools[2]")
    assert error.value.param == f"tools[2].{field}"


async def test_all_fields_reach_the_generator() -> None:
    fields = {
        "background": "opaque",
        "input_fidelity": "high",
        "model": "fine",
        "moderation": "low",
        "output_compression": 80,
        "output_format": "webp",
        "partial_images": 1,
        "quality": "high",
    }
    generator = FakeImageGenerator()
    await run_calls(
        generator,
        Tool(**fields, size="16x32", action="auto"),
        '{"prompt": "x"}',
        models={"fine": "painter-2"},
    )
    assert generator.tasks[0].request == ImageRequest(
        **{**fields, "model": "painter-2"}, size=(16, 32)
    )
    frames = {"output_format": "gif", "frame_count": 4, "frame_duration_ms": 100}
    await run_calls(generator, Tool(**frames), '{"prompt": "x"}', model="usual")
    assert generator.tasks[1].request == ImageRequest(**frames, model="usual")
    svg = {"output_format": "svg", "svg": {"reasoning": {"effort": "low"}}}
    await run_calls(generator, Tool(**svg, quality="auto", size="auto"), '{"prompt": "x"}')
    assert generator.tasks[2].request == ImageRequest(**svg)


async def test_unsupported_edits_and_masks_are_rejected() -> None:
    mask = {"image_url": data_url(RED)}
    for generator, tool, field in (
        (FakeImageGenerator(supports_edits=False), Tool(action="edit"), "action"),
        (FakeImageGenerator(supports_edits=False), Tool(input_image_mask=mask), "input_image_mask"),
        (FakeImageGenerator(supports_masks=False), Tool(input_image_mask=mask), "input_image_mask"),
    ):
        with pytest.raises(InvalidRequest) as error:
            image_provider(generator).check(tool, "tools[0]")
        assert error.value.param == f"tools[0].{field}"


async def test_missing_image_or_mask_is_rejected_before_the_run() -> None:
    provider = image_provider(FakeImageGenerator(), {("t", "file-1"): ("a.gif", GIF)})
    for tool, items, field in (
        (Tool(action="edit"), (), "action"),
        (Tool(input_image_mask={"file_id": "file-0"}), (user_message(RED),), "input_image_mask"),
        (Tool(input_image_mask={"file_id": "file-1"}), (user_message(RED),), "input_image_mask"),
        (Tool(input_image_mask={"image_url": "AAAA"}), (user_message(RED),), "input_image_mask"),
    ):
        with pytest.raises(InvalidRequest) as error:
            await provider.check_access(tool, response_context(*items), "tools[1]")
        assert error.value.param == f"tools[1].{field}"
    await provider.check_access(
        Tool(action="edit"), response_context(user_message(RED)), "tools[1]"
    )


@pytest.mark.parametrize("output_format", ["jpeg", "webp"])
async def test_image_is_converted_to_the_requested_format(output_format: str) -> None:
    tool = Tool(output_format=output_format, output_compression=50, size="16x16")
    result = (await run_calls(FakeImageGenerator(), tool, '{"prompt": "x"}'))[-1]
    image = read_image(base64.b64decode(result.fields["result"]))
    assert image is not None and image.format == output_format == result.fields["output_format"]
    assert image.size == "16x16"


async def test_unconvertible_image_keeps_its_format() -> None:
    tool = Tool(output_format="svg")
    result = (await run_calls(FakeImageGenerator(), tool, '{"prompt": "x"}'))[-1]
    assert result.fields["output_format"] == "png"
    broken = Image(b"\x89PNG", "png", 2, 3)
    assert convert_image(broken, ImageRequest(output_format="webp")) is broken

"""The provider of image_generation: the contracts, the fields of the tool, the images it edits."""

from __future__ import annotations

import base64
from contextlib import aclosing
from typing import Any

import pytest

from antiphon.errors import InvalidRequest, ToolError
from antiphon.testing.image_generator_check import check_image_generator
from antiphon.testing.tool_check import ToolTrial, check_tool
from antiphon.tools.base import CallContext, ResponseContext, ToolProgress, ToolResult
from antiphon.tools.image_generation.base import Image, ImageRequest, read_image
from antiphon.tools.image_generation.encoding import convert_image
from antiphon.wire import items as it
from antiphon.wire.tools import ImageGeneration as Tool
from tests.attachments.samples import GIF, data_url, png

from .painter import USED, Painter, painted, provider

CONTEXT = CallContext(tenant="t", response_id="r", call_id="c", max_result_bytes=1000)
RED, BLUE = png(color=(255, 0, 0)), png(color=(0, 0, 255))


def opening(*items: it.Item) -> ResponseContext:
    return ResponseContext(tenant="t", response_id="r", items=items)


def sent(*images: bytes, id: str = "msg_1") -> it.Message:
    parts = tuple(it.InputImage(image_url=data_url(image)) for image in images)
    return it.Message(id=id, role="user", content=(it.InputText(text="Look"), *parts))


def made(image: bytes, id: str = "ig_1") -> it.ImageGenerationCall:
    return it.ImageGenerationCall(id=id, result=base64.b64encode(image).decode())


async def called(painter: Painter, tool: Tool, *calls: str, items: Any = (), **more: Any) -> Any:
    """The steps of the last of these calls."""
    over = provider(painter, **more)
    over.check(tool, "tools[0]")
    steps: list[ToolProgress | ToolResult] = []
    async with over.open(tool, opening(*items)) as toolset:
        (offer,) = toolset.functions
        for arguments in calls:
            assert offer.handler is not None
            async with aclosing(offer.handler(arguments, CONTEXT)) as running:
                steps = [step async for step in running]
    return steps


async def used(tool: Tool, arguments: str, *items: it.Item) -> list[bytes]:
    """The images that a call works on."""
    painter = Painter()
    await called(painter, tool, arguments, items=items)
    return [image.content for image in painter.orders[0].images]


async def test_it_keeps_the_contract_of_tools() -> None:
    trial = ToolTrial(
        tool=Tool(partial_images=2),
        successful_call=("image_generation", '{"prompt": "A cat"}'),
        failing_call=("image_generation", '{"prompt": "A broken cat"}'),
        hanging_call=("image_generation", '{"prompt": "hang"}'),
        rejected_tools=(Tool(size="big"), Tool(complexity="low"), Tool(model="other")),
    )
    await check_tool(provider(Painter()), trial)


async def test_the_painter_keeps_the_contract_of_makers() -> None:
    await check_image_generator(Painter(), ImageRequest(size=(4, 4)), previews=3)


async def test_what_was_made_is_told() -> None:
    tool = Tool(partial_images=2, quality="low", size="8x6")
    steps = await called(Painter(more=2), tool, '{"prompt": " A cat "}')
    names = [step.name for step in steps[:-1]]
    assert names == ["generating", "partial_image", "partial_image"]
    partial = steps[2].fields
    assert partial["partial_image_index"] == 1 and partial["output_format"] == "png"
    assert read_image(base64.b64decode(partial["partial_image_b64"])) is not None
    result = steps[-1]
    assert result.used == {"image_gen": USED}
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
    assert result.text == "Image 1 (8x6 png) is made, and the user sees it."


async def test_what_moderation_stops_is_told_as_openai_does() -> None:
    result = (await called(Painter(), Tool(), '{"prompt": "moderated"}'))[-1]
    assert result.failed and "This is against the rules." in result.text
    assert result.fields["error"] == {
        "type": "image_generation_user_error",
        "code": "moderation_blocked",
        "message": "This is against the rules.",
        "param": None,
    }


async def test_an_image_that_is_too_large_is_none() -> None:
    result = (await called(Painter(), Tool(), '{"prompt": "x"}', max_bytes=10))[-1]
    assert result.failed and "too large" in result.text


# --- which images are edited ---------------------------------------------------------------------


async def test_images_are_numbered_as_they_stand() -> None:
    items = (sent(RED, BLUE), made(GIF))
    for numbers, expected in {
        "[1]": [RED],
        "[2, 3]": [BLUE, GIF],
        "[-1]": [GIF],
        "2": [BLUE],
        '["1", 1]': [RED],
        "null": [],
    }.items():
        asked = f'{{"prompt": "x", "images": {numbers}}}'
        assert await used(Tool(), asked, *items) == expected, numbers
    for wrong in ("[0]", "[4]", "[-4]", '"cat"', '[{"a": 1}]', "[1e999]"):
        with pytest.raises(ToolError):
            await used(Tool(), f'{{"prompt": "x", "images": {wrong}}}', *items)


async def test_an_edit_is_of_what_came_last() -> None:
    asked, edit = '{"prompt": "x"}', Tool(action="edit")
    assert await used(edit, asked, made(GIF), sent(RED, BLUE)) == [RED, BLUE]
    assert await used(edit, asked, sent(RED), made(GIF)) == [GIF]
    assert await used(edit, asked, made(GIF), sent(RED), made(GIF)) == [GIF]
    result = it.FunctionCallOutput(
        call_id="c", output=(it.InputImage(image_url=data_url(BLUE)), it.InputText(text="there"))
    )
    assert await used(edit, asked, sent(RED), result) == [BLUE]


async def test_what_was_just_made_can_be_edited() -> None:
    painter = Painter()
    again = '{"prompt": "y", "images": [-1]}'
    steps = await called(painter, Tool(), '{"prompt": "x"}', again, items=(sent(RED),))
    assert painter.orders[1].images == (painted(color=(9, 9, 1)),)
    assert steps[-1].fields["action"] == "edit" and steps[-1].text.startswith("Image 3 ")


async def test_an_image_of_a_file_is_read_for_its_tenant() -> None:
    uploads = {("t", "file-1"): ("a.png", RED), ("other", "file-2"): ("b.png", BLUE)}
    edit = Tool(action="edit")
    for file_id, is_there in {"file-1": True, "file-2": False}.items():
        part = it.InputImage(file_id=file_id)
        item = it.Message(role="user", content=(part,))
        painter = Painter()
        asked = called(painter, edit, '{"prompt": "x"}', items=(item,), uploads=uploads)
        if is_there:
            await asked
            assert painter.orders[0].images[0].content == RED
        else:
            with pytest.raises(ToolError, match="file-2"):
                await asked


async def test_what_is_no_image_is_told_to_the_model() -> None:
    for url in ("data:image/png;base64,AAAA", "no base64!", "https://a.example/x.png", ""):
        item = it.Message(role="user", content=(it.InputImage(image_url=url),))
        with pytest.raises(ToolError, match="cannot be read"):
            await used(Tool(action="edit"), '{"prompt": "x"}', item)


async def test_where_there_are_no_images_a_new_one_is_made() -> None:
    assert await used(Tool(), '{"prompt": "x", "images": [1]}') == []


async def test_who_may_only_make_new_ones_is_offered_no_numbers() -> None:
    for over, tool in ((Painter(edits=False), Tool()), (Painter(), Tool(action="generate"))):
        async with provider(over).open(tool, opening(sent(RED))) as toolset:
            (offer,) = toolset.functions
            assert offer.tool.parameters["properties"].keys() == {"prompt"}  # type: ignore[union-attr,index]
        await called(over, tool, '{"prompt": "x", "images": [1]}', items=(sent(RED),))
        assert over.orders[0].images == ()


# --- the fields of the tool ----------------------------------------------------------------------


async def test_a_mask_comes_with_what_it_is_of() -> None:
    tool = Tool(input_image_mask={"image_url": data_url(BLUE)})
    painter = Painter()
    await called(painter, tool, '{"prompt": "x"}', items=(sent(RED),))
    (order,) = painter.orders
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
async def test_what_cannot_be_is_refused_by_name(tool: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        provider(Painter()).check(Tool(**tool), "tools[2]")
    assert refused.value.param == f"tools[2].{field}"


async def test_every_field_reaches_the_maker() -> None:
    given = {
        "background": "opaque",
        "input_fidelity": "high",
        "model": "fine",
        "moderation": "low",
        "output_compression": 80,
        "output_format": "webp",
        "partial_images": 1,
        "quality": "high",
    }
    painter = Painter()
    await called(
        painter,
        Tool(**given, size="16x32", action="auto"),
        '{"prompt": "x"}',
        models={"fine": "painter-2"},
    )
    assert painter.orders[0].request == ImageRequest(
        **{**given, "model": "painter-2"}, size=(16, 32)
    )
    frames = {"output_format": "gif", "frame_count": 4, "frame_duration_ms": 100}
    await called(painter, Tool(**frames), '{"prompt": "x"}', model="usual")
    assert painter.orders[1].request == ImageRequest(**frames, model="usual")
    svg = {"output_format": "svg", "svg": {"reasoning": {"effort": "low"}}}
    await called(painter, Tool(**svg, quality="auto", size="auto"), '{"prompt": "x"}')
    assert painter.orders[2].request == ImageRequest(**svg)


async def test_what_its_maker_cannot_do_is_refused() -> None:
    mask = {"image_url": data_url(RED)}
    for painter, tool, field in (
        (Painter(edits=False), Tool(action="edit"), "action"),
        (Painter(edits=False), Tool(input_image_mask=mask), "input_image_mask"),
        (Painter(masks=False), Tool(input_image_mask=mask), "input_image_mask"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            provider(painter).check(tool, "tools[0]")
        assert refused.value.param == f"tools[0].{field}"


async def test_what_is_not_there_is_refused_before_anything_runs() -> None:
    over = provider(Painter(), {("t", "file-1"): ("a.gif", GIF)})
    for tool, items, field in (
        (Tool(action="edit"), (), "action"),
        (Tool(input_image_mask={"file_id": "file-0"}), (sent(RED),), "input_image_mask"),
        (Tool(input_image_mask={"file_id": "file-1"}), (sent(RED),), "input_image_mask"),
        (Tool(input_image_mask={"image_url": "AAAA"}), (sent(RED),), "input_image_mask"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            await over.check_access(tool, opening(*items), "tools[1]")
        assert refused.value.param == f"tools[1].{field}"
    await over.check_access(Tool(action="edit"), opening(sent(RED)), "tools[1]")


@pytest.mark.parametrize("wanted", ["jpeg", "webp"])
async def test_who_makes_another_format_has_it_rewritten(wanted: str) -> None:
    tool = Tool(output_format=wanted, output_compression=50, size="16x16")
    result = (await called(Painter(), tool, '{"prompt": "x"}'))[-1]
    image = read_image(base64.b64decode(result.fields["result"]))
    assert image is not None and image.format == wanted == result.fields["output_format"]
    assert image.size == "16x16"


async def test_what_cannot_be_rewritten_is_told_as_it_is() -> None:
    tool = Tool(output_format="svg")
    result = (await called(Painter(), tool, '{"prompt": "x"}'))[-1]
    assert result.fields["output_format"] == "png"
    broken = Image(b"\x89PNG", "png", 2, 3)
    assert convert_image(broken, ImageRequest(output_format="webp")) is broken

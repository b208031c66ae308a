"""image_generation: images are generated and edited, in every request mode."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from antiphon.runs.tool_loop.executor import ToolLimits
from antiphon.store.base import Store
from antiphon.tools.image_generation.base import ImageRequest
from tests.attachments.samples import data_url, png
from tests.conformance.asgi_clients import StreamingClient
from tests.conformance.conftest import Serve
from tests.conformance.server import Ask, Server, engine, local
from tests.conformance.test_background import poll
from tests.conformance.test_tool_search import rendered_prompts, tool_call
from tests.harness import official_client
from tests.tools.image_generation.fake_generator import (
    USAGE,
    FakeImageGenerator,
    image_provider,
    solid_image,
)

TOOL = {"type": "image_generation", "size": "4x4"}
RED = png(color=(255, 0, 0))
ZEROS = {"num_requests": 0}


def image_call_text(prompt: str, **more: Any) -> str:
    return tool_call("image_generation", {"prompt": prompt, **more})


def server_options(generator: FakeImageGenerator, **more: Any) -> dict[str, Any]:
    return {"providers": {"image_generation": image_provider(generator)}, **more}


@pytest.mark.requirement("API-IMAGE-GENERATION")
async def test_image_is_generated_and_streamed(serve: Serve, ask: Ask) -> None:
    generator = FakeImageGenerator()
    server = serve(
        local(engine([image_call_text("A cat"), "Here it is."])), **server_options(generator)
    )
    answer = await ask(server, tools=[{**TOOL, "partial_images": 2, "quality": "low"}])
    image, message = answer.output
    assert base64.b64decode(image.pop("result")) == png(4, 4, (9, 9, 1))
    assert image.pop("id").startswith("ig_") and image == {
        "type": "image_generation_call",
        "status": "completed",
        "action": "generate",
        "background": "auto",
        "output_format": "png",
        "quality": "low",
        "revised_prompt": "A cat",
        "size": "4x4",
    }
    assert message["content"][0]["text"] == "Here it is."
    assert answer.terminal_response["tool_usage"] == {"image_gen": USAGE, "web_search": ZEROS}
    prompt = rendered_prompts(server)[1]
    assert "Image 1 (4x4 png) was generated" in prompt and "iVBOR" not in prompt
    if answer.events:
        types = [e["type"].removeprefix("response.") for e in answer.events]
        at = types.index("image_generation_call.in_progress")
        assert types[at - 1 : at + 6] == [
            "output_item.added",
            "image_generation_call.in_progress",
            "image_generation_call.generating",
            "image_generation_call.partial_image",
            "image_generation_call.partial_image",
            "image_generation_call.completed",
            "output_item.done",
        ]
        second = answer.events[at + 3]
        assert second["partial_image_index"] == 1
        assert base64.b64decode(second["partial_image_b64"]) == solid_image(color=(1, 0, 0)).content
        assert (second["size"], second["quality"], second["output_format"]) == ("2x3", "low", "png")


@pytest.mark.requirement("API-IMAGE-GENERATION-FAILS")
@pytest.mark.parametrize(
    ("prompt", "code", "expected"),
    [
        ("broken", "image_generation_failed", "The upstream failed."),
        ("moderated", "moderation_blocked", "This is against the rules."),
        ("", "image_generation_failed", "'prompt' is missing."),
    ],
)
async def test_failure_sets_the_item_and_informs_the_model(
    serve: Serve, ask: Ask, prompt: str, code: str, expected: str
) -> None:
    server = serve(
        local(engine([image_call_text(prompt), "Sorry."])), **server_options(FakeImageGenerator())
    )
    answer = await ask(server, tools=[TOOL])
    image = answer.output[0]
    # a string, as the AI SDK wants it
    assert (image["status"], image["result"]) == ("failed", "")
    assert (image["error"]["code"], image["error"]["message"]) == (code, expected)
    assert answer.terminal_response["status"] == "completed" and answer.text == "Sorry."
    assert expected in rendered_prompts(server)[1] and "tool_usage" not in answer.terminal_response
    if answer.events:
        types = [e["type"].removeprefix("response.") for e in answer.events]
        assert "image_generation_call.completed" not in types


@pytest.mark.requirement("API-IMAGE-GENERATION-FAILS")
async def test_slow_generation_times_out(serve: Serve, ask_foreground: Ask) -> None:
    generator = FakeImageGenerator()
    server = serve(
        local(engine([image_call_text("hang"), "Sorry."])),
        **server_options(generator, tool_limits=ToolLimits(call_timeout_s=0.05)),
    )
    answer = await ask_foreground(server, tools=[TOOL])
    assert answer.output[0]["status"] == "failed" and generator.abandoned_count == 1
    assert "took too long" in answer.output[0]["error"]["message"]


async def test_call_cut_by_the_token_limit_generates_no_image(serve: Serve, ask: Ask) -> None:
    server = serve(
        local(engine([image_call_text("A cat")])), **server_options(FakeImageGenerator())
    )
    answer = await ask(server, tools=[TOOL], max_output_tokens=80)
    assert answer.terminal_response["status"] == "incomplete"
    (image,) = answer.output
    assert (image["type"], image["status"], image["result"]) == (
        "image_generation_call",
        "failed",
        "",
    )


@pytest.mark.requirement("API-IMAGE-GENERATION-CHOICE")
async def test_tool_choice_forces_the_call(serve: Serve, ask_foreground: Ask) -> None:
    scripted_engine = engine([image_call_text("A cat"), "There."])
    server = serve(local(scripted_engine), **server_options(FakeImageGenerator()))
    function = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    answer = await ask_foreground(
        server, tools=[TOOL, function], tool_choice={"type": "image_generation"}
    )
    assert answer.output[0]["type"] == "image_generation_call"
    first, second = (sampling.constraint for _, sampling in scripted_engine.requests)
    assert first is not None and first.needed and "image_generation" in first.lark
    assert '"f"' not in first.lark and (second is None or not second.needed)


async def test_client_function_keeps_its_name(serve: Serve, ask_foreground: Ask) -> None:
    generator = FakeImageGenerator()
    script = [
        tool_call("image_generation_", {"prompt": "A cat"}),
        tool_call("image_generation", {}),
    ]
    server = serve(local(engine(script)), **server_options(generator))
    function = {"type": "function", "name": "image_generation", "parameters": {"type": "object"}}
    answer = await ask_foreground(
        server, tools=[TOOL, function], tool_choice={"type": "image_generation"}
    )
    assert [item["type"] for item in answer.output] == ["image_generation_call", "function_call"]
    assert answer.output[0]["status"] == "completed" and len(generator.tasks) == 1


# --- edits ---------------------------------------------------------------------------------------


@pytest.mark.requirement("API-IMAGE-GENERATION-EDIT")
async def test_user_image_is_edited(serve: Serve, ask: Ask) -> None:
    generator = FakeImageGenerator()
    server = serve(
        local(engine([image_call_text("Bluer", images=[1]), "Done."])), **server_options(generator)
    )
    parts = [
        {"type": "input_text", "text": "Make it bluer"},
        {"type": "input_image", "image_url": data_url(RED)},
    ]
    answer = await ask(server, tools=[TOOL], input=[{"role": "user", "content": parts}])
    assert answer.output[0]["action"] == "edit"
    assert [image.content for image in generator.tasks[-1].images] == [RED]


@pytest.mark.requirement("API-IMAGE-GENERATION-TURNS")
async def test_generated_image_is_edited_in_the_next_response(
    serve: Serve, ask_foreground: Ask, store: Store
) -> None:
    generator = FakeImageGenerator()
    script = [
        image_call_text("A cat"),
        "A cat.",
        image_call_text("A blue cat", images=[1]),
        "Blue.",
    ]
    server = serve(local(engine(script)), on=store, **server_options(generator))
    first = await ask_foreground(server, tools=[TOOL])
    second = await ask_foreground(
        server,
        tools=[TOOL],
        previous_response_id=first.terminal_response["id"],
        input="Make it blue",
    )
    assert second.output[0]["action"] == "edit"
    assert generator.tasks[1].images == (solid_image(4, 4, (9, 9, 1)),)
    prompt = rendered_prompts(server)[-1]
    assert "A cat" in prompt and "iVBOR" not in prompt


@pytest.mark.requirement("API-IMAGE-GENERATION-TURNS")
@pytest.mark.parametrize("named", ["item_reference", "image_generation_call", "whole"])
async def test_image_can_be_referenced_by_id(
    serve: Serve, ask_foreground: Ask, store: Store, named: str
) -> None:
    generator = FakeImageGenerator()
    script = [image_call_text("A cat"), "A cat.", image_call_text("Blue"), "Blue."]
    server = serve(local(engine(script)), on=store, **server_options(generator))
    created = (await ask_foreground(server, tools=[TOOL])).output[0]
    image = created if named == "whole" else {"type": named, "id": created["id"]}
    answer = await ask_foreground(
        server,
        tools=[{**TOOL, "action": "edit"}],
        input=[{"role": "user", "content": "Make it blue"}, image],
    )
    assert answer.output[0]["action"] == "edit"
    assert generator.tasks[1].images == (solid_image(4, 4, (9, 9, 1)),)
    assert "iVBOR" not in rendered_prompts(server)[-1] and "A cat" in rendered_prompts(server)[-1]


async def test_unknown_image_is_rejected(serve: Serve, ask: Ask) -> None:
    server = serve(**server_options(FakeImageGenerator()))
    rejection = (
        await ask(server, tools=[TOOL], input=[{"type": "image_generation_call", "id": "ig_9"}])
    ).rejection
    assert (rejection["http"], rejection["param"]) == (404, "input")


@pytest.mark.requirement("API-IMAGE-GENERATION-FIELDS")
@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"action": "edit"}, "action"),
        ({"size": "big"}, "size"),
        ({"size": "9000x9000"}, "size"),
        ({"model": "gpt-image-9"}, "model"),
        ({"output_format": "bmp"}, "output_format"),
        ({"complexity": "low"}, "complexity"),
        ({"input_image_mask": {"file_id": "file-none"}}, "action"),
        ({"partial_images": 4}, "partial_images"),
    ],
)
async def test_unsupported_options_are_rejected(
    serve: Serve, ask: Ask, tool: Any, param: str
) -> None:
    server = serve(**server_options(FakeImageGenerator()))
    rejection = (await ask(server, tools=[{**TOOL, **tool}])).rejection
    assert (rejection["http"], rejection["param"]) == (400, f"tools[0].{param}")


async def test_tool_options_reach_the_generator(serve: Serve, ask_foreground: Ask) -> None:
    generator = FakeImageGenerator()
    server = serve(local(engine([image_call_text("A cat"), "There."])), **server_options(generator))
    tool = {**TOOL, "output_format": "webp", "output_compression": 70, "moderation": "low"}
    await ask_foreground(server, tools=[{**tool, "background": "transparent"}])
    assert generator.tasks[0].request == ImageRequest(
        size=(4, 4),
        output_format="webp",
        output_compression=70,
        moderation="low",
        background="transparent",
    )


# --- cancellation --------------------------------------------------------------------------------


@pytest.mark.requirement("API-IMAGE-GENERATION-STOPS")
async def test_disconnect_stops_the_generation(serve: Serve) -> None:
    generator = FakeImageGenerator()
    server: Server = serve(local(engine([image_call_text("hang")])), **server_options(generator))
    async with StreamingClient(server.app, model="tiny", tools=[TOOL]) as line:
        while "generating" not in (await line.event())["type"]:
            pass
        await generator.is_hanging.wait()
        line.disconnect()
    assert generator.abandoned_count == 1


@pytest.mark.requirement("API-IMAGE-GENERATION-STOPS")
async def test_cancelling_stops_it(serve: Serve, store: Store) -> None:
    generator = FakeImageGenerator()
    server = serve(local(engine([image_call_text("hang")])), on=store, **server_options(generator))
    async with official_client(server.app) as asking, asyncio.timeout(60):
        queued = await asking.responses.create(
            model="tiny",
            input="hi",
            background=True,
            tools=[TOOL],  # type: ignore[list-item]
        )
        await generator.is_hanging.wait()
        while not (await asking.responses.retrieve(queued.id)).output:
            await asyncio.sleep(0)
        await asking.responses.cancel(queued.id)
        ended = await poll(asking, queued.id)
        assert ended.status == "cancelled"
        assert [item.status for item in ended.output] == ["failed"]  # type: ignore[union-attr]
        while not generator.abandoned_count:
            await asyncio.sleep(0)


async def test_unstored_response_stores_no_image(
    serve: Serve, ask_foreground: Ask, store: Store
) -> None:
    server = serve(
        local(engine([image_call_text("A cat"), "There."])),
        on=store,
        **server_options(FakeImageGenerator()),
    )
    created = (await ask_foreground(server, tools=[TOOL], store=False)).output[0]
    assert created["result"]
    again = await ask_foreground(
        server, tools=[TOOL], input=[{"type": "item_reference", "id": created["id"]}]
    )
    assert again.rejection["http"] == 404

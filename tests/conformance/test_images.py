"""The Images API, through the official client."""

from __future__ import annotations

import base64
from typing import Any

import openai
import pytest
from openai.types import ImagesResponse

from antiphon.compat.images import parse_edit_form
from antiphon.errors import InvalidRequest
from antiphon.tools.image_generation.base import read_image
from tests.conformance.conftest import Clients
from tests.conformance.server import Server
from tests.tools.image_generation.fake_generator import (
    USAGE,
    FakeImageGenerator,
    image_provider,
    solid_image,
)

Json = dict[str, Any]
PICTURE = solid_image().content


@pytest.fixture
def generator() -> FakeImageGenerator:
    return FakeImageGenerator()


@pytest.fixture
def server_options(generator: FakeImageGenerator) -> Json:
    return {"providers": {"image_generation": image_provider(generator)}}


@pytest.mark.requirement("IM-GENERATE")
async def test_images_are_generated(
    server: Server, client_of: Clients, generator: FakeImageGenerator
) -> None:
    answer = await client_of(server.app).images.generate(
        prompt="A cat", n=2, size="4x5", output_format="png", quality="low"
    )
    ImagesResponse.model_validate(answer.model_dump(), strict=True)
    assert answer.data is not None and len(answer.data) == 2
    image = read_image(base64.b64decode(answer.data[0].b64_json or ""))
    assert image is not None and image.size == "4x5" == answer.size
    assert answer.usage is not None and answer.usage.total_tokens == 2 * USAGE["total_tokens"]
    assert [task.prompt for task in generator.tasks] == ["A cat"] * 2
    assert generator.tasks[0].request.quality == "low"
    await server.service.usage_counter.flush()
    usage = await server.client.get("/antiphon/usage")
    assert usage.status_code == 200


@pytest.mark.requirement("IM-GENERATE")
async def test_url_is_a_data_url(server: Server, client_of: Clients) -> None:
    answer = await client_of(server.app).images.generate(prompt="A cat", response_format="url")
    assert answer.data is not None
    assert (answer.data[0].url or "").startswith("data:image/png;base64,")


@pytest.mark.requirement("IM-STREAM")
async def test_previews_are_streamed(server: Server, client_of: Clients) -> None:
    stream = await client_of(server.app).images.generate(
        prompt="A cat", stream=True, partial_images=2
    )
    events = [event async for event in stream]
    assert [event.type for event in events] == [
        "image_generation.partial_image",
        "image_generation.partial_image",
        "image_generation.completed",
    ]
    first, second, last = events
    assert first.type == second.type == "image_generation.partial_image"
    assert (first.partial_image_index, second.partial_image_index) == (0, 1)
    assert last.type == "image_generation.completed"
    assert last.usage.total_tokens == 30 and last.size == "2x3"


@pytest.mark.requirement("IM-EDIT")
async def test_images_are_edited_with_a_mask(
    server: Server, client_of: Clients, generator: FakeImageGenerator
) -> None:
    client = client_of(server.app)
    prompt = "x" * 10_000
    await client.images.edit(
        image=[("a.png", PICTURE), ("b.png", PICTURE)], mask=("m.png", PICTURE), prompt=prompt
    )
    task = generator.tasks[0]
    assert len(task.images) == 2 and task.mask is not None and task.prompt == prompt
    stream = await client.images.edit(image=("a.png", PICTURE), prompt="A cat", stream=True)
    assert [event.type async for event in stream] == ["image_edit.completed"]
    data_url = "data:image/png;base64," + base64.b64encode(PICTURE).decode()
    body = {"prompt": "A cat", "images": [{"image_url": data_url}]}
    reply = await server.client.post("/v1/images/edits", json=body)
    assert reply.status_code == 200 and len(generator.tasks[2].images) == 1


@pytest.mark.requirement("IM-REFUSED")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"n": 11}, "n"),
        ({"n": 2, "stream": True}, "n"),
        ({"size": "big"}, "size"),
        ({"quality": "best"}, "quality"),
        ({"output_format": "bmp"}, "output_format"),
        ({"model": "dall-e-9"}, "model"),
        ({"style": "vivid"}, "style"),
        ({"complexity": "high"}, "complexity"),
    ],
)
async def test_faulty_field_is_named(server: Server, fields: Json, param: str) -> None:
    body = {"prompt": "A cat", **fields}
    reply = await server.client.post("/v1/images/generations", json=body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


@pytest.mark.requirement("IM-REFUSED")
async def test_failures_are_errors(server: Server, client_of: Clients) -> None:
    client = client_of(server.app)
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.images.generate(prompt="moderated")
    assert refusal.value.code == "image_content_policy_violation"
    with pytest.raises(openai.InternalServerError):
        await client.images.generate(prompt="broken")
    with pytest.raises(openai.InternalServerError):
        await client.images.generate(prompt="broken", stream=True)
    stream = await client.images.generate(prompt="broken", stream=True, partial_images=1)
    with pytest.raises(openai.APIError, match="The upstream failed"):
        [event async for event in stream]
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.images.edit(image=("a.txt", b"text"), prompt="A cat")
    assert refusal.value.param == "image"
    reply = await server.client.post("/v1/images/variations")
    assert reply.status_code == 404 and "does not offer image variations" in reply.text


async def test_server_without_a_generator_says_so(serve: Any) -> None:
    reply = await serve().client.post("/v1/images/generations", json={"prompt": "A cat"})
    assert reply.status_code == 400
    assert "image_generation.url" in reply.json()["error"]["message"]


@pytest.mark.requirement("IM-EDIT")
def test_form_of_an_edit_has_the_options_of_an_image() -> None:
    request = parse_edit_form({"prompt": "A cat", "frame_count": "4", "complexity": "low"})
    assert (request.options.frame_count, request.options.complexity) == (4, "low")
    with pytest.raises(InvalidRequest) as refused:
        parse_edit_form({"prompt": "A cat", "svg[model]": "x"})
    assert refused.value.param == "svg"

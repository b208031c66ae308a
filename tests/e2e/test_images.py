"""image_generation: the real process, an Images API on loopback, the official client."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.attachments.samples import data_url, png
from tests.e2e.server import serving
from tests.real.embedded_model import smollm2
from tests.tools.image_generation.api import FakeImagesApi, serve_images_api

SCENES = """
[[scenes]]
when = "Draw a cat"
turns = [
'''<tool_call>
{"name": "image_generation", "arguments": {"prompt": "A small cat"}}
</tool_call>''',
'''There it is.''',
]

[[scenes]]
when = "Draw for ever"
turns = [
'''<tool_call>
{"name": "image_generation", "arguments": {"prompt": "hang"}}
</tool_call>''',
'''It did not work.''',
]

[[scenes]]
when = "Make it green"
turns = [
'''<tool_call>
{"name": "image_generation", "arguments": {"prompt": "Greener", "images": [-1]}}
</tool_call>''',
'''Greener now.''',
]
"""
CHOICE: Any = {"type": "image_generation"}
TOOL: Any = {**CHOICE, "size": "16x16", "partial_images": 2}
RED, GREEN = png(16, 16, (200, 0, 0)), png(16, 16, (0, 200, 0))


@asynccontextmanager
async def image_server(folder: Path, url: str, model: str = "") -> AsyncIterator[AsyncOpenAI]:
    (folder / "scenes.toml").write_text(SCENES)
    settings = (
        f'image_generation.url = "{url}"\n'
        'image_generation.key = "sk-images"\nimage_generation.model = "paints"\n'
    )
    model = model or f'[models.replay]\nengine = "replay"\nsource = "{folder}/scenes.toml"\n'
    server = serving(folder / "server", f"lease_s = 1\n{settings}", model=model)
    running = await asyncio.to_thread(server.__enter__)
    try:
        async with AsyncOpenAI(base_url=running.url, api_key="x", max_retries=0) as client:
            client.kill = running.kill  # type: ignore[attr-defined]
            yield client
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)


async def ended(client: AsyncOpenAI, response_id: str) -> Any:
    async with (
        asyncio.timeout(60),
        await client.responses.retrieve(response_id, stream=True) as events,
    ):
        async for _ in events:
            pass
    return await client.responses.retrieve(response_id)


def image_of(response: Any) -> bytes:
    """Return the image of a response."""
    (image,) = [item for item in response.output if item.type == "image_generation_call"]
    assert image.status == "completed", image
    return base64.b64decode(image.result)


@pytest.mark.requirement(
    "API-IMAGE-GENERATION", "API-IMAGE-GENERATION-CHOICE", "API-IMAGE-GENERATION-TURNS"
)
async def test_images_are_generated_and_edited(tmp_path: Path) -> None:
    async with serve_images_api() as api, image_server(tmp_path, api.url) as client:
        body: Any = {"input": "Draw a cat", "tools": [TOOL], "tool_choice": CHOICE}
        body["model"] = "replay"
        plain = await client.responses.create(**body)
        assert image_of(plain) == RED and plain.output_text == "There it is."
        assert plain.tool_usage is not None and plain.tool_usage.image_gen.total_tokens == 42
        assert api.requests[0].key == "Bearer sk-images"
        assert api.requests[0].fields["model"] == "paints"

        async with client.responses.stream(**body) as stream:
            events = [event async for event in stream]
            streamed = await stream.get_final_response()
        assert image_of(streamed) == RED
        partial = [e for e in events if e.type == "response.image_generation_call.partial_image"]
        assert [base64.b64decode(e.partial_image_b64) for e in partial] == [
            png(8, 6, (n, 0, 0)) for n in range(2)
        ]

        queued = await client.responses.create(**body, background=True)
        assert image_of(await ended(client, queued.id)) == RED

        await _changes(client, api, plain)


async def _changes(client: AsyncOpenAI, api: FakeImagesApi, before: Any) -> None:
    created = next(item for item in before.output if item.type == "image_generation_call")
    words = {"role": "user", "content": "Make it green"}
    picture = {"type": "input_image", "image_url": data_url(RED)}
    attached = {"role": "user", "content": [{"type": "input_text", "text": "Make it green"}]}
    attached["content"].append(picture)  # type: ignore[attr-defined]
    named = {"type": "image_generation_call", "id": created.id}
    ways: list[dict[str, Any]] = [
        {"input": "Make it green", "previous_response_id": before.id},
        {"input": [named, words]},
        {"input": [created.to_dict(), words]},
        {"input": [attached]},
    ]
    for way in ways:
        changed = await client.responses.create(tools=[TOOL], **way)
        assert image_of(changed) == GREEN and changed.output_text == "Greener now."
        assert [file[3] for file in api.requests[-1].files] == [RED]


@pytest.mark.requirement("API-IMAGE-GENERATION-FAILS")
async def test_image_call_fails_when_its_server_dies(
    tmp_path: Path,
) -> None:
    async with serve_images_api() as api:
        async with image_server(tmp_path, api.url) as client:
            body: Any = {"input": "Draw for ever", "tools": [TOOL], "background": True}
            queued = await client.responses.create(**body)
            events = await client.responses.retrieve(queued.id, stream=True)
            async with asyncio.timeout(60):
                async for event in events:
                    if event.type == "response.image_generation_call.generating":
                        break
            await asyncio.to_thread(client.kill)  # type: ignore[attr-defined]
        async with image_server(tmp_path, api.url) as client:
            response = await ended(client, queued.id)
        image = response.output[0]
        assert (image.status, image.result) == (
            "failed",
            "",
        ) and "interrupted" in image.error.message
        assert response.status == "completed" and response.output_text == "It did not work."
        assert len(api.requests) <= 1  # it is not made again


@pytest.mark.e2e
@pytest.mark.requirement("API-IMAGE-GENERATION-CHOICE")
async def test_forced_tool_choice_generates_an_image(tmp_path: Path) -> None:
    source = await asyncio.to_thread(smollm2)
    model = f'[models.smollm2]\nsource = "{source}"\nthreads = 1\ncontext_size = 2048\n'
    async with serve_images_api() as api, image_server(tmp_path, api.url, model) as client:
        response = await client.responses.create(
            input="Draw a small cat.",
            tools=[{**TOOL, "action": "generate"}],
            tool_choice=CHOICE,
            parallel_tool_calls=False,
            temperature=0,
            max_output_tokens=50,
        )
        assert image_of(response) == RED

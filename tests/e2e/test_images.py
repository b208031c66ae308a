"""Images, files and adapters on a real server with the real model, by the official client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from antiphon.testing.models import smollm2
from tests.attachments.samples import data_url, pdf, png
from tests.e2e.server import Server, serving
from tests.engines.gguf_files import IMAGE_TOKENS, write_adapter, write_projector

pytestmark = pytest.mark.model

RED, BLUE = data_url(png(28, 28, (250, 0, 0))), data_url(png(60, 20, (0, 0, 250)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("seeing")
    projector = write_projector(folder / "mmproj.gguf", 576)
    adapter = write_adapter(folder / "pirate.gguf", 576, 30)
    model = (
        f'[models.seeing]\nsource = "{smollm2()}"\nprojector = "{projector}"\n'
        f'adapters = {{ pirate = "{adapter}" }}\n'
        "threads = 1\ncontext_size = 1024\nparallel = 2\ntemperature = 0\n"
        f'[models.blind]\nsource = "{smollm2()}"\nimages = "refuse"\n'
        "threads = 1\ncontext_size = 512\nparallel = 1\n"
    )
    with serving(folder, model=model) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def relay(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """Another server, in front of the first."""
    model = "".join(
        f'[models.{engine}]\nsource = "{server.url}"\nengine = "{engine}"\n'
        'upstream_model = "seeing"\n'
        for engine in ("chat_completions", "responses")
    )
    with (
        serving(tmp_path_factory.mktemp("relay"), model=model) as running,
        OpenAI(base_url=running.url, api_key="none", max_retries=0, timeout=60) as made,
    ):
        yield made


def asked(*parts: dict[str, Any]) -> Any:
    return [{"role": "user", "content": [{"type": "input_text", "text": "Look:"}, *parts]}]


def image(url: str) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url, "detail": "auto"}


@pytest.mark.requirement("HF-6", "FILE-IMAGES")
def test_images_reach_the_model_and_are_counted(client: OpenAI) -> None:
    def answer(*parts: dict[str, Any], **more: Any) -> Any:
        return client.responses.create(
            model="seeing", input=asked(*parts), max_output_tokens=16, **more
        )

    blind, red, both = answer(), answer(image(RED)), answer(image(RED), image(BLUE))
    assert red.usage.input_tokens - blind.usage.input_tokens in (IMAGE_TOKENS + 1, IMAGE_TOKENS)
    assert both.usage.input_tokens > red.usage.input_tokens + IMAGE_TOKENS - 1
    assert answer(image(RED)).output_text == red.output_text
    assert len({blind.output_text, red.output_text, answer(image(BLUE)).output_text}) > 1
    counted = client.responses.input_tokens.count(model="seeing", input=asked(image(RED)))
    assert counted.input_tokens == red.usage.input_tokens
    streamed = list(answer(image(RED), stream=True))
    assert streamed[-1].response.output_text == red.output_text
    queued = answer(image(RED), background=True)
    with client.responses.retrieve(queued.id, stream=True) as events:
        assert list(events)[-1].response.output_text == red.output_text


@pytest.mark.requirement("FILE-STORED")
def test_a_conversation_goes_on_with_its_images(client: OpenAI) -> None:
    first = client.responses.create(model="seeing", input=asked(image(RED)), max_output_tokens=16)
    second = client.responses.create(
        model="seeing",
        input="And what else?",
        previous_response_id=first.id,
        max_output_tokens=16,
    )
    assert first.usage is not None and second.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens
    assert second.usage.input_tokens_details.cached_tokens > IMAGE_TOKENS
    items = client.responses.input_items.list(
        first.id, include=["message.input_image.image_url"]
    ).data
    assert items[0].content[1].image_url == RED  # type: ignore[union-attr]


def test_an_image_that_is_broken_is_refused_and_the_server_goes_on(client: OpenAI) -> None:
    torn = data_url(png(300, 300)[:60])
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="seeing", input=asked(image(torn)))
    assert refused.value.code == "image_parse_error"
    with pytest.raises(openai.BadRequestError, match="reads text only") as blind:
        client.responses.create(model="blind", input=asked(image(RED)))
    assert blind.value.param == "input[0].content[1]"
    assert client.responses.create(model="seeing", input="Hi", max_output_tokens=4).output


def test_a_document_is_uploaded_and_read(client: OpenAI) -> None:
    pytest.importorskip("kreuzberg")
    file = client.files.create(file=("a.pdf", pdf("Antiphon sings")), purpose="user_data")
    part = {"type": "input_file", "file_id": file.id}
    with_file = client.responses.input_tokens.count(model="seeing", input=asked(part))
    without = client.responses.input_tokens.count(model="seeing", input=asked())
    assert with_file.input_tokens > without.input_tokens + 5
    answer = client.responses.create(model="seeing", input=asked(part), max_output_tokens=8)
    assert answer.status == "incomplete" or answer.output_text
    client.files.delete(file.id)


def test_an_adapter_is_a_model_by_its_name(client: OpenAI) -> None:
    assert {"seeing", "pirate", "blind"} == {model.id for model in client.models.list()}

    def said(model: str) -> str:
        return client.responses.create(
            model=model, input="The capital of France?", max_output_tokens=16
        ).output_text

    plain, pirate = said("seeing"), said("pirate")
    assert plain != pirate
    assert (said("seeing"), said("pirate")) == (plain, pirate)


@pytest.mark.parametrize("upstream", ["chat_completions", "responses"])
def test_upstreams_get_images_as_they_are(client: OpenAI, relay: OpenAI, upstream: str) -> None:
    file = relay.files.create(file=("a.png", png(28, 28, (250, 0, 0))), purpose="vision")
    by_id = {"type": "input_image", "file_id": file.id, "detail": "auto"}

    def answer(server: OpenAI, model: str, part: dict[str, Any]) -> Any:
        return server.responses.create(
            model=model, input=asked(part), max_output_tokens=16, temperature=0
        )

    direct, relayed = answer(client, "seeing", image(RED)), answer(relay, upstream, by_id)
    assert relayed.output_text == direct.output_text
    assert relayed.usage.input_tokens == direct.usage.input_tokens

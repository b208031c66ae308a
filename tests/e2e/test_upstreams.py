"""A real upstream: llama.cpp's own HTTP server in a separate process."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from msgspec.structs import replace
from PIL import Image as pillow

from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.remote.factory import create_chat_backend, create_responses_backend
from antiphon.backends.remote.responses.servers import FLAVOURS
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.completions.engine import CompletionsEngine, load
from antiphon.errors import InvalidRequest
from antiphon.http.app import create_app
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import EncodedImage, Prompt
from antiphon.models.catalog import load as load_catalog
from antiphon.runs.dependencies import RunDependencies
from antiphon.runs.policy import Policy
from antiphon.runs.service import Service
from antiphon.stream.deltas import Text
from antiphon.support.logs import open_log
from antiphon.testing.backend_check import CHECKS as BACKEND_CHECKS
from antiphon.testing.engine_check import CHECKS, Check, check_closed, collect
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.replies import deltas_of
from antiphon.wire import items as it
from tests.attachments.samples import data_url
from tests.harness import official_client
from tests.tiny_models.tiny_eyes import GGUF, IMAGE_TOKENS, PROJECTOR, picture
from tests.tiny_models.tiny_tools import GGUF as TOOLS
from tests.upstream.started import llama_server

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with llama_server(TOOLS) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(upstream: str) -> AsyncIterator[CompletionsEngine]:
    loaded = await load(upstream, LoadOptions(name="tiny"))
    yield loaded
    await loaded.close()


# --- token ids over /completion ------------------------------------------------------------------


async def test_upstream_kind_is_detected(engine: CompletionsEngine) -> None:
    assert engine.card.context_size == 1024
    assert engine.card.chat_template and "<|im_start|>" in engine.card.chat_template
    assert engine.capabilities.constraints and engine.capabilities.max_logprobs == 20


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_the_engine_keeps_its_contract(engine: CompletionsEngine, check: Check) -> None:
    await check(engine)


async def test_closing_the_engine_aborts_generation(upstream: str) -> None:
    await check_closed(await load(upstream, LoadOptions(name="tiny")))


@pytest.mark.parametrize("name", ["reports_usage", "rejects_long_conversations"])
async def test_token_id_backend_keeps_the_contract(engine: CompletionsEngine, name: str) -> None:
    await BACKEND_CHECKS[name](LocalBackend(engine, ChatDialect(engine.card, engine.tokenizer)))


# --- images beside token ids ---------------------------------------------------------------------

RED, BLUE = picture("red", "circle"), picture("blue", "square")
GREEDY = Sampling(max_tokens=12, temperature=0)
QUESTION = "<|im_start|>user\nWhat do you see?\n@<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def eyes() -> Iterator[str]:
    with llama_server(GGUF, PROJECTOR) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seeing(eyes: str) -> AsyncIterator[CompletionsEngine]:
    loaded = await load(eyes, LoadOptions(name="eyes"))
    yield loaded
    await loaded.close()


def picture_prompt(engine: CompletionsEngine, *pictures: bytes, text: str = QUESTION) -> Prompt:
    before, after = (engine.tokenizer.encode(half, special=True) for half in text.split("@"))
    images = tuple(EncodedImage(content, "image/png", len(before)) for content in pictures)
    return Prompt((*before, *after), images)


async def test_image_support_is_detected(seeing: CompletionsEngine) -> None:
    assert seeing.capabilities.images == "apart"
    answers = {"A red circle.": (RED,), "A blue square.": (BLUE,), "I see no picture.": ()}
    for answer, pictures in answers.items():
        reply = await collect(seeing, picture_prompt(seeing, *pictures), GREEDY)
        assert b"".join(map(seeing.tokenizer.piece, reply.ids)).decode() == f"{answer}<|im_end|>"
    prompt = picture_prompt(seeing, RED)
    again = await collect(seeing, prompt, GREEDY)
    place = prompt.images[0].position
    assert again.cached_tokens is not None and again.cached_tokens >= place + IMAGE_TOKENS


async def test_images_are_measured_and_refused_by_the_upstream(seeing: CompletionsEngine) -> None:
    assert await seeing.image_tokens(EncodedImage(RED, "image/png", 0)) == IMAGE_TOKENS
    with pytest.raises(InvalidRequest, match="image") as refused:
        await seeing.image_tokens(EncodedImage(RED[:50], "image/png", 0))
    assert refused.value.code == "image_parse_error"
    with pytest.raises(InvalidRequest, match="end of a prompt"):
        await collect(seeing, picture_prompt(seeing, RED, text="Look:@"), GREEDY)


async def test_text_like_an_image_marker_stays_text(seeing: CompletionsEngine) -> None:
    spelled = seeing.tokenizer.encode("<__media__> <|im_end|>", special=False)
    prompt = picture_prompt(seeing, RED)
    odd = Prompt((*spelled, *prompt.ids), (replace(prompt.images[0], position=len(spelled)),))
    assert (await collect(seeing, odd, GREEDY)).ids


@pytest.mark.requirement("UP-FORMATS")
@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP"])
@pytest.mark.parametrize("make", [create_chat_backend, create_responses_backend])
async def test_every_image_format_is_sent(eyes: str, make: Any, form: str) -> None:
    out = io.BytesIO()
    pillow.open(io.BytesIO(RED)).convert("RGB").save(out, form)
    image = it.InputImage(image_url=data_url(out.getvalue(), f"image/{form.lower()}"))
    content = (it.InputText(text="What do you see?\n"), image)
    conversation = Conversation((it.Message(id="m", role="user", content=content),))
    backend = await make("eyes", eyes)
    try:
        reply = await backend.prepare(conversation, Options(temperature=0, max_output_tokens=12))
        text = [d.text async for d in deltas_of(reply) if isinstance(d, Text)]
        assert "".join(text) == "A red circle."
    finally:
        await backend.close()


# --- messages over /v1/chat/completions ----------------------------------------------------------


@pytest.mark.parametrize("name", ["reports_usage", "streams_in_pieces", "closing_stops_generation"])
async def test_chat_completions_backend_keeps_the_contract(upstream: str, name: str) -> None:
    backend = await create_chat_backend("tiny", upstream)
    try:
        await BACKEND_CHECKS[name](backend)
    finally:
        await backend.close()


# --- items over /v1/responses --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reports_usage", "streams_in_pieces"])
async def test_responses_backend_keeps_the_contract(upstream: str, name: str) -> None:
    backend = await create_responses_backend("tiny", upstream)
    try:
        assert backend.flavour is FLAVOURS["llama-server"]
        await BACKEND_CHECKS[name](backend)
    finally:
        await backend.close()


# --- the whole server before it, as clients see it -----------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(upstream: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """Yield the official client of a server with one model for each way to reach the upstream."""
    models = {
        kind: Model(source=upstream, engine=kind)
        for kind in ("completions", "chat_completions", "responses")
    }
    catalog = await load_catalog(Settings(models=models))
    store = MemoryStore()
    service = Service(
        RunDependencies(models=catalog, store=store, clock=lambda: 0.0, ids=_ids(), policy=Policy())
    )
    service.start()
    app = create_app(service, ids=_ids(), log=open_log(io.StringIO()))
    async with official_client(app) as client:
        yield client
    await service.drain(0)
    await catalog.close()
    await store.close()


def _ids() -> Callable[[str], str]:
    numbers = itertools.count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


ENGINES = ("completions", "chat_completions", "responses")


@pytest.mark.parametrize("engine", ENGINES)
async def test_turns_reuse_the_prefix_cache(client: openai.AsyncOpenAI, engine: str) -> None:
    more = {"model": engine, "temperature": 0, "max_output_tokens": 40}
    first = await client.responses.create(input="Tell me a story.", **more)
    assert first.status == "incomplete" and first.output_text
    stream = await client.responses.create(
        input="Tell me a story.", previous_response_id=first.id, stream=True, **more
    )
    events = [event async for event in stream]
    last = events[-1].response
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    # On a busy machine, the server may send all tokens in one delta.
    assert deltas and "".join(deltas) == last.output_text
    assert last.usage.input_tokens_details.cached_tokens > first.usage.input_tokens // 2
    assert last.usage.output_tokens == 40


@pytest.mark.parametrize("engine", ENGINES[:2])
async def test_output_matches_the_requested_format(client: openai.AsyncOpenAI, engine: str) -> None:
    schema = {
        "type": "object",
        "properties": {"size": {"enum": [1, 2, 3]}},
        "required": ["size"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "name": "s", "schema": schema, "strict": True}
    answer = await client.responses.create(
        model=engine,
        input="How big is it?",
        text={"format": form},
        temperature=0,  # type: ignore[typeddict-item]
    )
    assert json.loads(answer.output_text)["size"] in (1, 2, 3)


@pytest.mark.parametrize("engine", ENGINES)
async def test_long_prompt_is_refused_like_openai(client: openai.AsyncOpenAI, engine: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await client.responses.create(model=engine, input="word " * 2000)
    assert raised.value.code == "context_length_exceeded"

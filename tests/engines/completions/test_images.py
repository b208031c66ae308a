"""Images beside token ids over HTTP, against servers of every shape that takes them; llama-server
and vLLM are also run for real elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.backends.local.backend import LocalBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import ImageMeasurer, LoadOptions, Sampling
from antiphon.engines.completions.constraints import SYNTAXES
from antiphon.engines.completions.engine import CompletionsEngine, load
from antiphon.engines.completions.images import image_encoder
from antiphon.engines.completions.servers import FLAVOURS
from antiphon.errors import BackendError, InvalidRequest
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import Constraint, EncodedImage, ModelCard, Prompt
from antiphon.testing.backend_check import CHECKS as BACKEND_CHECKS
from antiphon.testing.engine import ScriptedEngine
from antiphon.testing.engine_check import collect
from antiphon.upstream.client import Upstream
from antiphon.wire.items import InputImage, InputText, Message
from tests.attachments.samples import data_url, png
from tests.dialects.test_images import TEMPLATE
from tests.engines.completions.fake_servers import (
    SHAPES,
    TOKENIZER,
    WORD,
    LlamaServer,
    image_digest,
    serving,
)
from tests.engines.huggingface import hf_files
from tests.upstream.fakes import Answer, fake, json_answer, sse

SEEING = ("vllm", "sglang", "llama-server")
RED, BLUE = png(28, 28, (250, 0, 0)), png(28, 28, (0, 0, 250))
CARD = ModelCard(
    name="tiny",
    context_size=400,
    fingerprint="bytes",
    chat_template=TEMPLATE.replace("<|image|>", "<image>"),
)
FACTS = {
    "modalities": {"vision": True},
    "media_marker": LlamaServer.marker,
    "has_image_understanding": True,
}
each_server = pytest.mark.parametrize("kind", SEEING)


@asynccontextmanager
async def connected(kind: str, **more: Any) -> AsyncIterator[tuple[CompletionsEngine, list[Any]]]:
    """An engine over a server without a model, which answers with the prompt that it has seen."""
    echo = ScriptedEngine(lambda prompt: prompt, special=["<image>"], card=CARD, chunk=7)
    async with serving(SHAPES[kind], echo, sees=True, takes=("schema", "{}")) as (url, bodies):
        engine = await seeing(kind, url, **more)
        try:
            yield engine, bodies
        finally:
            await engine.close()


async def seeing(kind: str, url: str, **more: Any) -> CompletionsEngine:
    upstream, row = Upstream(url), FLAVOURS[kind]
    eyes = await image_encoder(kind, upstream, "m", TOKENIZER, FACTS)
    assert eyes is not None
    row = replace(row, capabilities=replace(row.capabilities, images=eyes.image_mode))
    return CompletionsEngine(upstream, "m", row, TOKENIZER, CARD, image_encoder=eyes, **more)


def image_prompt(engine: CompletionsEngine, *parts: str | bytes) -> Prompt:
    """Texts, and images by their bytes."""
    word = (WORD,) if engine.capabilities.images == "template" else ()
    ids: list[int] = []
    images = []
    for part in parts:
        if isinstance(part, bytes):
            images.append(EncodedImage(part, "image/png", len(ids), word))
        ids += word if isinstance(part, bytes) else TOKENIZER.encode(part, special=True)
    return Prompt(tuple(ids), tuple(images))


def prompt_text(*parts: str | bytes) -> str:
    return "".join(part if isinstance(part, str) else image_digest(part).decode() for part in parts)


@pytest.mark.requirement("UP-IMAGES")
@each_server
@pytest.mark.parametrize(
    "parts", [("See ", RED, "!"), (RED, BLUE, RED, "?"), ("<im", RED, "age>", BLUE, ".")]
)
async def test_images_keep_their_position(kind: str, parts: tuple[str | bytes, ...]) -> None:
    async with connected(kind) as (engine, _):
        prompt = image_prompt(engine, *parts)
        answer = await collect(engine, prompt, Sampling(max_tokens=99, logprobs=1))
        assert answer.text(engine) == prompt_text(*parts)
        assert len(answer.logprobs[0].top) == 1
        assert isinstance(engine, ImageMeasurer)
        besides = sum([await engine.image_tokens(image) for image in prompt.images])
        assert len(prompt.ids) + besides == len(prompt_text(*parts))


@each_server
async def test_an_image_is_measured_once(kind: str) -> None:
    async with connected(kind) as (engine, bodies):
        (image,) = image_prompt(engine, RED).images
        sizes = {await engine.image_tokens(image) for _ in range(3)}
        assert sizes == {4 - len(image.placeholder_ids)} and len(bodies) == 1


@pytest.mark.requirement("HF-6")
@each_server
async def test_as_a_backend_it_takes_images(kind: str) -> None:
    async with connected(kind) as (engine, _):
        dialect = ChatDialect(CARD, TOKENIZER, images=engine.capabilities.images)
        backend = LocalBackend(engine, dialect)
        await BACKEND_CHECKS["accepts_or_rejects_images"](backend)
        parts = (InputText(text="What is it?"), InputImage(image_url=data_url(RED)))
        message = Message(role="user", content=parts)
        reply = await backend.prepare(Conversation((message,)), Options())
        blind = await backend.prepare(
            Conversation((replace(message, content=parts[:1]),)), Options()
        )
        assert reply.input_tokens >= blind.input_tokens + 4
        many = Message(role="user", content=parts[1:] * 120)
        with pytest.raises(InvalidRequest) as refused:
            await backend.prepare(Conversation((many,)), Options())
        assert refused.value.code == "context_length_exceeded"


async def test_sglang_finds_no_image_in_what_users_write() -> None:
    """It looks for the words in the text that ids spell."""
    async with connected("sglang") as (engine, bodies):
        spelled = TOKENIZER.encode("Is <image> an image? ", special=False)
        prompt = image_prompt(engine, RED, "!", BLUE)
        images = [replace(each, position=each.position + len(spelled)) for each in prompt.images]
        await collect(
            engine, Prompt((*spelled, *prompt.ids), tuple(images)), Sampling(max_tokens=1)
        )
        (body,) = bodies
        text = b"".join(map(TOKENIZER.piece, body["input_ids"])).decode()
        assert text == "Is <\u2060image> an image? <image>!<image>"
        assert body["modalities"] == ["multi-images"]
        await collect(engine, image_prompt(engine, "Is ", RED), Sampling(max_tokens=1))
        assert bodies[1]["input_ids"] == [*b"Is ", WORD] and "modalities" not in bodies[1]


async def test_vllm_request_body() -> None:
    everything = Sampling(
        max_tokens=5,
        temperature=0.5,
        top_k=0,
        seed=7,
        stop_ids=(3,),
        logit_bias={5: 1.5},
        ignore_eos=True,
        logprobs=2,
        constraint=Constraint('start: "a"', schema={"type": "object"}),
        priority=2,
        cache_salt="s",
        adapter="poet",
        extra={"x": 1},
    )
    more = {
        "adapters": {"poet": "poet-v2"},
        "body": {"y": 2},
        "constraint_syntax": SYNTAXES["vllm"][-1],
    }
    async with connected("vllm", **more) as (engine, bodies):
        await collect(engine, image_prompt(engine, "a", RED), everything)
    assert bodies == [
        {
            "model": "poet-v2",
            "token_ids": [97, WORD],
            "content_parts": [{"type": "image_url", "url": data_url(RED)}],
            "sampling_params": {
                "max_tokens": 5,
                "temperature": 0.5,
                "top_k": 0,
                "seed": 7,
                "stop_token_ids": [3],
                "logit_bias": {"5": 1.5},
                "ignore_eos": True,
                "logprobs": 3,
                "structured_outputs": {"json": {"type": "object"}},
                "extra_args": {"x": 1},
                "detokenize": False,
            },
            "stream": True,
            "stream_options": {"include_usage": True},
            "priority": 2,
            "cache_salt": "s",
            "y": 2,
        }
    ]


async def test_template_without_image_placeholder_is_refused() -> None:
    async with connected("vllm") as (engine, bodies):
        prompt = replace(image_prompt(engine, "a"), images=(EncodedImage(RED, "image/png", 0),))
        with pytest.raises(InvalidRequest, match="does not show images"):
            await collect(engine, prompt, Sampling(max_tokens=1))
        assert not bodies


# --- llama-server, whose texts have a marker of its own -------------------------------------------


def _props(marker: str | None) -> Answer:
    return json_answer({"modalities": {"vision": marker is not None}, "media_marker": marker})


def _counted(total: int) -> Answer:
    progress = {"total": total, "cache": 0, "processed": 0}
    return Answer(sse({"content": "", "tokens": [], "prompt_progress": progress}, done=False))


async def test_marker_is_reread_after_a_server_restart() -> None:
    async with fake(
        tokenize=json_answer({"tokens": [97]}),
        props=[_props("<one>"), _props("<two>"), _props(None)],
        completion=[_counted(6), _counted(7)],
    ) as playing:
        engine = await seeing("llama-server", playing.url)
        for content, size in ((RED, 3), (BLUE, 4)):
            # the id that the server itself puts before every text is not sent, and counted once
            assert await engine.image_tokens(EncodedImage(content, "image/png", 0)) == size
        requests = [body for path, body, _ in playing.asked if path == "/completion"]
        texts = [body["prompt"]["prompt_string"] for body in requests]
        assert texts == ["a<one>a", "a<two>a"]
        with pytest.raises(BackendError, match="no longer accepts"):
            await engine.image_tokens(EncodedImage(png(), "image/png", 0))
        await engine.close()


@pytest.mark.parametrize(
    ("answer", "error", "code"),
    [
        (json_answer({"error": {"message": "no image"}}, 400), InvalidRequest, "image_parse_error"),
        (json_answer({"error": {"message": "no"}}, 401), BackendError, "invalid_prompt"),
        (Answer(sse({"error": {"message": "no", "code": 500}})), BackendError, "server_error"),
        (Answer(sse({"content": "a", "tokens": [97]})), BackendError, "server_error"),
        (Answer(sse("{")), BackendError, "server_error"),
    ],
)
async def test_image_measuring_failures(answer: Answer, error: type[Exception], code: str) -> None:
    props = _props("<one>")
    async with fake(tokenize=json_answer({"tokens": []}), props=props, completion=answer) as play:
        engine = await seeing("llama-server", play.url)
        with pytest.raises(error) as raised:
            await engine.image_tokens(EncodedImage(RED, "image/png", 0))
        assert raised.value.code == code  # type: ignore[attr-defined]
        await engine.close()


# --- who sees ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sees", [True, False])
@pytest.mark.parametrize("kind", FLAVOURS)
async def test_image_support_is_detected(kind: str, sees: bool, tmp_path: Path) -> None:
    folder = hf_files.folder(tmp_path / "model", hf_files.byte_level(), chat_template=TEMPLATE)
    async with serving(SHAPES[kind], ScriptedEngine(), sees=sees, root=str(folder)) as (url, _):
        engine = await load(url, LoadOptions(name="tiny"))
        result = {"vllm": "template", "sglang": "template", "llama-server": "apart"}
        assert engine.capabilities.images == (result.get(kind) if sees else None)
        if engine.capabilities.images is None:
            with pytest.raises(InvalidRequest, match="cannot see"):
                await engine.image_tokens(EncodedImage(RED, "image/png", 0))
        await engine.close()

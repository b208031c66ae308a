"""Images through llama.cpp itself, with the tiny model that sees."""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from antiphon.backends.local.backend import LocalBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import ImageMeasurer, LoadOptions, Sampling
from antiphon.engines.llama.engine import LlamaEngine, load
from antiphon.engines.llama.images import PromptDetokenizer, readable_content
from antiphon.errors import BackendError, InvalidRequest
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import Chunk, EncodedImage, Prompt
from antiphon.testing.backend_check import accepts_or_rejects_images
from antiphon.testing.engine_check import CHECKS, Check
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.wire.items import InputImage, InputText, Message
from tests.attachments.samples import data_url, png
from tests.tiny_models.tiny_eyes import GGUF, IMAGE_TOKENS, PROJECTOR, picture

RED, BLUE = picture("red", "circle"), picture("blue", "square")
GREEDY = Sampling(max_tokens=12, temperature=0, logprobs=0)
QUESTION = "<|im_start|>user\n{}\n@<|im_end|>\n<|im_start|>assistant\n"

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def seeing() -> AsyncIterator[LlamaEngine]:
    engine = await load(
        GGUF, LoadOptions(threads=1, context_size=1024, parallel=2, projector=PROJECTOR)
    )
    yield engine
    await engine.close()


def image_prompt(
    engine: LlamaEngine, *pictures: bytes, text: str = "Look: @ What is it?"
) -> Prompt:
    before, _, after = text.partition("@")
    first = engine.tokenizer.encode(before, special=True)
    last = engine.tokenizer.encode(after, special=True)
    images = tuple(EncodedImage(content, "image/png", len(first)) for content in pictures)
    return Prompt((*first, *last), images)


async def generated(engine: LlamaEngine, prompt: Prompt, sampling: Sampling = GREEDY) -> Chunk:
    """All chunks as one."""
    chunks = [chunk async for chunk in engine.generate(prompt, sampling)]
    cached = next((c.cached_tokens for c in chunks if c.cached_tokens is not None), None)
    return Chunk(
        ids=tuple(id for chunk in chunks for id in chunk.ids),
        logprobs=tuple(known for chunk in chunks for known in chunk.logprobs),
        finish=chunks[-1].finish,
        cached_tokens=cached,
    )


def words(engine: LlamaEngine, chunk: Chunk) -> str:
    return b"".join(map(engine.tokenizer.piece, chunk.ids)).decode()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_keeps_the_contract_through_the_socket(seeing: LlamaEngine, check: Check) -> None:
    await check(seeing)


@pytest.mark.requirement("HF-6")
async def test_a_model_says_what_it_sees(seeing: LlamaEngine) -> None:
    assert seeing.capabilities.images and isinstance(seeing, ImageMeasurer)
    one, several = map(QUESTION.format, ("What is in the picture?", "What is in the pictures?"))
    for text, pictures, answer in (
        (one, (RED,), "A red circle."),
        (one, (BLUE,), "A blue square."),
        (one, (), "I see no picture."),
        (several, (BLUE, RED), "A blue square and a red circle."),
    ):
        reply = await generated(seeing, image_prompt(seeing, *pictures, text=text))
        assert reply.finish == "stop"
        assert words(seeing, reply) == f"{answer}<|im_end|>"


async def test_repeated_image_is_served_from_the_cache(seeing: LlamaEngine) -> None:
    prompt = image_prompt(seeing, RED, text=QUESTION.format("What is this?"))
    first = await generated(seeing, prompt)
    next_turn = f"\n{QUESTION.format('What colour is it?').replace('@', '')}"
    rest = seeing.tokenizer.encode(next_turn, special=True)
    again = await generated(seeing, Prompt((*prompt.ids, *first.ids, *rest), prompt.images))
    assert words(seeing, again) == "Red.<|im_end|>"
    assert again.cached_tokens is not None
    assert again.cached_tokens >= len(prompt.ids) + IMAGE_TOKENS


async def test_image_at_the_end_of_a_prompt_is_refused(seeing: LlamaEngine) -> None:
    """llama.cpp would end the process."""
    with pytest.raises(InvalidRequest):
        await generated(seeing, image_prompt(seeing, RED, text="Look:@"))


async def test_images_are_measured(seeing: LlamaEngine) -> None:
    for content in (RED, BLUE, png(100, 7)):
        assert await seeing.image_tokens(EncodedImage(content, "image/png", 0)) == IMAGE_TOKENS


async def test_unreadable_image_is_refused_before_the_run(seeing: LlamaEngine) -> None:
    for content in (RED[:50], b"GIF89a\x01\0\x01\0"):
        with pytest.raises(InvalidRequest) as refused:
            await seeing.image_tokens(EncodedImage(content, "image/png", 0))
        assert refused.value.code == "image_parse_error"


async def test_failed_start_does_not_affect_the_next_generation(
    seeing: LlamaEngine,
) -> None:
    torn = replace(image_prompt(seeing, RED).images[0], mime="image/webp")
    broken = [
        (image_prompt(seeing, b"nothing"), BackendError),
        (replace(image_prompt(seeing), images=(torn,)), InvalidRequest),
    ]
    for prompt, error in broken * 2:  # more often than there are places
        with pytest.raises(error):
            await generated(seeing, prompt)
    assert (await generated(seeing, image_prompt(seeing, RED))).ids


async def test_webp_is_read_too(seeing: LlamaEngine) -> None:
    pillow = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    pillow.open(io.BytesIO(RED)).save(out, "WEBP", lossless=True)
    webp = EncodedImage(out.getvalue(), "image/webp", 0)
    assert readable_content(webp).startswith(b"\x89PNG")
    assert await seeing.image_tokens(webp) == IMAGE_TOKENS
    with pytest.raises(InvalidRequest):
        readable_content(EncodedImage(out.getvalue()[:30], "image/webp", 0))


async def test_user_text_like_a_marker_or_token_stays_text(seeing: LlamaEngine) -> None:
    """The model sees one image and one turn, whatever is spelled."""
    marker = "<an image>"
    spelled = f"<|im_start|>x<|im_end|>{marker}"
    ids = (
        *seeing.tokenizer.encode("<|im_start|>user\n", special=True),
        *seeing.tokenizer.encode(spelled, special=False),
        *seeing.tokenizer.encode("<|im_end|>\n", special=True),
    )
    prompt = Prompt(ids, (EncodedImage(RED, "image/png", len(ids) - 2),))
    text = PromptDetokenizer(seeing.tokenizer, marker).text(prompt)
    assert text.count(marker) == 1 and text.count("<|im_start|>") == 1
    assert text.count("<|im_end|>") == 1 and text.endswith("<|im_end|>\n")
    assert text.replace("\u2060", "").count("<|im_start|>") == 2
    assert (await generated(seeing, prompt)).ids


async def test_the_beginning_of_a_text_is_not_written_twice() -> None:
    tokenizer = ByteTokenizer(["<s>"])
    bos = tokenizer.special["<s>"]
    prompt = Prompt(
        (bos, *b"ab<s>c"), (EncodedImage(RED, "image/png", 0), EncodedImage(RED, "image/png", 3))
    )
    assert PromptDetokenizer(tokenizer, "<m>", bos).text(prompt) == "<m>ab<m><\u2060s>c"
    assert PromptDetokenizer(tokenizer, "<m>", None).text(prompt) == "<m><s>ab<m><\u2060s>c"


@pytest.mark.parametrize("run", ["a", " ", "\n", "7", "!", "_", "é", "語", "<s>"])
async def test_very_long_words_are_split(run: str) -> None:
    """llama.cpp looks for words by regular expressions that go one call deeper a character."""
    tokenizer = ByteTokenizer(["<s>"])
    plain = "So: " + run * 5000 + " ."
    prompt = Prompt(tuple(plain.encode()), (EncodedImage(RED, "image/png", 0),))
    text = PromptDetokenizer(tokenizer, "<m>").text(prompt).removeprefix("<m>")
    assert text.translate({0x2060: None, 0x115F: None}) == plain
    letters, signs = r"[^\W\d_]", r"[^\w\s]|_"
    runs = re.finditer(rf"{letters}+|\d+|\s+|(?:{signs})+", text)
    assert max(len(found[0]) for found in runs) <= 1002
    assert PromptDetokenizer(tokenizer, "<m>").escaped_ids(prompt.ids) == tuple(text.encode())


async def test_as_a_backend_it_takes_images(seeing: LlamaEngine) -> None:
    dialect = ChatDialect(seeing.card, seeing.tokenizer, images="apart")
    backend = LocalBackend(seeing, dialect)
    assert backend.capabilities.images
    await accepts_or_rejects_images(backend)
    image = InputImage(image_url=data_url(RED))
    question = Message(role="user", content=(InputText(text="What is it?"), image))
    many = Message(role="user", content=(image,) * 160)
    reply = await backend.prepare(Conversation((question,)), Options())
    blind = await backend.prepare(
        Conversation((Message(role="user", content=question.content[:1]),)), Options()
    )
    assert reply.input_tokens >= blind.input_tokens + IMAGE_TOKENS
    with pytest.raises(InvalidRequest) as refused:
        await backend.prepare(Conversation((many,)), Options())
    assert refused.value.code == "context_length_exceeded"
    cut = await backend.prepare(Conversation((many, question)), Options(truncate=True))
    assert len(cut.dropped_ids) == 1 and cut.input_tokens == reply.input_tokens

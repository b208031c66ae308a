"""Images over transformers, with the tiny model that sees."""

from __future__ import annotations

from collections.abc import AsyncIterator
from io import BytesIO

import pytest
import pytest_asyncio

from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.engines.base import ImageMeasurer, LoadOptions, Sampling
from antiphon.engines.transformers.engine import TransformersEngine, load
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import EncodedImage, Prompt
from antiphon.models.catalog import load as load_catalog
from antiphon.testing.delta_reader import ReplyRecord
from antiphon.testing.engine_check import check_engine, collect
from antiphon.testing.replies import deltas_of
from antiphon.wire.items import InputImage, InputText, Message
from tests.attachments.samples import data_url
from tests.tiny_models.tiny_eyes import FOLDER, IMAGE_TOKENS, image_message, picture

pytestmark = [pytest.mark.engines, pytest.mark.asyncio(loop_scope="module")]

#: One is padded at its sides.
RED, BLUE = picture("red", "circle", 40, 60), picture("blue", "square")
GREEDY = Sampling(max_tokens=12, temperature=0, ignore_eos=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[TransformersEngine]:
    pytest.importorskip("transformers")
    loaded = await load(FOLDER, LoadOptions(threads=1, context_size=1024))
    yield loaded
    await loaded.close()


async def test_keeps_the_contract(engine: TransformersEngine) -> None:
    await check_engine(engine)


@pytest.mark.requirement("HF-6")
async def test_sees_what_transformers_itself_sees(engine: TransformersEngine) -> None:
    import PIL.Image
    import torch
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    processor = AutoProcessor.from_pretrained(FOLDER)
    model = LlavaForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32)
    before = "<|im_start|>user\nWhat is in the pictures?\n"
    after = "<|im_end|>\n<|im_start|>assistant\n"
    inputs = processor(
        text=[f"{before}<image>\n<image>{after}"],
        images=[PIL.Image.open(BytesIO(each)).convert("RGB") for each in (RED, BLUE)],
        return_tensors="pt",
    )
    answer = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    prompt = image_message(engine, before, RED, "\n", BLUE, after)
    ours = await collect(engine, prompt, Sampling(max_tokens=12, temperature=0))
    assert list(ours.ids) == answer[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.requirement("HF-6")
async def test_a_conversation_about_images() -> None:
    pytest.importorskip("transformers")
    model = Model(source=str(FOLDER), engine="transformers", threads=1, context_size=1024)
    catalog = await load_catalog(Settings(models={"eyes": model}))
    backend = catalog.find("eyes").backend
    assert backend.capabilities.images

    async def asked(*images: bytes) -> tuple[int, str]:
        parts = [InputImage(image_url=data_url(image)) for image in images]
        talk = Message(role="user", content=(InputText(text="What do you see?"), *parts))
        reply = await backend.prepare(Conversation(items=(talk,)), Options(temperature=0))
        reading = ReplyRecord()
        async for delta in deltas_of(reply):
            reading.add(delta)
        return reply.input_tokens, reading.text

    (without, nothing), (with_red, red), (with_blue, blue) = (
        await asked(),
        await asked(RED),
        await asked(BLUE),
    )
    assert with_red == with_blue >= without + IMAGE_TOKENS
    assert (nothing, red, blue) == ("I see no picture.", "A red circle.", "A blue square.")
    await catalog.close()


async def test_images_count_against_the_context(engine: TransformersEngine) -> None:
    images = image_message(engine, RED, BLUE).images
    assert isinstance(engine, ImageMeasurer)
    assert [await engine.image_tokens(each) for each in images] == [IMAGE_TOKENS - 1] * 2
    room = engine.card.context_size
    prompt = image_message(engine, "a" * 10, RED)
    long = Prompt((*prompt.ids, *[5] * (room - len(prompt.ids) - IMAGE_TOKENS)), prompt.images)
    outcome = await collect(engine, long, GREEDY)
    assert (len(outcome.ids), outcome.last.finish) == (1, "length")
    with pytest.raises(InvalidRequest) as refused:
        await collect(engine, Prompt((*long.ids, 5), prompt.images), GREEDY)
    assert refused.value.code == "context_length_exceeded"


async def test_what_cannot_be_shown_is_refused(engine: TransformersEngine) -> None:
    with pytest.raises(InvalidRequest, match="Invalid image"):
        await collect(engine, image_message(engine, "See ", b"no image"), GREEDY)
    plain = engine.tokenizer.encode("no word for it", special=True)
    with pytest.raises(InvalidRequest, match="does not show images"):
        await collect(engine, Prompt(tuple(plain), (EncodedImage(RED, "image/png", 1),)), GREEDY)

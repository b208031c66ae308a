"""Images over transformers, with a model that really looks at them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.backends.base import singly
from antiphon.catalog import load as load_catalog
from antiphon.conversation import Conversation, Options
from antiphon.engines.base import MeasuresImages, Sampling
from antiphon.engines.transformers import TransformersEngine, load
from antiphon.errors import InvalidRequest
from antiphon.settings import Model, Settings
from antiphon.testing.deltas import Reading
from antiphon.testing.engine_check import check_engine, collect
from antiphon.tokens import Image, Prompt
from antiphon.wire.items import InputImage, InputText, Message
from tests.attachments.samples import data_url, png
from tests.engines.tiny_llava import make_llava, shown

pytestmark = [pytest.mark.engines, pytest.mark.asyncio(loop_scope="module")]

RED, BLUE = png(60, 40, (250, 0, 0)), png(40, 60, (0, 0, 250))
GREEDY = Sampling(max_tokens=12, temperature=0, ignore_eos=True)
OPTIONS = Options(temperature=0, max_output_tokens=12, ignore_eos=True)
#: What stands for an image of 28 by 28 pixels in patches of 14.
PATCHES = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    made = tmp_path_factory.mktemp("llava")
    make_llava(made)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(folder: Path) -> AsyncIterator[TransformersEngine]:
    loaded = await load(folder, threads=1, context_size=512)
    yield loaded
    await loaded.close()


async def test_keeps_the_contract(engine: TransformersEngine) -> None:
    await check_engine(engine)


@pytest.mark.requirement("HF-6")
async def test_sees_what_transformers_itself_sees(engine: TransformersEngine, folder: Path) -> None:
    import PIL.Image
    import torch
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    processor = AutoProcessor.from_pretrained(folder)
    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    inputs = processor(
        text=["One <image> and <image> two"],
        images=[PIL.Image.open(BytesIO(each)).convert("RGB") for each in (RED, BLUE)],
        return_tensors="pt",
    )
    said = model.generate(**inputs, max_new_tokens=12, do_sample=False, eos_token_id=None)
    ours = await collect(engine, shown(engine, "One ", RED, " and ", BLUE, " two"), GREEDY)
    assert list(ours.ids) == said[0, inputs["input_ids"].shape[1] :].tolist()


async def test_other_images_are_other_answers(engine: TransformersEngine) -> None:
    assert engine.capabilities.images
    answers = {
        (await collect(engine, shown(engine, "What is ", *images, "?"), GREEDY)).ids
        for images in ((RED,), (BLUE,), (RED, BLUE), (BLUE, RED), ())
    }
    assert len(answers) == 5


@pytest.mark.requirement("HF-6")
async def test_an_image_of_a_conversation_is_seen(folder: Path) -> None:
    model = Model(source=str(folder), engine="transformers", threads=1, context_size=512)
    catalog = await load_catalog(Settings(models={"eyes": model}))
    backend = catalog.find("eyes").backend
    assert backend.sees_images

    async def asked(*images: bytes) -> tuple[int, str]:
        parts = [InputImage(image_url=data_url(image)) for image in images]
        talk = Message(role="user", content=(InputText(text="What is this?"), *parts))
        reply = await backend.prepare(Conversation(items=(talk,)), OPTIONS)
        reading = Reading()
        async for delta in singly(reply.deltas()):
            reading.add(delta)
        return reply.input_tokens, reading.text

    (without, _), (with_red, red), (with_blue, blue) = (
        await asked(),
        await asked(RED),
        await asked(BLUE),
    )
    assert with_red == with_blue >= without + PATCHES
    assert red != blue
    await catalog.close()


async def test_images_take_room(engine: TransformersEngine) -> None:
    images = shown(engine, RED, BLUE).images
    assert isinstance(engine, MeasuresImages)
    assert [await engine.image_tokens(each) for each in images] == [PATCHES - 1] * 2
    room = engine.card.context_size
    prompt = shown(engine, "a" * 10, RED)
    long = Prompt((*prompt.ids, *[5] * (room - len(prompt.ids) - PATCHES)), prompt.images)
    outcome = await collect(engine, long, GREEDY)
    assert (len(outcome.ids), outcome.last.finish) == (1, "length")
    with pytest.raises(InvalidRequest) as refused:
        await collect(engine, Prompt((*long.ids, 5), prompt.images), GREEDY)
    assert refused.value.code == "context_length_exceeded"


async def test_what_cannot_be_shown_is_refused(engine: TransformersEngine) -> None:
    with pytest.raises(InvalidRequest, match="Invalid image"):
        await collect(engine, shown(engine, "See ", b"no image"), GREEDY)
    plain = engine.tokenizer.encode("no word for it", special=True)
    with pytest.raises(InvalidRequest, match="does not show images"):
        await collect(engine, Prompt(tuple(plain), (Image(RED, "image/png", 1),)), GREEDY)

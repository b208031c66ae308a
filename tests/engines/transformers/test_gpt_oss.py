"""gpt-oss over transformers, spoken to in harmony: the tiny one thinks, calls and answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.inference.conversation import Conversation, Options
from antiphon.models.catalog import Catalog, load
from antiphon.testing.delta_reader import ReplyItem, ReplyRecord
from antiphon.testing.replies import batches_of
from antiphon.wire.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    Reasoning,
)
from antiphon.wire.tools import Function
from tests.engines.transformers.gpt_oss_folder import make_gpt_oss
from tests.tiny_models.unpacked import tiny_gpt_oss

pytestmark = [pytest.mark.engines, pytest.mark.asyncio(loop_scope="module")]

WAIT_S = 120
WEATHER = Function(
    name="get_weather",
    description="Get the weather in a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)
OPTIONS = Options(tools=(WEATHER,), temperature=0, max_output_tokens=200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    created = tmp_path_factory.mktemp("gpt-oss")
    make_gpt_oss(tiny_gpt_oss(), created)
    return created


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def catalog(folder: Path) -> AsyncIterator[Catalog]:
    model = Model(source=str(folder), engine="transformers", threads=1, context_size=1024)
    loaded = await load(Settings(models={"oss": model}))
    yield loaded
    await loaded.close()


async def reply(catalog: Catalog, *items: Item) -> list[ReplyItem]:
    reading = ReplyRecord()
    async with asyncio.timeout(WAIT_S):
        ready = await catalog.find("oss").backend.prepare(Conversation(items=items), OPTIONS)
        async for known in batches_of(ready):
            for delta in known:
                reading.add(delta)
    return reading.items


def user(text: str) -> Message:
    return Message(role="user", content=(InputText(text=text),))


def text(output: ReplyItem) -> str:
    (written,) = output.text.values()
    return written


async def test_it_thinks_and_calls(catalog: Catalog) -> None:
    thought, called = await reply(catalog, user("What is the weather in Tokyo?"))
    assert isinstance(thought.item, Reasoning) and text(thought)
    assert isinstance(called.item, FunctionCall) and called.item.name == "get_weather"
    assert json.loads(text(called)) == {"city": "Tokyo"}


async def test_it_answers_from_the_result(catalog: Catalog) -> None:
    call: Any = FunctionCall(name="get_weather", arguments='{"city": "Oslo"}', call_id="c")
    result = FunctionCallOutput(call_id="c", output="rainy")
    *_, answer = await reply(catalog, user("What is the weather in Oslo?"), call, result)
    assert isinstance(answer.item, Message) and "rainy" in text(answer)


async def test_gpt_oss_answers_a_greeting(catalog: Catalog) -> None:
    *_, answer = await reply(catalog, user("hi"))
    assert text(answer) == "Hello! How can I help you today?"

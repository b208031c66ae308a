"""The tiny model that calls tools, as every engine reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from antiphon.backends.local.backend import LocalBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import Engine
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import Prompt
from antiphon.testing.delta_reader import ReplyRecord
from antiphon.testing.replies import batches_of
from antiphon.wire.items import (
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    Reasoning,
    ReasoningText,
)
from antiphon.wire.tools import Function

FOLDER = Path(__file__).with_name("tiny-tools")
GGUF = FOLDER / "tiny-tools.gguf"
WAIT_S = 120

_WEATHER = Function(
    name="get_weather",
    description="Get the weather in a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)


def prompt(engine: Engine, text: str) -> Prompt:
    return Prompt(tuple(engine.tokenizer.encode(text, special=True)))


async def _read(local: LocalBackend, items: Sequence[Item], options: Options) -> ReplyRecord:
    reading = ReplyRecord()
    async with asyncio.timeout(WAIT_S):
        reply = await local.prepare(Conversation(items=tuple(items)), options)
        async for known in batches_of(reply):
            for delta in known:
                reading.add(delta)
    return reading


async def calls_a_tool_and_answers(engine: Engine) -> None:
    """Check a whole tool loop with a real model: it thinks, calls a tool, gets the result and
    answers."""
    local = LocalBackend(engine, ChatDialect(engine.card, engine.tokenizer))
    options = Options(tools=(_WEATHER,), temperature=0)
    request = Message(role="user", content=(InputText(text="What is the weather in Rome?"),))
    thought, called = (await _read(local, [request], options)).items
    assert isinstance(thought.item, Reasoning) and isinstance(called.item, FunctionCall)
    (thinking,), (arguments,) = thought.text.values(), called.text.values()
    assert json.loads(arguments) == {"city": "Rome"}
    loop = [
        request,
        Reasoning(summary=(), content=(ReasoningText(text=thinking),)),
        FunctionCall(name=called.item.name, arguments=arguments, call_id="c1"),
        FunctionCallOutput(call_id="c1", output="sunny, 21 °C"),
    ]
    *_, answer = (await _read(local, loop, options)).items
    (message,) = answer.text.values()
    assert message == "The weather in Rome is sunny, 21 °C."

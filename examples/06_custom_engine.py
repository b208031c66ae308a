"""Write an engine. An engine continues token ids. This engine answers with the prompt's length.

Run in a checkout, after `make serve` or `make check`: .venv/bin/python examples/06_custom_engine.py
"""

import asyncio
from collections.abc import AsyncGenerator

from antiphon.backends.local.backend import LocalBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import Capabilities, Sampling
from antiphon.inference.conversation import Conversation, Options
from antiphon.inference.tokens import Chunk, ModelCard, Prompt
from antiphon.stream.deltas import Delta, Text
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.wire.items import InputText, Message


class CountingEngine:
    """An engine: token ids in, token ids out, and its capabilities."""

    card = ModelCard(name="counting", context_size=1000)
    capabilities = Capabilities()
    tokenizer = ByteTokenizer()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        text = f"{len(prompt.ids)} tokens"
        for token in self.tokenizer.encode(text, special=False):
            yield Chunk(ids=(token,))
        yield Chunk(ids=tuple(self.tokenizer.end_ids), finish="stop")

    async def close(self) -> None: ...


async def main() -> None:
    engine = CountingEngine()
    backend = LocalBackend(engine, ChatDialect(engine.card, engine.tokenizer))
    message = Message(role="user", content=(InputText(text="Hello"),))
    reply = await backend.prepare(Conversation(items=(message,)), Options())

    def show(batch: tuple[Delta, ...]) -> None:
        print(*(delta.text for delta in batch if isinstance(delta, Text)), sep="", end="")

    await reply.pump(show)
    print()


asyncio.run(main())

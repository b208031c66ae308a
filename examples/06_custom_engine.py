"""Write an engine: anything that continues tokens. This one says the prompt's length.

Run: python examples/06_custom_engine.py
"""

import asyncio
from collections.abc import AsyncGenerator

from antiphon.backends.local.backend import LocalBackend
from antiphon.conversation import Conversation, Options
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import Capabilities, Sampling
from antiphon.stream.deltas import Text
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.tokens import Chunk, ModelCard, Prompt
from antiphon.wire.items import InputText, Message


class Counting:
    """An engine of your own: ids in, ids out, and what it can do."""

    card = ModelCard(name="counting", context_size=1000)
    capabilities = Capabilities()
    tokenizer = ByteTokenizer()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        said = f"{len(prompt.ids)} tokens"
        for token in self.tokenizer.encode(said, special=False):
            yield Chunk(ids=(token,))
        yield Chunk(ids=tuple(self.tokenizer.end_ids), finish="stop")

    async def close(self) -> None: ...


async def main() -> None:
    backend = LocalBackend(Counting(), ChatDialect(Counting.card, Counting.tokenizer))
    asked = Conversation(items=(Message(role="user", content=(InputText(text="Hello"),)),))
    reply = await backend.prepare(asked, Options())
    async for known in reply.deltas():  # what becomes known at one time comes together
        print(*(delta.text for delta in known if isinstance(delta, Text)), sep="", end="")
    print()


asyncio.run(main())

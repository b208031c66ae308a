"""An engine whose answer is the length of the prompt."""

from collections.abc import AsyncGenerator
from typing import Any

from antiphon.backends.local.backend import LocalBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import Capabilities, Sampling
from antiphon.testing.tokenizer import ByteTokenizer
from antiphon.tokens import Chunk, ModelCard, Prompt


class CountingEngine:
    """Token ids in, token ids out."""

    card = ModelCard(name="counting", context_size=1000)
    capabilities = Capabilities()
    tokenizer = ByteTokenizer()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        text = f"{len(prompt.ids)} tokens"
        ids = self.tokenizer.encode(text, special=False)[: sampling.max_tokens]
        for token in ids:
            yield Chunk(ids=(token,))
        if len(ids) == sampling.max_tokens:
            yield Chunk(finish="length")
        else:
            yield Chunk(ids=tuple(self.tokenizer.end_ids), finish="stop")

    async def close(self) -> None: ...


async def load(name: str, model: Any, settings: Any, progress: Any) -> LocalBackend:
    """Make the backend of the model ``[models.NAME]`` with ``engine = "counting"``."""
    engine = CountingEngine()
    return LocalBackend(engine, ChatDialect(engine.card, engine.tokenizer))

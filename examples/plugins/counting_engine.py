"""An engine whose answer is the length of the prompt."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from antiphon import Backend, local_backend
from antiphon.engines.base import Capabilities, Sampling
from antiphon.engines.common.request_checks import check_request
from antiphon.engines.common.stop_conditions import StopConditions
from antiphon.errors import BackendError
from antiphon.inference.tokens import Chunk, ModelCard, Prompt, TokenLogprob
from antiphon.testing.tokenizer import ByteTokenizer


class CountingEngine:
    """Token ids in, token ids out."""

    capabilities = Capabilities()

    def __init__(self, name: str) -> None:
        self.card = ModelCard(name=name, context_size=1000)
        self.tokenizer = ByteTokenizer()
        self._is_closed = False

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        # Reject prompts that are too long, and images.
        check_request(self, prompt, sampling)
        # Stop at the limit of tokens, at an end token or at a stop string.
        context_left = self.card.context_size - len(prompt.ids)
        conditions = StopConditions(self.tokenizer, sampling, context_left)
        for token in self._sample(prompt):
            await asyncio.sleep(0)  # other requests run, and an abort takes effect
            if self._is_closed:
                raise BackendError("The engine is closed.")
            chunk = conditions.feed([TokenLogprob(id=token, logprob=0)])
            if chunk is not None:
                yield chunk
            if conditions.finished:
                return

    def _sample(self, prompt: Prompt) -> Iterator[int]:
        """Yield the answer and an end token, without end. A model would be run here."""
        text = f"{len(prompt.ids)} tokens"
        while True:
            yield from self.tokenizer.encode(text, special=False)
            yield from self.tokenizer.end_ids

    async def close(self) -> None:
        self._is_closed = True


async def load(name: str, model: Any, settings: Any, progress: Any) -> Backend:
    """Make the backend of the model ``[models.NAME]`` with ``engine = "counting"``."""
    return await local_backend(CountingEngine(name), name, model, settings)

"""One generation of the transformers engine: its sampler, its stop conditions and its chunks.

The thread that runs the model passes logits to ``Generation.choose`` and gets the id of the next
token. Chunks are sent to the event loop through a channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.engines.common.stop_conditions import StopConditions
from antiphon.engines.common.thread_channel import ThreadChannel
from antiphon.inference.tokens import Chunk, Prompt

from .sampler import Sampler

if TYPE_CHECKING:
    from torch import Tensor


class Generation:
    """One generation: its prompt, its sampler, its stop conditions and the channel for its chunks.

    ``choose`` and ``report_cached_tokens`` are called only on the thread that runs the model.
    ``fail`` may be called on any thread. ``abort`` is called only on the event loop.
    """

    def __init__(
        self,
        prompt: Prompt,
        sampler: Sampler,
        stop_conditions: StopConditions,
        channel: ThreadChannel,
    ) -> None:
        self.prompt = prompt
        self.channel = channel
        self._sampler = sampler
        self._stop_conditions = stop_conditions
        self._aborted = False

    @property
    def finished(self) -> bool:
        """Whether no more tokens are needed: the generation has ended or was aborted."""
        return self._aborted or self._stop_conditions.finished

    def abort(self) -> None:
        self._aborted = True

    def report_cached_tokens(self, cached: int) -> None:
        """Send a chunk with the number of prompt tokens that were found in the cache."""
        self.channel.send(Chunk(cached_tokens=cached))

    def choose(self, logits: Tensor) -> int:
        """Sample the next token, send its chunk and return its id. Returns 0 if sampling fails.

        Never raises, because a failure must not affect the other generations of the batch.
        """
        try:
            token = self._sampler.draw(logits)
            chunk = self._stop_conditions.feed((token,))
        except Exception as error:
            self.fail(error)
            return 0
        if chunk is not None and not self.channel.send(chunk):
            self._aborted = True
        return token.id

    def fail(self, error: BaseException) -> None:
        self._aborted = True
        self.channel.fail(error)

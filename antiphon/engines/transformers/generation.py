"""One generation that a thread of ours drives: logits in, the next id out, chunks on their way.

Knows sampling and endings; it knows neither the model nor who batches it with what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon.engines.common.stop_conditions import StopConditions
from antiphon.engines.common.thread_channel import ThreadChannel
from antiphon.tokens import Chunk, Prompt

from .sampler import Sampler

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Generation"]


class Generation:
    """``choose`` and ``begun`` belong to the model's thread, the rest to the event loop."""

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
        """Nobody wants another token."""
        return self._aborted or self._stop_conditions.finished

    def abort(self) -> None:
        self._aborted = True

    def report_cached_tokens(self, cached: int) -> None:
        """So many tokens of the prompt need not be computed."""
        self.channel.send(Chunk(cached_tokens=cached))

    def choose(self, logits: Tensor) -> int:
        """The next id, which is handed over; of no meaning once it is ``over``. Never raises: one
        generation's failure is not that of the others in the batch."""
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

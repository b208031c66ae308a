"""Stop conditions of a generation: stop strings, stop ids, end tokens, token limits. Sans-IO.

Sampled tokens are turned into chunks. Tokens that may be the start of a stop string are held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal

from antiphon.engines.base import Sampling
from antiphon.inference.tokens import Chunk, Tokenizer, TokenLogprob

from .stop_strings import StopStrings

__all__ = ["StopConditions"]


class StopConditions:
    """The stop conditions of one generation.

    ``context_left``: number of tokens that still fit into the context. ``finished``: whether the
    last chunk was built. The last chunk has the finish reason.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: Sampling, context_left: int) -> None:
        self._tokenizer = tokenizer
        self._special_ids = frozenset(tokenizer.special.values())
        self._end_ids = frozenset(sampling.stop_ids)
        if not sampling.ignore_eos:
            self._end_ids |= tokenizer.end_ids
        self._wants_logprobs = sampling.logprobs is not None
        self._remaining = min(sampling.max_tokens, context_left)
        self._stop_strings = StopStrings(sampling.stop)
        self._pending: deque[TokenLogprob] = deque()
        self.finished = False

    def feed(self, tokens: Iterable[TokenLogprob]) -> Chunk | None:
        """Add sampled tokens. Tokens after the end of the generation are dropped.

        Returns a chunk of the tokens that can be sent now, or None if there are none. Tokens that
        may be the start of a stop string are held back.
        """
        released = 0
        for token in tokens:
            self._pending.append(token)
            self._remaining -= 1
            is_special = token.id in self._special_ids
            released += self._stop_strings.feed(
                b"" if is_special else self._tokenizer.piece(token.id)
            )
            if self._stop_strings.matched_stop:
                self.finished = True
                ids, logprobs = self._release(released)
                stop, tail = self._stop_strings.matched_stop, self._stop_strings.tail
                return Chunk(ids, logprobs, "stop", stop_text=stop, tail=tail)
            if token.id in self._end_ids:
                return self.finish("stop")
            if self._remaining <= 0:
                return self.finish("length")
        if not released:
            return None
        ids, logprobs = self._release(released)
        return Chunk(ids, logprobs)

    def finish(self, reason: Literal["stop", "length"]) -> Chunk:
        """End the generation with ``reason``. Return the last chunk, with all tokens that were held
        back."""
        self.finished = True
        ids, logprobs = self._release(len(self._pending))
        return Chunk(ids, logprobs, reason)

    def _release(self, count: int) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
        tokens = tuple(self._pending.popleft() for _ in range(count))
        return tuple(token.id for token in tokens), tokens if self._wants_logprobs else ()

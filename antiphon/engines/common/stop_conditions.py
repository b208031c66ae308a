"""Where a continuation ends: stop strings, stop ids, end tokens, the most tokens. Sans-IO.

Tokens in, chunks out; what could be the beginning of a stop string is held back. It knows no
engine: those that cannot end by themselves are ended by what it says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal

from antiphon.engines.base import Sampling
from antiphon.tokens import Chunk, Tokenizer, TokenLogprob

from .stop_strings import StopStrings

__all__ = ["StopConditions"]


class StopConditions:
    """One continuation. ``room``: tokens left in the context. ``over`` once its last chunk was
    made."""

    def __init__(self, tokenizer: Tokenizer, sampling: Sampling, room: int) -> None:
        self._tokenizer = tokenizer
        self._silent = frozenset(tokenizer.special.values())
        self._ends = frozenset(sampling.stop_ids)
        if not sampling.ignore_eos:
            self._ends |= tokenizer.end_ids
        self._told = sampling.logprobs is not None
        self._left = min(sampling.max_tokens, room)
        self._stops = StopStrings(sampling.stop)
        self._held: deque[TokenLogprob] = deque()
        self.over = False

    def feed(self, tokens: Iterable[TokenLogprob]) -> Chunk | None:
        """What may go now; None if nothing may. Tokens behind the end are dropped."""
        free = 0
        for token in tokens:
            self._held.append(token)
            self._left -= 1
            silent = token.id in self._silent
            free += self._stops.feed(b"" if silent else self._tokenizer.piece(token.id))
            if self._stops.found:
                self.over = True
                ids, told = self._let_go(free)
                stop, tail = self._stops.found, self._stops.tail
                return Chunk(ids, told, "stop", stop_text=stop, tail=tail)
            if token.id in self._ends:
                return self.finish("stop")
            if self._left <= 0:
                return self.finish("length")
        if not free:
            return None
        ids, told = self._let_go(free)
        return Chunk(ids, told)

    def finish(self, reason: Literal["stop", "length"]) -> Chunk:
        """The engine ended it: all that was held back goes."""
        self.over = True
        ids, told = self._let_go(len(self._held))
        return Chunk(ids, told, reason)

    def _let_go(self, count: int) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
        tokens = tuple(self._held.popleft() for _ in range(count))
        return tuple(token.id for token in tokens), tokens if self._told else ()

"""Stop conditions of a generation: stop strings, stop ids, end tokens, token limits. Sans-IO.

Sampled tokens are turned into chunks. Tokens that may be the start of a stop string are held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from antiphon.engines.base import Sampling
from antiphon.errors import BackendError
from antiphon.inference.tokens import Chunk, Tokenizer, TokenLogprob

from .stop_strings import StopStrings
from .thread_channel import merge_chunks

__all__ = ["EngineOutput", "StopConditions", "finish_reason"]

Reason = Literal["stop", "length"]
_REASONS: Mapping[str | None, Reason | None] = {None: None, "stop": "stop", "length": "length"}


def finish_reason(reason: str | None) -> Reason | None:
    """Check the finish reason that an engine reports, and return it. ``reason``: None until the
    generation ends. Raises ``BackendError`` if the engine has aborted the generation."""
    if reason not in _REASONS:
        raise BackendError(f"The engine ended the generation: {reason}.")
    return _REASONS[reason]


class EngineOutput(Struct):
    """What an engine reports at one time about a generation.

    ``tokens``: the new tokens. ``reason``: the finish reason; None before the end.
    ``unreported_tokens``: number of sampled tokens whose ids the engine does not report.
    ``cached_tokens``: number of prompt tokens taken from the cache, or None if this output does not
    report it. ``prompt_tokens``: number of all prompt tokens, including image tokens, or None if
    this output does not report it.
    """

    tokens: Sequence[TokenLogprob] = ()
    reason: Reason | None = None
    unreported_tokens: int = 0
    cached_tokens: int | None = None
    prompt_tokens: int | None = None


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

    @property
    def held_ids(self) -> tuple[int, ...]:
        """The sampled ids that are held back."""
        return tuple(token.id for token in self._pending)

    def take(self, output: EngineOutput) -> Chunk | None:
        """Add what the engine reports. Return a chunk of the tokens that can be sent now, or None
        if there are none. If the engine has ended the generation, it is the last chunk."""
        chunk = self.feed(output.tokens) if output.tokens else None
        if output.reason is None or self.finished:
            return chunk
        rest = self.finish(output.reason, output.unreported_tokens)
        return rest if chunk is None else merge_chunks((chunk, rest))

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

    def finish(self, reason: Reason, unreported_tokens: int = 0) -> Chunk:
        """End the generation with ``reason``. Return the last chunk, with all tokens that were held
        back."""
        self.finished = True
        ids, logprobs = self._release(len(self._pending))
        return Chunk(ids, logprobs, reason, unreported_tokens=unreported_tokens)

    def _release(self, count: int) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
        tokens = tuple(self._pending.popleft() for _ in range(count))
        return tuple(token.id for token in tokens), tokens if self._wants_logprobs else ()

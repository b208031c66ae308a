"""Matched generation: sample without a grammar, and keep the output within the grammar. This
continues an interrupted reply, or one whose grammar is too costly for the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import ParamSpec, TypeVar

from msgspec.structs import replace

from antiphon.engines.base import Engine, Sampling
from antiphon.errors import BackendError
from antiphon.inference.tokens import Chunk, Prompt, TokenLogprob
from antiphon.support.fair_limiter import FairLimiter

from .grammar_state import GrammarState
from .stop_conditions import EngineOutput, StopConditions

_P = ParamSpec("_P")
_T = TypeVar("_T")


class MatchedGeneration:
    """One continuation of a prompt, which the engine samples without the grammar. See
    ``grammar_state``.

    When a sampled token does not match, the token is dropped and the request to the engine ends.
    The next request samples only one token, with a ``logit_bias`` that allows only the matching
    tokens. The request after that samples freely again. ``grammar``: the state of the grammar after
    the part of the reply that is already in the prompt. ``turns``: limits the work on grammars.
    """

    def __init__(
        self,
        engine: Engine,
        grammar: GrammarState,
        prompt: Prompt,
        sampling: Sampling,
        turns: FairLimiter,
    ) -> None:
        self._engine = engine
        self._grammar = grammar
        self._turns = turns
        self._prompt = prompt
        # A stop string may begin in one request and end in the next, so it is matched here.
        self._sampling = replace(sampling, constraint=None, stop=(), is_matched=True)
        context_left = engine.card.context_size - len(prompt.ids)
        self._stop_conditions = StopConditions(engine.tokenizer, sampling, context_left)
        self._sampled: list[int] = []
        #: The next request samples one token, only from the tokens that match.
        self._is_masked = False
        #: The current request must end, and another request must follow.
        self._is_cut = False

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield chunks as ``Engine.generate`` does. Also raises ``BackendError`` if the engine
        samples a token that ``logit_bias`` does not allow, or if the grammar is too costly."""
        while not self._stop_conditions.finished:
            counts_cached = not self._sampled
            prompt, sampling = await self._next_request()
            async with aclosing(self._engine.generate(prompt, sampling)) as chunks:
                async for chunk in chunks:
                    cached = chunk.cached_tokens if counts_cached else None
                    matched = await self._feed(chunk)
                    if matched is not None or cached is not None:
                        yield replace(matched or Chunk(), cached_tokens=cached)
                    if self._is_cut or self._stop_conditions.finished:
                        break
                else:
                    raise BackendError("The engine stopped without a finish reason.")

    async def _next_request(self) -> tuple[Prompt, Sampling]:
        self._is_cut = False
        prompt = self._prompt.followed_by(self._sampled)
        sampling = self._sampling.after(self._sampled)
        if self._is_masked:
            sampling = await self._in_turn(self._grammar.mask, sampling)
        return prompt, sampling

    async def _in_turn(
        self, work: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs
    ) -> _T:
        """Do a piece of work on the grammar on a thread, when it is the tenant's turn."""
        async with self._turns.slot(self._sampling.tenant):
            done = await asyncio.to_thread(work, *arguments, **options)
        self._grammar.check_budget()
        return done

    async def _feed(self, chunk: Chunk) -> Chunk | None:
        """Match a chunk of the engine to the grammar.

        Returns a chunk of the tokens that can be sent now, or None if there are none. Tokens that
        may be the start of a stop string are held back.
        """
        if not chunk.ids and chunk.finish is None:
            return None
        count, is_rejected = await self._in_turn(self._grammar.match, chunk.ids, chunk.finish)
        if is_rejected and self._is_masked:
            raise BackendError("The engine does not sample the allowed tokens.", permanent=True)
        self._is_cut = is_rejected or self._is_masked
        self._is_masked = is_rejected
        self._sampled += chunk.ids[:count]
        tokens = chunk.logprobs or tuple(TokenLogprob(id, 0.0) for id in chunk.ids)
        reason = None if self._is_cut else chunk.finish
        return self._stop_conditions.take(
            EngineOutput(tokens[:count], reason, chunk.unreported_tokens)
        )

"""Grammars that an engine cannot apply itself: those of generations that broke off, because an
engine applies a grammar from the first token of a request, and those that are costly.

Some engines compute the masks of all generations in the loop that also computes their tokens. There
a grammar whose masks take long, such as an ambiguous one, delays everybody. So a copy of the
grammar's state follows the generation on another thread, and measures what its masks take. If this
is too much, the engine samples the rest without the grammar, and ``MatchedGeneration`` matches it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from antiphon.engines.base import Sampling
from antiphon.errors import CannotContinue, EngineLost
from antiphon.inference.tokens import Chunk, Constraint, Prompt

from .continued_engine import ContinuedEngine
from .grammar_state import GrammarState, GrammarTracker, grammar_too_costly
from .matched_generation import MatchedGeneration

#: CPU seconds that the masks of a generation may take in the engine's loop, and the seconds that
#: each of its tokens adds. The masks of usual schemas take a tenth of this.
_ALLOWANCE_S, _TOKEN_ALLOWANCE_S = 0.05, 0.001
#: CPU seconds of a grammar's compilation, which the engine repeats in its loop.
_COMPILE_ALLOWANCE_S = 0.25
#: Seconds from one measurement of a generation to the next.
_PAUSE_S = 0.05
#: Grammars that are remembered as costly.
_MAX_COSTLY = 1024


class GrammarWatch:
    """Generates with ``engine``, continues generations under a grammar that broke off, and measures
    the grammars. One instance serves all generations of the engine."""

    def __init__(self, engine: ContinuedEngine) -> None:
        self._engine = engine
        self._tracker = GrammarTracker(engine.tokenizer)
        self._costly: OrderedDict[str, None] = OrderedDict()

    def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        """Return an iterator over chunks, as ``Engine.generate`` does. It also raises
        ``BackendError`` if the grammar of ``sampling`` is too costly for this process, too."""
        if sampling.constraint is None:
            return self._engine.generate(prompt, sampling)
        return self._generate(prompt, sampling, sampling.constraint)

    async def resume(
        self, prompt: Prompt, sampling: Sampling, sampled: Sequence[int]
    ) -> AsyncGenerator[Chunk, None]:
        """Generate what follows the ids ``sampled`` of a generation that another process began.
        ``prompt`` and ``sampling`` are those of its beginning. Raises ``CannotContinue`` if the
        output must match a grammar that cannot be continued."""
        grammar = await self._restored(sampling, sampled)
        if grammar is None and sampling.constraint is not None and sampling.constraint.needed:
            raise CannotContinue("its format was enforced by a grammar")
        async with aclosing(self._rest(prompt, sampling, grammar, sampled)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _generate(
        self, prompt: Prompt, sampling: Sampling, constraint: Constraint
    ) -> AsyncGenerator[Chunk, None]:
        lark, sampled = constraint.lark, list[int]()
        grammar: GrammarState | None = None
        if self._engine.capabilities.masks_delay_others:
            grammar = await self._state(lark, sampling)
        if grammar is None or not self._is_costly(lark, grammar):
            meter = None if grammar is None else _Meter(grammar)
            try:
                async with aclosing(self._engine.generate(prompt, sampling)) as chunks:
                    async for chunk in chunks:
                        sampled += chunk.ids
                        yield chunk
                        if meter is not None and await meter.ends_request(chunk):
                            break
                    else:
                        return
                if meter is not None and meter.is_costly:
                    await meter.finish()
                    self._remember(lark)
            except EngineLost as lost:
                grammar = await self._restored(sampling, sampled)
                if grammar is None and constraint.needed:
                    raise lost.failure or lost from None
                sampling = replace(sampling, retry=lost.retry)
        async with aclosing(self._rest(prompt, sampling, grammar, sampled)) as chunks:
            async for chunk in chunks:
                # The generation's own tokens may be in the cache, too.
                yield replace(chunk, cached_tokens=None) if sampled else chunk

    def _rest(
        self,
        prompt: Prompt,
        sampling: Sampling,
        grammar: GrammarState | None,
        sampled: Sequence[int],
    ) -> AsyncGenerator[Chunk, None]:
        """Generate what follows the ids ``sampled`` without the engine's grammar, and match it.
        ``grammar``: the state after these ids; None if the output is not matched."""
        rest, sampling = prompt.followed_by(sampled), sampling.after(sampled)
        if grammar is None:
            return self._engine.generate(rest, replace(sampling, constraint=None))
        turns = self._tracker.turns
        return MatchedGeneration(self._engine, grammar, rest, sampling, turns).chunks()

    async def _restored(self, sampling: Sampling, sampled: Sequence[int]) -> GrammarState | None:
        """Return the state of the enforced grammar after the sampled ids. Return None if there is
        no grammar, or if it cannot be continued."""
        constraint, capabilities = sampling.constraint, self._engine.capabilities
        if constraint is None or not capabilities.logit_bias:
            return None
        lark = constraint.lark
        if capabilities.schemas:  # the grammar that an engine enforces that knows only schemas
            lark = f"start: %json {msgspec.json.encode(constraint.schema).decode()}"
        return await self._state(lark, sampling, sampled)

    async def _state(
        self, lark: str, sampling: Sampling, sampled: Sequence[int] = ()
    ) -> GrammarState | None:
        end_ids = {*self._engine.tokenizer.end_ids, *sampling.stop_ids}
        return await asyncio.to_thread(self._tracker.start, lark, sampled, end_ids)

    def _is_costly(self, lark: str, grammar: GrammarState) -> bool:
        return lark in self._costly or grammar.spent_s > _COMPILE_ALLOWANCE_S

    def _remember(self, lark: str) -> None:
        self._costly[lark] = None
        self._costly.move_to_end(lark)
        if len(self._costly) > _MAX_COSTLY:
            self._costly.popitem(last=False)


class _Meter:
    """Measures the grammar of one generation while the engine applies it. ``grammar``: the state of
    the grammar before the first token."""

    def __init__(self, grammar: GrammarState) -> None:
        self._grammar = grammar
        self._loop = asyncio.get_running_loop()
        self._waiting: list[int] = []
        self._count = 0
        self._limit_s = grammar.spent_s + _ALLOWANCE_S
        self._due = self._loop.time()
        #: Whether the engine samples what this state rejects, so that it cannot be followed.
        self._is_lost = False
        #: Whether the grammar is too costly for the engine's loop.
        self.is_costly = False
        self._job = self._start()

    async def ends_request(self, chunk: Chunk) -> bool:
        """Follow the engine. Return whether its request shall end, because the grammar is too
        costly for the engine's loop, or because other tenants wait."""
        self._waiting += chunk.ids
        self._count += len(chunk.ids)
        if chunk.finish is not None:
            return False
        self.is_costly = self._measured()
        return self.is_costly or (chunk.gives_way and await self._catch_up())

    def _measured(self) -> bool:
        if not self._job.done():
            return False
        self._job.result()
        if self._is_lost:
            return self._grammar.is_broken
        if self._grammar.spent_s > self._limit_s + _TOKEN_ALLOWANCE_S * self._count:
            return True
        if self._loop.time() >= self._due:
            self._job = self._start()
        return False

    def _start(self) -> asyncio.Future[None]:
        ids, self._waiting = tuple(self._waiting), []
        self._due = self._loop.time() + _PAUSE_S
        return self._loop.run_in_executor(None, self._measure, ids)

    def _measure(self, ids: tuple[int, ...]) -> None:
        self._is_lost = self._grammar.measure(ids) < len(ids)

    async def finish(self) -> None:
        """Advance the state over all ids, and leave it to the caller."""
        if not await self._catch_up():
            raise grammar_too_costly()

    async def _catch_up(self) -> bool:
        """Advance the state over all ids. Return whether it has followed the engine."""
        await asyncio.wait([self._job])
        ids, self._waiting = tuple(self._waiting), []
        if not self._is_lost:
            self._is_lost = await asyncio.to_thread(self._grammar.accept, ids) < len(ids)
        return not self._is_lost and not self._grammar.is_broken

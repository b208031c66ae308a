"""Keep costly grammars off the engine's loop.

Some engines compute the masks of all generations in the loop that also computes their tokens. There
a grammar whose masks take long, such as an ambiguous one, delays everybody. So a copy of the
grammar's state follows the generation on another thread, and measures what its masks take. If this
is too much, the engine samples the rest without the grammar, and ``MatchedGeneration`` matches it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from antiphon.engines.base import Sampling
from antiphon.errors import EngineLost
from antiphon.inference.tokens import Chunk, Constraint, Prompt

from .grammar_state import GrammarState, GrammarTracker, grammar_too_costly
from .matched_generation import MatchedGeneration
from .restarted_engine import RestartedEngine

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
    """Generates with ``engine``, and measures the grammars of its generations. One instance serves
    all generations of the engine. ``tracker``: makes the states of grammars."""

    def __init__(self, engine: RestartedEngine) -> None:
        self.engine = engine
        self.tracker = GrammarTracker(engine.tokenizer)
        self._costly: OrderedDict[str, None] = OrderedDict()

    def generate(
        self, prompt: Prompt, sampling: Sampling, end_ids: Collection[int]
    ) -> AsyncGenerator[Chunk, None]:
        """Return an iterator over chunks, as ``Engine.generate`` does. It also raises
        ``BackendError`` if the grammar of ``sampling`` is too costly for this process, too.
        ``end_ids``: ids that may end the output once it matches the whole grammar."""
        if sampling.constraint is None:
            return self.engine.generate(prompt, sampling)
        return self._generate(prompt, sampling, sampling.constraint, end_ids)

    async def _generate(
        self,
        prompt: Prompt,
        sampling: Sampling,
        constraint: Constraint,
        end_ids: Collection[int],
    ) -> AsyncGenerator[Chunk, None]:
        lark, sampled = constraint.lark, list[int]()
        grammar: GrammarState | None = None
        if self.engine.capabilities.masks_delay_others:
            grammar = await asyncio.to_thread(self.tracker.start, lark, (), end_ids)
        if grammar is None or not self._is_costly(lark, grammar):
            meter = None if grammar is None else _Meter(grammar)
            try:
                async with aclosing(self.engine.generate(prompt, sampling)) as chunks:
                    async for chunk in chunks:
                        sampled += chunk.ids
                        yield chunk
                        if meter is not None and meter.feed(chunk.ids) and chunk.finish is None:
                            break
                    else:
                        return
                if meter is not None:
                    await meter.finish()
                self._remember(lark)
            except EngineLost:
                grammar = await self._restored(constraint, sampled, end_ids)
                if grammar is None:
                    raise
        assert grammar is not None
        async with aclosing(self._matched(prompt, sampling, grammar, sampled)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _matched(
        self, prompt: Prompt, sampling: Sampling, grammar: GrammarState, sampled: Sequence[int]
    ) -> AsyncGenerator[Chunk, None]:
        """Generate without the grammar what follows the ids ``sampled``, and match it.
        ``grammar``: its state after these ids."""
        rest = prompt.followed_by(sampled)
        sampling = replace(sampling, max_tokens=sampling.max_tokens - len(sampled))
        matched = MatchedGeneration(self.engine, grammar, rest, sampling, self.tracker.turns)
        async with aclosing(matched.chunks()) as chunks:
            async for chunk in chunks:
                yield replace(chunk, cached_tokens=None) if sampled else chunk

    async def _restored(
        self, constraint: Constraint, sampled: Sequence[int], end_ids: Collection[int]
    ) -> GrammarState | None:
        """Return the state of a grammar after the sampled ids; None if it cannot be continued."""
        if not self.engine.capabilities.logit_bias:
            return None
        return await asyncio.to_thread(self.tracker.start, constraint.lark, sampled, end_ids)

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
        self._job = self._start()

    def feed(self, ids: tuple[int, ...]) -> bool:
        """Add sampled ids. Return whether the grammar is too costly for the engine's loop."""
        self._waiting += ids
        self._count += len(ids)
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
        await asyncio.wait([self._job])
        ids = tuple(self._waiting)
        self._is_lost = await asyncio.to_thread(self._grammar.accept, ids) < len(ids)
        if self._is_lost or self._grammar.is_broken:
            raise grammar_too_costly()

"""Generations continue after the process of their engine has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from antiphon.engines.base import Sampling
from antiphon.engines.common.continued_engine import ContinuedEngine
from antiphon.engines.common.watched_generation import GrammarWatch
from antiphon.errors import BackendError, EngineLost
from antiphon.inference.tokens import Chunk, Constraint, Prompt
from antiphon.testing.engine import ScriptedEngine


class CrashingEngine(ScriptedEngine):
    """Counts upwards from the last token of a prompt. Its process ends at each token in ``fatal``,
    once, and whenever it reads a prompt that begins with ``poison``."""

    def __init__(self, fatal: tuple[int, ...] = (), poison: int | None = None) -> None:
        super().__init__()
        self._fatal = set(fatal)
        self._poison = poison
        #: The first ids of the prompts that were begun.
        self.begun: list[int] = []

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        self.requests.append((prompt, sampling))
        self.begun.append(prompt.ids[0])
        yield Chunk(cached_tokens=len(prompt.ids))
        await asyncio.sleep(0)
        if prompt.ids[0] == self._poison:
            raise EngineLost
        last = prompt.ids[-1]
        for count in range(1, sampling.max_tokens + 1):
            await asyncio.sleep(0)
            if last + count in self._fatal:
                self._fatal.remove(last + count)
                raise EngineLost
            finish = "length" if count == sampling.max_tokens else None
            yield Chunk((last + count,), finish=finish)  # type: ignore[arg-type]


async def _chunks(engine: ContinuedEngine, first: int, sampling: Sampling) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(Prompt((first,)), sampling)]


def _ids(chunks: list[Chunk]) -> list[int]:
    return [id for chunk in chunks for id in chunk.ids]


async def test_generation_continues_after_its_last_token() -> None:
    inner = CrashingEngine(fatal=(11, 14, 20))
    chunks = await _chunks(ContinuedEngine(inner), 10, Sampling(max_tokens=12))
    assert _ids(chunks) == list(range(11, 23))
    assert chunks[-1].finish == "length"
    # the tokens of the reply itself are not reported as cached
    assert [chunk.cached_tokens for chunk in chunks if not chunk.ids] == [1, 1, None, None]
    assert [sampling.max_tokens for _, sampling in inner.requests] == [12, 12, 9, 3]


@pytest.mark.parametrize("constraint", [None, Constraint("start: /x+/")])
async def test_loss_after_the_last_token_ends_the_generation(constraint: Constraint | None) -> None:
    class LateEngine(CrashingEngine):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
            self.requests.append((prompt, sampling))
            yield Chunk((7, 8))
            raise EngineLost

    engine = LateEngine()
    sampling = Sampling(max_tokens=2, constraint=constraint)
    chunks = GrammarWatch(ContinuedEngine(engine)).generate(Prompt((1,)), sampling)
    assert [(chunk.ids, chunk.finish) async for chunk in chunks] == [((7, 8), None), ((), "length")]
    assert len(engine.requests) == 1


async def test_generation_without_a_token_left_asks_no_engine() -> None:
    inner = CrashingEngine()
    assert await _chunks(ContinuedEngine(inner), 1, Sampling(max_tokens=0)) == [
        Chunk(finish="length")
    ]
    assert not inner.requests


async def test_request_that_always_ends_the_process_fails_with_the_reason() -> None:
    engine = ContinuedEngine(CrashingEngine(poison=1))
    with pytest.raises(BackendError, match="ended 3 times during this response") as caught:
        await _chunks(engine, 1, Sampling(max_tokens=5))
    assert not isinstance(caught.value, EngineLost) and caught.value.permanent


async def test_losses_with_progress_are_bounded_too() -> None:
    class OneToken(CrashingEngine):
        async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
            yield Chunk((len(prompt.ids),))
            raise EngineLost

    engine = ContinuedEngine(OneToken())
    with pytest.raises(BackendError, match="ended 11 times"):
        await _chunks(engine, 1, Sampling(max_tokens=1000))


async def test_others_go_on_beside_a_request_that_ends_the_process() -> None:
    """The process of all ends when the poisoned one is read: they restart one at a time."""

    class SharedProcess(CrashingEngine):
        def __init__(self) -> None:
            super().__init__(poison=1)
            self.deaths = 0

        async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
            lives = self.deaths
            try:
                async for chunk in super().generate(prompt, sampling):
                    if self.deaths > lives:
                        raise EngineLost
                    yield chunk
            except EngineLost:
                self.deaths += lives == self.deaths
                raise

    engine = ContinuedEngine(SharedProcess())
    firsts = (100, 1, 200, 300)
    results = await asyncio.gather(
        *(_chunks(engine, first, Sampling(max_tokens=20)) for first in firsts),
        return_exceptions=True,
    )
    for first, result in zip(firsts, results, strict=True):
        if first == 1:
            assert isinstance(result, BackendError) and "3 times" in result.message
        else:
            assert isinstance(result, list) and _ids(result) == list(range(first + 1, first + 21))


async def test_abandoned_restart_lets_the_next_one_begin() -> None:
    inner = CrashingEngine(fatal=(11, 31))
    engine = ContinuedEngine(inner)
    chunks = engine.generate(Prompt((10,)), Sampling(max_tokens=5))
    assert [(await anext(chunks)).ids, (await anext(chunks)).ids] == [(), ()]  # before its token
    assert inner.begun == [10, 10]
    await chunks.aclose()
    async with asyncio.timeout(60):
        assert _ids(await _chunks(engine, 30, Sampling(max_tokens=5))) == list(range(31, 36))


async def test_constrained_output_is_left_to_the_caller() -> None:
    constraint = Constraint("start: /x+/")
    engine = ContinuedEngine(CrashingEngine(fatal=(12,)))
    with pytest.raises(EngineLost):
        await _chunks(engine, 10, Sampling(max_tokens=5, constraint=constraint))
    again = ContinuedEngine(CrashingEngine(fatal=(11,)))  # nothing was sampled before
    sampling = Sampling(max_tokens=5, constraint=constraint)
    assert _ids(await _chunks(again, 10, sampling)) == list(range(11, 16))

"""A long generation gives way to other tenants, and continues later as if it had not."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.common.continued_engine import ContinuedEngine
from antiphon.engines.common.watched_generation import GrammarWatch
from antiphon.engines.llama.client import LlamaClient
from antiphon.engines.llama.engine import LlamaEngine, load
from antiphon.engines.llama.slots import COPY_COST, MIN_SHARED, TURN_COPIES
from antiphon.inference.tokens import Chunk, Constraint, Prompt
from antiphon.testing.engine_check import TIMEOUT_S
from tests.tiny_models.tiny_tools import GGUF
from tests.tiny_models.unpacked import tiny_gpt_oss

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

LENGTH, OUTPUT = 100, 300
#: Tokens of a turn of these generations, and those that arrive while it ends.
TURN = TURN_COPIES * (MIN_SHARED + (LENGTH + OUTPUT) // COPY_COST) + 12
#: Matches whatever the model may say.
ANYTHING = Constraint("start: /(.|\\n)*/", free_text=True)


class Reply:
    """A generation of a tenant that runs as a task."""

    def __init__(self, engine: LlamaEngine, tenant: str, number: int, **sampling: Any) -> None:
        self.chunks: list[Chunk] = []
        prompt = Prompt(tuple(random.Random(number).choices(range(300, 500), k=LENGTH)))
        asked = Sampling(
            **{"max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True, **sampling},
            tenant=tenant,
            cache_scope=tenant,
        )
        generate = GrammarWatch(ContinuedEngine(engine)).generate
        self.task = asyncio.create_task(self._run(generate(prompt, asked)))

    async def _run(self, chunks: AsyncIterator[Chunk]) -> None:
        async for chunk in chunks:
            self.chunks.append(chunk)

    @property
    def ids(self) -> list[int]:
        return [id for chunk in self.chunks for id in chunk.ids]

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not reached() and not self.task.done():
                await asyncio.sleep(0)

    async def finished(self) -> list[int]:
        async with asyncio.timeout(TIMEOUT_S):
            await self.task
        return self.ids


@pytest_asyncio.fixture(
    scope="module", loop_scope="session", params=["cut anywhere", "sliding window", "no cache"]
)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[LlamaEngine]:
    path: Path = tiny_gpt_oss() if request.param == "sliding window" else GGUF
    megabytes = 0 if request.param == "no cache" else 64
    options = LoadOptions(threads=1, context_size=1024, parallel=2, prompt_cache_mb=megabytes)
    loaded = await load(path, options)
    yield loaded
    await loaded.close()


async def test_two_long_generations_give_way_to_a_short_one(engine: LlamaEngine) -> None:
    alone = [await Reply(engine, "flood", n).finished() for n in range(2)]
    flood = [Reply(engine, "flood", n) for n in range(2)]
    for each in flood:
        await each.until(lambda each=each: len(each.ids) > 2)  # type: ignore[misc]
    before = sum(len(each.ids) for each in flood)
    victim = Reply(engine, "victim", 7, max_tokens=4)
    await victim.until(lambda: bool(victim.ids))
    ahead = sum(len(each.ids) for each in flood) - before
    cache = engine.prefix_cache
    assert cache is not None
    assert ahead <= 2 * (TURN if cache.limit_bytes else LENGTH + TURN)
    assert len(await victim.finished()) == 4
    for reply, ids in zip(flood, alone, strict=True):
        assert await reply.finished() == ids
        assert reply.chunks[-1].finish == "length"
        assert sum(chunk.cached_tokens is not None for chunk in reply.chunks) == 1


async def test_generation_with_a_grammar_continues_without_it(engine: LlamaEngine) -> None:
    """The engine cannot start in the middle of a grammar, so the caller matches the rest."""
    alone = [await Reply(engine, "flood", n).finished() for n in range(2)]
    flood = [Reply(engine, "flood", n, constraint=ANYTHING) for n in range(2)]
    for each in flood:
        await each.until(lambda each=each: bool(each.ids))  # type: ignore[misc]
    victim = Reply(engine, "victim", 7, max_tokens=4)
    assert len(await victim.finished()) == 4
    assert [await reply.finished() for reply in flood] == alone
    assert any(chunk.gives_way for reply in flood for chunk in reply.chunks)


async def test_tenants_rotate_if_there_are_more_than_slots(engine: LlamaEngine) -> None:
    replies = [Reply(engine, f"tenant {n}", n) for n in range(4)]
    async with asyncio.timeout(TIMEOUT_S):
        while not all(len(each.ids) > 1 for each in replies):
            assert not any(each.task.done() for each in replies)
            await asyncio.sleep(0.001)
    assert [len(await each.finished()) for each in replies] == [OUTPUT] * 4


async def test_requests_of_one_tenant_are_not_paused(
    engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[int] = []
    generate = LlamaClient.generate

    async def count(self: LlamaClient, body: bytes, on_event: Callable[[bytes], bool]) -> None:
        requests.append(json.loads(body)["n_predict"])
        await generate(self, body, on_event)

    monkeypatch.setattr(LlamaClient, "generate", count)
    replies = [Reply(engine, "one", n) for n in range(4)]
    assert [len(await each.finished()) for each in replies] == [OUTPUT] * 4
    assert requests.count(OUTPUT) == 4 and set(requests) <= {OUTPUT, 1}


async def test_paused_generation_ends_with_its_client(engine: LlamaEngine) -> None:
    flood = [Reply(engine, "flood", n) for n in range(2)]
    victims = [Reply(engine, "victim", 5), Reply(engine, "other", 6)]
    for victim in victims:
        await victim.until(lambda victim=victim: bool(victim.ids))  # type: ignore[misc]
    for each in flood:
        each.task.cancel()
    await asyncio.wait([each.task for each in flood])
    for victim in victims:
        assert len(await victim.finished()) == OUTPUT
    again = [Reply(engine, "flood", n) for n in range(2)]  # no slot is lost
    assert [len(await each.finished()) for each in again] == [OUTPUT] * 2

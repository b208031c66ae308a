"""The engine vLLM: tenants take turns for its slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.engines import vllm
from antiphon.engines.base import LoadOptions, Sampling
from antiphon.errors import BackendError
from antiphon.testing.engine_check import collect
from tests.engines import fake_vllm
from tests.tiny_models.tiny_tools import FOLDER, prompt

WAIT_S = 60


class Engine:
    """An engine with one slot, and the order in which its double got the requests."""

    def __init__(self, engine: Any, double: Any) -> None:
        self.engine = engine
        self._double = double

    @property
    def started(self) -> list[str]:
        return [request["trace"]["traceparent"] for request in self._double.requests]

    def start(self, name: str, *, priority: int | None = None) -> asyncio.Task[Any]:
        """Start a request called ``name`` of the tenant that the first letter names."""
        sampling = Sampling(
            max_tokens=4,
            temperature=0,
            ignore_eos=True,
            tenant=name[0],
            priority=priority,
            trace={"traceparent": name},
        )
        return asyncio.create_task(collect(self.engine, prompt(self.engine, "Hi"), sampling))


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    doubles = fake_vllm.install(monkeypatch)
    loaded = await vllm.load(FOLDER, LoadOptions(context_size=256, parallel=1))
    yield Engine(loaded, doubles[-1])
    await loaded.close()


async def test_a_flood_delays_another_tenant_by_one_request(engine: Engine) -> None:
    flood = [engine.start(f"a{number}") for number in range(8)]
    victims = [engine.start(f"b{number}") for number in range(2)]
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*flood, *victims)
    assert engine.started[:5] == ["a0", "b0", "a1", "b1", "a2"]
    assert len(engine.started) == 10


async def test_priorities_order_the_requests_of_a_tenant_only(engine: Engine) -> None:
    tasks = [engine.start("a0"), engine.start("a1"), engine.start("a2", priority=-1)]
    tasks += [engine.start("b0", priority=5)]
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*tasks)
    assert engine.started == ["a0", "b0", "a2", "a1"]


async def test_a_waiting_request_ends_with_its_client_or_with_the_engine(engine: Engine) -> None:
    first, left, waiting = engine.start("a0"), engine.start("a1"), engine.start("a2")
    async with asyncio.timeout(WAIT_S):
        while not engine.started:
            await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait([left])
        await engine.engine.close()
        for task in (first, waiting):
            with pytest.raises(BackendError, match="closed"):
                await task
    assert left.cancelled() and engine.started == ["a0"]

"""The engine over TensorRT-LLM, against a double that checks what it is asked as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.tensorrt_llm import TensorrtEngine, load
from antiphon.errors import BackendError, InvalidRequest, SetupError
from antiphon.testing.engine_check import CHECKS, Check, check_closed, check_engine, collect
from tests.engines import fake_tensorrt
from tests.tiny_models.tiny_tools import FOLDER, calls_a_tool_and_answers, prompt

WAIT_S = 60


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch) -> list[fake_tensorrt.BaseLLM]:
    """Every double that the test makes."""
    return fake_tensorrt.install(monkeypatch)


@pytest.fixture
async def engine(doubles: list[fake_tensorrt.BaseLLM]) -> AsyncIterator[TensorrtEngine]:
    loaded = await load(FOLDER, LoadOptions(context_size=256))
    yield loaded
    await loaded.close()
    for task in doubles[0].working:
        task.cancel()


@pytest.fixture
def double(doubles: list[fake_tensorrt.BaseLLM], engine: TensorrtEngine) -> fake_tensorrt.BaseLLM:
    """The double behind ``engine``."""
    return doubles[0]


def greedy(max_tokens: int = 4, **more: Any) -> Sampling:
    return Sampling(max_tokens=max_tokens, temperature=0, ignore_eos=True, **more)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_keeps_the_contract(engine: TensorrtEngine, check: Check) -> None:
    await check(engine)


async def test_closed_engine_refuses_requests(
    engine: TensorrtEngine, double: fake_tensorrt.BaseLLM
) -> None:
    await check_closed(engine)
    assert double.down and double.aborted == 1


async def test_only_abandoned_requests_are_aborted(
    engine: TensorrtEngine, double: fake_tensorrt.BaseLLM
) -> None:
    await collect(engine, prompt(engine, "Hi"), greedy())
    assert double.aborted == 0
    chunks = engine.generate(prompt(engine, "Hi"), greedy(100))
    async with asyncio.timeout(WAIT_S):
        await anext(chunks)
        await chunks.aclose()
    assert double.aborted == 1


@pytest.mark.requirement("VN-45")
async def test_priorities_salt_and_trace_reach_it(
    engine: TensorrtEngine, double: fake_tensorrt.BaseLLM
) -> None:
    trace = {"traceparent": "00-1-2-01"}
    for priority in (-3, 0, 2, None):
        sampling = greedy(priority=priority, trace=trace, cache_salt="mine")
        await collect(engine, prompt(engine, "Hi"), sampling)
    request = double.requests
    soon, usual, late, unset = (each["priority"] for each in request)
    assert 1 > soon > usual == unset == 0.5 > late > 0
    assert (request[0]["trace"], request[0]["cache_salt"]) == (trace, "mine")


async def test_versions_without_them_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tensorrt.install(monkeypatch, fake_tensorrt.OldLLM)
    engine = await load(FOLDER, LoadOptions(context_size=256))
    assert not (engine.capabilities.priority or engine.capabilities.cache_salt)
    sampling = greedy(trace={"traceparent": "00-1-2-01"})
    assert len((await collect(engine, prompt(engine, "Hi"), sampling)).ids) == 4
    await engine.close()


async def test_requests_without_a_seed_differ(engine: TensorrtEngine) -> None:
    hot = Sampling(max_tokens=16, temperature=1.5, ignore_eos=True)
    text = [(await collect(engine, prompt(engine, "Once"), hot)).ids for _ in range(4)]
    assert len(set(text)) > 1


async def test_no_temperature_is_not_greedy(
    engine: TensorrtEngine, double: fake_tensorrt.BaseLLM
) -> None:
    await collect(engine, prompt(engine, "Hi"), Sampling(max_tokens=2, ignore_eos=True))
    await collect(engine, prompt(engine, "Hi"), greedy())
    hot, cold = (each["params"].greedy for each in double.requests)
    assert (hot, cold) == (False, True)


async def test_extra_fields_are_passed_by_name(engine: TensorrtEngine) -> None:
    usual = (await collect(engine, prompt(engine, "Hi"), greedy(1))).ids[0]
    sampling = greedy(1, extra={"bad_token_ids": [usual]})
    assert (await collect(engine, prompt(engine, "Hi"), sampling)).ids[0] != usual


async def test_what_it_refuses_is_the_requests_fault(engine: TensorrtEngine) -> None:
    with pytest.raises(InvalidRequest, match="require 0 <= top_p"):
        await collect(engine, prompt(engine, "Hi"), Sampling(max_tokens=4, top_p=2.0))


async def test_its_failure_fails_the_run(
    engine: TensorrtEngine, double: fake_tensorrt.BaseLLM
) -> None:
    double.broken = True
    with pytest.raises(BackendError) as raised:
        await collect(engine, prompt(engine, "Hi"), greedy())
    assert "worker returned error" in str(raised.value.__cause__)


@pytest.mark.usefixtures("doubles")
async def test_load_failure_gives_a_one_line_error() -> None:
    with pytest.raises(SetupError, match="Only 1 GPUs") as raised:
        await load(FOLDER, LoadOptions(engine_options={"tensor_parallel_size": 2}))
    assert "\n" not in str(raised.value)


@pytest.mark.gpu
@pytest.mark.engines
async def test_the_real_one_keeps_the_contract() -> None:
    pytest.importorskip("tensorrt_llm")
    engine = await load(Path(FOLDER), LoadOptions(context_size=1024))
    await check_engine(engine)
    await calls_a_tool_and_answers(engine)
    await engine.close()

"""The engine over vLLM, against a double that checks what it is asked as vLLM does."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.vllm import VllmEngine, load, token_logprob
from antiphon.errors import BackendError, InvalidRequest, SetupError
from antiphon.inference.tokens import EncodedImage, Prompt
from antiphon.testing.engine_check import CHECKS, Check, check_closed, collect
from tests.attachments.samples import png
from tests.engines import fake_vllm
from tests.engines.fake_vllm import Logprob
from tests.tiny_models.tiny_tools import FOLDER, prompt

WAIT_S = 60


@pytest.fixture(autouse=True)
def doubles() -> Iterator[list[fake_vllm.AsyncLLM]]:
    """Every double that the test makes."""
    with pytest.MonkeyPatch.context() as patch:
        yield fake_vllm.install(patch)


@pytest.fixture
async def engine() -> AsyncIterator[VllmEngine]:
    loaded = await load(FOLDER, LoadOptions(context_size=256, adapters={"poet": "/adapters/poet"}))
    yield loaded
    await loaded.close()


@pytest.fixture
def double(doubles: list[fake_vllm.AsyncLLM], engine: VllmEngine) -> fake_vllm.AsyncLLM:
    """The double behind ``engine``."""
    (made,) = doubles
    return made


def greedy(max_tokens: int = 4, **more: Any) -> Sampling:
    return Sampling(max_tokens=max_tokens, temperature=0, ignore_eos=True, **more)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_keeps_the_contract(engine: VllmEngine, check: Check) -> None:
    await check(engine)


async def test_closed_engine_refuses_requests(
    engine: VllmEngine, double: fake_vllm.AsyncLLM
) -> None:
    await check_closed(engine)
    assert double.down


async def test_abandoned_request_is_aborted(engine: VllmEngine, double: fake_vllm.AsyncLLM) -> None:
    chunks = engine.generate(prompt(engine, "Hi"), greedy(100))
    async with asyncio.timeout(WAIT_S):
        await anext(chunks)
        await chunks.aclose()
    assert len(double.aborted) == 1


@pytest.mark.requirement("VN-45")
async def test_priority_adapter_and_trace_reach_it(
    engine: VllmEngine, double: fake_vllm.AsyncLLM
) -> None:
    trace = {"traceparent": "00-1-2-01"}
    sampling = greedy(priority=-3, adapter="poet", trace=trace, cache_salt="mine")
    await collect(engine, prompt(engine, "Hi"), sampling)
    (request,) = double.requests
    assert (request["priority"], request["trace"], request["cache_salt"]) == (-3, trace, "mine")
    assert request["lora"] == fake_vllm.LoRARequest("poet", 1, "/adapters/poet")
    assert engine.capabilities.adapters == {"poet"}
    with pytest.raises(InvalidRequest, match="no adapter 'painter'"):
        await collect(engine, prompt(engine, "Hi"), greedy(adapter="painter"))


async def test_prefixes_are_shared_within_a_salt_alone(engine: VllmEngine) -> None:
    input_prompt = prompt(engine, "A long enough prompt to fill some blocks. " * 4)
    for salt, expected in (("a", False), ("a", True), ("b", False), (None, False)):
        outcome = await collect(engine, input_prompt, greedy(cache_salt=salt))
        assert bool(outcome.cached_tokens) is expected


async def test_extra_fields_are_passed_by_name(engine: VllmEngine) -> None:
    allowed = engine.tokenizer.encode("abc", special=False)
    sampling = greedy(12, extra={"allowed_token_ids": allowed})
    outcome = await collect(engine, prompt(engine, "Hi"), sampling)
    assert set(outcome.ids) <= set(allowed)
    assert (
        engine.capabilities.extra is not None and "allowed_token_ids" in engine.capabilities.extra
    )


@pytest.mark.requirement("HF-6")
async def test_images_are_passed_decoded(
    engine: VllmEngine, doubles: list[fake_vllm.AsyncLLM]
) -> None:
    pytest.importorskip("PIL")
    seeing = await load(FOLDER, LoadOptions(engine_options={"limit_mm_per_prompt": {"image": 2}}))
    assert seeing.capabilities.images and not engine.capabilities.images
    ids = prompt(engine, "Look: ").ids
    words = (ids[1:2], ids[2:3])
    images = (
        EncodedImage(png(), "image/png", 1, words[0]),
        EncodedImage(png(4), "image/png", 2, words[1]),
    )
    await collect(seeing, Prompt(ids, images), greedy())
    assert [await seeing.image_tokens(image) for image in images] == [2, 2]
    full = Prompt((*ids, *ids[:1] * (seeing.card.context_size - 4 - len(ids))), images)
    with pytest.raises(InvalidRequest) as refused:
        await collect(seeing, full, greedy())
    assert refused.value.code == "context_length_exceeded"
    (request,) = doubles[-1].requests
    assert [image.mode for image in request["multi_modal_data"]["image"]] == ["RGB", "RGB"]
    assert tuple(request["prompt_token_ids"]) == ids
    for blind, image in ((engine, png()), (seeing, b"no image"), (seeing, png(3))):
        with pytest.raises(InvalidRequest):
            await collect(blind, Prompt(ids, (EncodedImage(image, "image/png", 2),)), greedy())
    await seeing.close()


async def test_what_it_refuses_is_the_requests_fault(engine: VllmEngine) -> None:
    with pytest.raises(InvalidRequest, match="top_p must be in"):
        await collect(engine, prompt(engine, "Hi"), Sampling(max_tokens=4, top_p=0.0))
    assert len((await collect(engine, prompt(engine, "Hi"), greedy())).ids) == 4


async def test_engine_death_fails_running_and_later_requests(
    engine: VllmEngine, double: fake_vllm.AsyncLLM
) -> None:
    chunks = engine.generate(prompt(engine, "Hi"), greedy(100))
    async with asyncio.timeout(WAIT_S):
        await anext(chunks)
        double.dead = True
        with pytest.raises(BackendError) as raised:
            async for _ in chunks:
                pass
    assert "EngineCore encountered" in str(raised.value.__cause__)
    with pytest.raises(BackendError):
        await collect(engine, prompt(engine, "Hi"), greedy())


async def test_engine_options_override_our_arguments(
    doubles: list[fake_vllm.AsyncLLM],
) -> None:
    engine = await load(
        FOLDER, LoadOptions(parallel=9, engine_options={"scheduling_policy": "fcfs"})
    )
    arguments = doubles[-1].arguments
    assert (arguments.scheduling_policy, arguments.max_num_seqs) == ("fcfs", 9)
    assert engine.card.context_size == 4096
    await engine.close()


async def test_load_failure_gives_a_one_line_error() -> None:
    with pytest.raises(SetupError, match="World size") as raised:
        await load(FOLDER, LoadOptions(engine_options={"tensor_parallel_size": 2}))
    assert "\n" not in str(raised.value)


def test_log_probabilities_are_numbers_that_json_has() -> None:
    known = {1: Logprob(-math.inf), 2: Logprob(-0.5), 3: Logprob(math.nan)}
    logprob = token_logprob(1, known, 3)
    assert logprob.logprob == -9999.0
    assert {each.id: each.logprob for each in logprob.top} == {2: -0.5, 1: -9999.0, 3: -9999.0}
    assert token_logprob(3, known, 0).logprob == -9999.0

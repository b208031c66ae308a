"""The embedded engine, with a small model, under the shipped contract."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.llama.engine import LlamaEngine, load
from antiphon.inference.tokens import Prompt
from antiphon.testing.engine_check import CHECKS, Check, check_closed, collect
from tests.tiny_models.tiny_tools import GGUF

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_keeps_the_contract(tiny_llama: LlamaEngine, check: Check) -> None:
    await check(tiny_llama)


@pytest.mark.requirement("HF-2")
async def test_a_seed_makes_sampling_repeatable(tiny_llama: LlamaEngine) -> None:
    assert tiny_llama.capabilities.seed
    await CHECKS["seed_is_reproducible"](tiny_llama)


async def test_conversations_that_fill_their_contexts_at_once_end_well(
    tiny_llama: LlamaEngine,
) -> None:
    """As many as run at a time, to the last token, and again with what they have left behind."""
    size = tiny_llama.card.context_size
    for turn in range(2):
        texts = (f"Conversation {number} of round {turn}. " * 200 for number in range(4))
        prompts = [
            Prompt(tuple(tiny_llama.tokenizer.encode(text, special=False))[: size * 3 // 4])
            for text in texts
        ]
        sampling = Sampling(max_tokens=size, temperature=0, ignore_eos=True)
        outcomes = await asyncio.gather(
            *(collect(tiny_llama, prompt, sampling) for prompt in prompts)
        )
        for prompt, outcome in zip(prompts, outcomes, strict=True):
            assert outcome.last.finish == "length"
            written = len(outcome.ids) + outcome.last.unreported_tokens
            assert size - 1 <= len(prompt.ids) + written <= size


async def test_closed_engine_refuses_requests() -> None:
    await check_closed(await load(GGUF, LoadOptions(threads=1, context_size=256, parallel=2)))


async def test_scopes_share_no_prefix() -> None:
    engine = await load(
        GGUF,
        LoadOptions(threads=1, context_size=1024, parallel=1, separate_caches=True),
    )
    try:
        assert engine.capabilities.separates_caches
        await CHECKS["scopes_share_no_prefix"](engine)
        await CHECKS["prefixes_are_reused"](engine)
    finally:
        await engine.close()


async def test_displaced_prompt_of_another_scope_is_not_restored() -> None:
    engine = await load(
        GGUF,
        LoadOptions(threads=1, context_size=1024, parallel=1, separate_caches=True),
    )
    texts = ("The secret of the first tenant is a number. " * 8, "Trees grow in spring. " * 16)
    prompts = [Prompt(tuple(engine.tokenizer.encode(text, special=False))) for text in texts]
    counts: list[int | None] = []
    try:
        for prompt, scope in ((prompts[0], "a"), (prompts[1], "b"), (prompts[0], "b")):
            sampling = Sampling(max_tokens=1, temperature=0, cache_scope=scope)
            counts.append((await collect(engine, prompt, sampling)).cached_tokens)
    finally:
        await engine.close()
    assert counts == [0, 0, 0]

"""The embedded engine, with the real model, under the shipped contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.engines.base import LoadOptions
from antiphon.engines.llama.engine import LlamaEngine, load
from antiphon.testing.engine_check import CHECKS, Check, check_closed

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_keeps_the_contract(llama: LlamaEngine, check: Check) -> None:
    await check(llama)


@pytest.mark.requirement("HF-2")
async def test_a_seed_makes_sampling_repeatable(llama: LlamaEngine) -> None:
    assert llama.capabilities.seed
    await CHECKS["seed_is_reproducible"](llama)


async def test_closed_engine_refuses_requests(smollm2_path: Path) -> None:
    await check_closed(
        await load(smollm2_path, LoadOptions(threads=1, context_size=256, parallel=2))
    )

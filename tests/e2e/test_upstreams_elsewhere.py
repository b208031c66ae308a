"""Upstreams that somebody runs: the contracts over a server named by the environment.

``UPSTREAM=http://gpu:8000 UPSTREAM_TOKENIZER=/models/x pytest -m engines tests/e2e``: vLLM, SGLang,
TensorRT-LLM or llama-server; with ``UPSTREAM`` alone, any server of Chat Completions. Where it
lists no models, ``UPSTREAM_MODEL`` names one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from antiphon.backends.chat_completions import ChatCompletions
from antiphon.backends.connect import chat_completions
from antiphon.engines.completions import Completions, load
from antiphon.testing.backend_check import CHECKS as BACKEND_CHECKS
from antiphon.testing.backend_check import Check as BackendCheck
from antiphon.testing.engine_check import CHECKS, Check

URL, TOKENIZER = os.environ.get("UPSTREAM"), os.environ.get("UPSTREAM_TOKENIZER")
MODEL = os.environ.get("UPSTREAM_MODEL")
pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(URL is None, reason="the environment names no UPSTREAM"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Completions]:
    if TOKENIZER is None:
        pytest.skip("the environment names no UPSTREAM_TOKENIZER")
    loaded = await load("elsewhere", str(URL), model=MODEL, options={"tokenizer": TOKENIZER})
    yield loaded
    await loaded.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[ChatCompletions]:
    made = await chat_completions("elsewhere", str(URL), model=MODEL)
    yield made
    await made.close()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_the_engine_keeps_its_contract(engine: Completions, check: Check) -> None:
    await check(engine)


@pytest.mark.parametrize("check", BACKEND_CHECKS.values(), ids=BACKEND_CHECKS)
async def test_the_backend_keeps_its_contract(
    backend: ChatCompletions, check: BackendCheck
) -> None:
    await check(backend)

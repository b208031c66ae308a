"""A real upstream: llama.cpp's own HTTP server, in a process of its own, behind ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.backends.connect import chat_completions, responses
from antiphon.backends.local import Local
from antiphon.backends.responses_flavours import FLAVOURS
from antiphon.dialects.chat import Dialect
from antiphon.engines.completions import Completions, load
from antiphon.testing.backend_check import CHECKS as BACKEND_CHECKS
from antiphon.testing.backend_check import Check as BackendCheck
from antiphon.testing.engine_check import CHECKS, Check, check_closed
from antiphon.testing.models import smollm2

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]
SERVER = Path(__file__).parents[1] / "upstream" / "llama_server.py"


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(smollm2())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()
        process.wait(20)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(upstream: str) -> AsyncIterator[Completions]:
    loaded = await load("tiny", upstream)
    yield loaded
    await loaded.close()


# --- token ids over /completion ------------------------------------------------------------------


async def test_it_says_what_it_is(engine: Completions) -> None:
    assert engine.card.context_size == 1024
    assert engine.card.chat_template and "<|im_start|>" in engine.card.chat_template
    assert engine.capabilities.constraints and engine.capabilities.max_logprobs == 20


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_the_engine_keeps_its_contract(engine: Completions, check: Check) -> None:
    await check(engine)


async def test_closing_it_ends_what_runs(upstream: str) -> None:
    await check_closed(await load("tiny", upstream))


@pytest.mark.parametrize("name", ["counts_what_it_used", "refuses_what_is_too_long"])
async def test_the_backend_of_ids_keeps_its_contract(engine: Completions, name: str) -> None:
    await BACKEND_CHECKS[name](Local(engine, Dialect(engine.card, engine.tokenizer)))


# --- messages over /v1/chat/completions ----------------------------------------------------------


@pytest.mark.parametrize("check", BACKEND_CHECKS.values(), ids=BACKEND_CHECKS)
async def test_the_backend_of_messages_keeps_its_contract(
    upstream: str, check: BackendCheck
) -> None:
    backend = await chat_completions("tiny", upstream)
    try:
        await check(backend)
    finally:
        await backend.close()


# --- items over /v1/responses --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["counts_what_it_used", "streams", "refuses_what_is_too_long"])
async def test_the_backend_of_items_keeps_its_contract(upstream: str, name: str) -> None:
    backend = await responses("tiny", upstream)
    try:
        assert backend.flavour is FLAVOURS["llama-server"]
        await BACKEND_CHECKS[name](backend)
    finally:
        await backend.close()

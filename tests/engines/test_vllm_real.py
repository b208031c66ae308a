"""The real vLLM under the shipped contract, where it is installed."""

from __future__ import annotations

import pytest

from antiphon.configuration import untracked
from antiphon.engines.vllm import load
from antiphon.testing.engine_check import check_closed, check_engine
from tests.engines.tiny import FOLDER, calls_a_tool_and_answers

# Its own imports warn of what is theirs.
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]


async def test_keeps_the_contract() -> None:
    pytest.importorskip("vllm")
    untracked()
    engine = await load(
        FOLDER,
        context_size=1024,
        options={"enforce_eager": True, "dtype": "float32", "block_size": 32},
    )
    await check_engine(engine)
    await calls_a_tool_and_answers(engine)
    await check_closed(engine)

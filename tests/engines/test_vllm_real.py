"""The real vLLM under the shipped contract, where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.configuration import untracked
from antiphon.engines.base import Sampling
from antiphon.engines.vllm import load
from antiphon.testing.engine_check import check_closed, check_engine, collect
from tests.attachments.samples import png
from tests.engines.tiny import FOLDER, calls_a_tool_and_answers
from tests.engines.tiny_llava import make_llava, shown

# Its own imports warn of what is theirs.
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]
OPTIONS = {"enforce_eager": True, "dtype": "float32", "block_size": 32}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it would take what memory there is."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")


async def test_keeps_the_contract() -> None:
    pytest.importorskip("vllm")
    untracked()
    engine = await load(FOLDER, context_size=1024, options=OPTIONS)
    await check_engine(engine)
    await calls_a_tool_and_answers(engine)
    await check_closed(engine)


@pytest.mark.requirement("HF-6")
async def test_it_sees_and_measures(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # of another PyTorch
        pytest.skip("vLLM's models that see need torchvision")
    untracked()
    make_llava(tmp_path)
    engine = await load(tmp_path, context_size=1024, options=OPTIONS)
    greedy = Sampling(max_tokens=2, temperature=0, logprobs=0, ignore_eos=True)
    red, blue = (png(28, 28, color) for color in ((250, 0, 0), (0, 0, 250)))
    asked = [shown(engine, "What is ", *each, "?") for each in ((red,), (blue,), (red, blue), ())]
    said = [(await collect(engine, prompt, greedy)).logprobs[0].logprob for prompt in asked]
    assert len(set(said)) == 4
    assert await engine.image_tokens(asked[0].images[0]) == 3  # four patches for a word of one id
    await engine.close()

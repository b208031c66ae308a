"""The real vLLM under the shipped contract, where it is installed."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from antiphon.config.load import disable_usage_statistics
from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.vllm import load
from antiphon.testing.engine_check import check_closed, check_engine, collect
from tests.tiny_models import tiny_eyes
from tests.tiny_models.tiny_eyes import image_message, picture
from tests.tiny_models.tiny_tools import FOLDER, calls_a_tool_and_answers

# Its own imports warn of what is theirs.
pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]
OPTIONS = {"enforce_eager": True, "dtype": "float32", "block_size": 32}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On a CPU it would take what memory there is. What it leaves behind is collected here, where
    nobody minds its warnings."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    yield
    gc.collect()


async def test_keeps_the_contract() -> None:
    pytest.importorskip("vllm")
    disable_usage_statistics()
    engine = await load(FOLDER, LoadOptions(context_size=1024, engine_options=OPTIONS))
    await check_engine(engine)
    await calls_a_tool_and_answers(engine)
    await check_closed(engine)


@pytest.mark.requirement("HF-6")
async def test_it_sees_and_measures() -> None:
    pytest.importorskip("vllm")
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # of another PyTorch
        pytest.skip("vLLM's models that see need torchvision")
    disable_usage_statistics()
    engine = await load(tiny_eyes.FOLDER, LoadOptions(context_size=1024, engine_options=OPTIONS))
    greedy = Sampling(max_tokens=12, temperature=0)
    before, after = "<|im_start|>user\nWhat do you see?\n", "<|im_end|>\n<|im_start|>assistant\n"
    for colour, shape in (("red", "circle"), ("blue", "square")):
        prompt = image_message(engine, before, picture(colour, shape), after)
        answer = await collect(engine, prompt, greedy)
        text = b"".join(map(engine.tokenizer.piece, answer.ids)).decode()
        assert text.startswith(f"A {colour} {shape}.")
        # its places, for a word of one id
        assert await engine.image_tokens(prompt.images[0]) == tiny_eyes.IMAGE_TOKENS - 1
    await engine.close()

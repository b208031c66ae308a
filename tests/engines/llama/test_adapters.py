"""LoRA adapters in llama.cpp itself: the real model with tiny random ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.llama.engine import LlamaEngine, load
from antiphon.errors import InvalidRequest, SetupError
from antiphon.inference.tokens import Prompt
from tests.engines.gguf.gguf_files import write_adapter

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def adapted(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LlamaEngine]:
    folder = tmp_path_factory.mktemp("adapters")
    adapters = {
        name: str(write_adapter(folder / f"{name}.gguf", 576, 30, seed=seed))
        for seed, name in enumerate(("one", "two"))
    }
    engine = await load(
        smollm2_path, LoadOptions(threads=1, context_size=256, parallel=2, adapters=adapters)
    )
    yield engine
    await engine.close()


async def generate(engine: LlamaEngine, adapter: str | None) -> tuple[int, ...]:
    prompt = Prompt(tuple(engine.tokenizer.encode("The capital of France is", special=False)))
    sampling = Sampling(max_tokens=6, temperature=0, adapter=adapter)
    return tuple([id async for chunk in engine.generate(prompt, sampling) for id in chunk.ids])


async def test_each_adapter_makes_another_model(adapted: LlamaEngine) -> None:
    assert adapted.capabilities.adapters == {"one", "two"}
    plain, one, two = [await generate(adapted, name) for name in (None, "one", "two")]
    assert len({plain, one, two}) == 3
    assert [await generate(adapted, name) for name in ("two", None, "one")] == [two, plain, one]


async def test_adapters_do_not_mix(adapted: LlamaEngine) -> None:
    names = (None, "one", "two", "one", None)
    alone = {name: await generate(adapted, name) for name in names}
    assert await asyncio.gather(*(generate(adapted, name) for name in names)) == [
        alone[name] for name in names
    ]


async def test_an_unknown_adapter_is_refused(adapted: LlamaEngine) -> None:
    with pytest.raises(InvalidRequest):
        await generate(adapted, "three")


async def test_invalid_adapter_file_is_named_in_the_error(
    smollm2_path: Path, tmp_path: Path
) -> None:
    for broken in (tmp_path / "none.gguf", tmp_path / "broken.gguf"):
        if broken.name == "broken.gguf":
            broken.write_bytes(b"nothing")
        with pytest.raises(SetupError, match=broken.name):
            await load(
                smollm2_path, LoadOptions(threads=1, context_size=256, adapters={"x": str(broken)})
            )

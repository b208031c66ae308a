"""The engine over transformers, with the tiny model, paged and one by one."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.transformers import engine as module
from antiphon.engines.transformers.engine import TransformersEngine, load
from antiphon.errors import BackendError, InvalidRequest, SetupError
from antiphon.inference.tokens import Constraint, Prompt
from antiphon.testing.engine_check import CHECKS, TEXT, Check, check_closed, collect
from tests.tiny_models.tiny_tools import FOLDER, calls_a_tool_and_answers, prompt

pytestmark = [pytest.mark.engines, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["paged", "single"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[TransformersEngine]:
    options = {"batching": request.param}
    loaded = await load(FOLDER, LoadOptions(threads=1, context_size=1024, engine_options=options))
    yield loaded
    await loaded.close()


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_keeps_the_contract(engine: TransformersEngine, check: Check) -> None:
    await check(engine)


@pytest.mark.parametrize("batching", ["paged", "single"])
async def test_closed_engine_refuses_requests(batching: str) -> None:
    await check_closed(
        await load(FOLDER, LoadOptions(threads=1, engine_options={"batching": batching}))
    )


async def test_tells_how_far_it_is_with_the_weights() -> None:
    received: list[tuple[str, int, int | None]] = []
    engine = await load(
        FOLDER, LoadOptions(threads=1, progress=lambda *result: received.append(result))
    )
    await engine.close()
    size = sum(file.stat().st_size for file in FOLDER.glob("*.safetensors"))
    assert received[0] == ("weights", 0, size) and received[-1] == ("weights", size, size)
    assert [result for _, result, _ in received] == sorted({result for _, result, _ in received})


async def test_a_tool_is_called_and_answered(engine: TransformersEngine) -> None:
    await calls_a_tool_and_answers(engine)


async def test_says_what_the_folder_says(engine: TransformersEngine) -> None:
    assert engine.card.name == "tiny-tools"
    assert (engine.card.architecture, engine.card.context_size) == ("qwen3", 1024)
    assert engine.card.chat_template is not None


def hot(**more: Any) -> Sampling:
    return Sampling(max_tokens=30, ignore_eos=True, **{"temperature": 1.5, **more})


@pytest.mark.requirement("HF-4")
async def test_each_request_has_its_own_settings_in_one_batch(engine: TransformersEngine) -> None:
    """What runs beside a request changes nothing: alone and together give the same."""
    input_prompt = prompt(engine, TEXT)  # nothing it was taught: everything is possible
    special = engine.tokenizer.special
    settings = [
        hot(temperature=0),
        hot(seed=1),
        hot(seed=2, top_k=5),
        hot(seed=3, top_p=0.3),
        hot(seed=4, min_p=0.2),
        hot(temperature=0, logit_bias={special["<think>"]: 100.0}),
        hot(temperature=0, repetition_penalty=1.8),
        hot(temperature=0, presence_penalty=2.0, frequency_penalty=2.0),
        Sampling(max_tokens=30, seed=5, constraint=Constraint("start: /[0-9]{4}/")),
    ]
    together = await asyncio.gather(*(collect(engine, input_prompt, each) for each in settings))
    alone = [await collect(engine, input_prompt, each) for each in settings]
    assert [one.ids for one in together] == [one.ids for one in alone]
    assert len({one.ids for one in together}) == len(settings)
    assert set(together[5].ids) == {special["<think>"]}
    assert together[8].text(engine).isdigit()


async def test_penalties_keep_a_token_from_coming_again(engine: TransformersEngine) -> None:
    input_prompt = prompt(engine, "one one one one one one")
    one = engine.tokenizer.encode(" one", special=False)
    sampling = hot(temperature=0, presence_penalty=50.0, logit_bias={one[0]: 30.0})
    assert (await collect(engine, input_prompt, sampling)).ids.count(one[0]) == 1


async def test_ids_outside_the_vocabulary_raise(engine: TransformersEngine) -> None:
    with pytest.raises(BackendError, match="outside the model's vocabulary"):
        await collect(engine, Prompt((10**6,)), hot())


async def test_the_end_of_the_context_ends_it(engine: TransformersEngine) -> None:
    long = Prompt((5,) * (engine.card.context_size - 4))
    sampling = Sampling(max_tokens=100, temperature=0, ignore_eos=True)
    outcome = await collect(engine, long, sampling)
    assert (len(outcome.ids), outcome.last.finish) == (4, "length")


async def test_every_token_of_a_prompt_is_seen(engine: TransformersEngine) -> None:
    """Also the one with the id 0, which is a word like any other."""
    import torch
    from transformers import AutoModelForCausalLM

    input_prompt = Prompt((*prompt(engine, "Hi!").ids, 0))
    assert 0 in input_prompt.ids[:-1]
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([input_prompt.ids])).logits[0, -1].log_softmax(-1)
    outcome = await collect(engine, input_prompt, Sampling(max_tokens=1, temperature=0, logprobs=5))
    (logprob,) = outcome.logprobs
    # On an accelerator, the engine uses the model's own type, which is bfloat16.
    has_accelerator = torch.accelerator.current_accelerator(check_available=True) is not None
    tolerance = 0.1 if has_accelerator else 1e-3
    for best in logprob.top:
        assert best.logprob == pytest.approx(float(expected[best.id]), abs=tolerance)


@pytest.mark.parametrize("batching", ["paged", "single"])
async def test_recommended_sampling_values_apply_once(batching: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    config = json.loads((FOLDER / "generation_config.json").read_text())
    config |= {"repetition_penalty": 1.8, "suppress_tokens": list(range(1, 900))}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    options = {"batching": batching}
    plain = await load(FOLDER, LoadOptions(threads=1, engine_options=options))
    advised = await load(tmp_path, LoadOptions(threads=1, engine_options=options))
    input_prompt = prompt(plain, "Tell me a story.")
    for given, meant in ((None, 1.8), (1.0, 1.0)):
        result = await collect(advised, input_prompt, hot(temperature=0, repetition_penalty=given))
        expected = await collect(plain, input_prompt, hot(temperature=0, repetition_penalty=meant))
        assert result.ids == expected.ids
    for engine in (plain, advised):
        await engine.close()


async def test_an_empty_prompt_is_refused(engine: TransformersEngine) -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        await collect(engine, Prompt(()), hot())


async def test_loads_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    engine = await load(FOLDER, LoadOptions(threads=1))
    await collect(engine, prompt(engine, "Hi"), Sampling(max_tokens=2))
    await engine.close()
    assert capfd.readouterr() == ("", "")


async def test_folder_without_weights_gives_a_one_line_error(tmp_path: Any) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    with pytest.raises(SetupError, match="transformers cannot load") as raised:
        await load(tmp_path)
    assert "\n" not in str(raised.value)
    with pytest.raises(SetupError, match="batching"):
        await load(FOLDER, LoadOptions(engine_options={"batching": "often"}))


async def test_models_without_paging_run_sequentially(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("a state that is no cache")

    monkeypatch.setattr(module, "BatchRunner", refuse)
    engine = await load(FOLDER, LoadOptions(threads=1))
    assert not engine.capabilities.cached_tokens
    assert len((await collect(engine, prompt(engine, "Hi"), hot())).ids) == 30
    await engine.close()
    with pytest.raises(SetupError, match="a state that is no cache"):
        await load(FOLDER, LoadOptions(threads=1, engine_options={"batching": "paged"}))


async def test_model_without_attention_generates(tmp_path: Path) -> None:
    """Its configuration has no maximum number of positions."""
    import transformers

    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FOLDER / name, tmp_path)
    size = json.loads((FOLDER / "config.json").read_text())["vocab_size"]
    config = transformers.MambaConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=1, state_size=4
    )
    transformers.MambaForCausalLM(config).save_pretrained(tmp_path)
    engine = await load(tmp_path, LoadOptions(threads=1, context_size=64))
    async with asyncio.timeout(60):
        output = await collect(engine, prompt(engine, TEXT), hot(seed=1))
    assert len(output.ids) == 30
    await engine.close()


async def test_failure_before_the_first_token_ends_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> Any:
        raise AttributeError("no such field")

    monkeypatch.setattr("antiphon.engines.transformers.sequential.SequentialRunner._inputs", fail)
    engine = await load(FOLDER, LoadOptions(threads=1, engine_options={"batching": "single"}))
    async with asyncio.timeout(60):
        with pytest.raises(BackendError):
            await collect(engine, prompt(engine, TEXT), hot())
    await engine.close()

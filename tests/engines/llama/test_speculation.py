"""Speculative decoding changes no reply: its length, grammar, seed and neighbours hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.llama.engine import LlamaEngine, load
from antiphon.engines.llama.options import EngineOptions, Speculation, parse_engine_options
from antiphon.errors import SetupError
from antiphon.inference.tokens import Constraint, Prompt
from antiphon.testing.engine_check import CHECKS, collect
from tests.tiny_models.tiny_tools import GGUF

WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen. "
#: What speculation could break; the others check what it does not touch.
AFFECTED = (
    "length_is_exact",
    "greedy_is_deterministic",
    "seed_is_reproducible",
    "closing_aborts",
    "stop_strings_end_generation",
    "stop_ids_end_generation",
    "constraints_are_obeyed",
    "concurrent_generations_are_independent",
    "prefixes_are_reused",
)


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="session",
    params=[{"speculation": "copy"}, {"draft_model": str(GGUF)}],
    ids=["copy", "draft"],
)
async def speculating(request: pytest.FixtureRequest) -> AsyncIterator[LlamaEngine]:
    options = LoadOptions(threads=1, context_size=1024, parallel=4, engine_options=request.param)
    engine = await load(GGUF, options)
    yield engine
    await engine.close()


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_speculation_keeps_the_contract(speculating: LlamaEngine) -> None:
    for name in AFFECTED:
        await CHECKS[name](speculating)


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_log_probabilities_are_not_offered(speculating: LlamaEngine) -> None:
    assert speculating.capabilities.max_logprobs is None


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_copies_obey_grammars(speculating: LlamaEngine) -> None:
    """Several generations at once, whose text the guesses repeat."""
    tokenizer = speculating.tokenizer
    prompt = Prompt(tuple(tokenizer.encode(WORDS * 3, special=False)))
    forced = Constraint(f'start: "{WORDS}" "{WORDS}" "end"')
    sampling = Sampling(max_tokens=400, temperature=0, constraint=forced)
    outcomes = await asyncio.gather(*(collect(speculating, prompt, sampling) for _ in range(3)))
    for outcome in outcomes:
        assert outcome.text(speculating) == WORDS * 2 + "end"


def test_options_are_parsed() -> None:
    assert parse_engine_options({}) == EngineOptions()
    assert parse_engine_options({"dry_base": 2}).samplers == {"dry_base": 2}
    assert parse_engine_options({"speculation": "none"}).speculation is None
    assert parse_engine_options({"speculation": "copy"}).speculation == Speculation(8)
    drafted = parse_engine_options({"draft_model": "small.gguf", "draft_tokens": 5}).speculation
    assert drafted is not None and (drafted.tokens, str(drafted.draft_model)) == (5, "small.gguf")


def test_options_set_the_parameters_of_the_binding() -> None:
    xllamacpp = pytest.importorskip("xllamacpp")
    kinds = xllamacpp.common_speculative_type
    params = xllamacpp.CommonParams()
    Speculation(5).apply(params)
    assert params.speculative.types == [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K]
    assert params.speculative.ngram_map_k.size_m == 5
    Speculation(4, GGUF).apply(params)
    assert params.speculative.types == [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    assert params.speculative.draft.n_max == 4
    assert params.speculative.draft.mparams.path == str(GGUF)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"speculation": "guess"}, "speculation must be 'copy' or 'none'"),
        ({"draft_model": 1}, "draft_model must be a path"),
        ({"draft_model": "a.gguf", "speculation": "copy"}, "exclude each other"),
        ({"speculation": "copy", "draft_tokens": 0}, "draft_tokens must be from 1 to"),
        ({"draft_tokens": 4}, "draft_tokens needs"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SetupError, match=problem):
        parse_engine_options(options)


async def test_a_missing_draft_model_is_rejected() -> None:
    with pytest.raises(SetupError, match=r"missing\.gguf"):
        await load(GGUF, LoadOptions(engine_options={"draft_model": "missing.gguf"}))

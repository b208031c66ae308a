"""Sampling values that a model's files recommend."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.local.sampling import recommended_options
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import Sampling
from antiphon.testing.engine import ScriptedEngine
from tests.conformance.conftest import Serve
from tests.conformance.server import Ask, engine

GGUF = {"temp": 0.5, "top_p": 0.25, "top_k": 40, "min_p": 0.125, "penalty_repeat": 1.5}
HUGGING_FACE = {
    "temperature": 0.5, "top_p": 0.25, "top_k": 40, "min_p": 0.125, "repetition_penalty": 1.5,
}  # fmt: skip


def values(sampling: Sampling) -> tuple[object, ...]:
    """Return the values of the options that a model's files may recommend."""
    return tuple(getattr(sampling, name) for name in HUGGING_FACE)


@pytest.mark.requirement("VN-2")
@pytest.mark.parametrize("generation", [GGUF, HUGGING_FACE], ids=["GGUF", "Hugging Face"])
def test_values_of_the_models_files_become_options(generation: dict[str, float]) -> None:
    unknown = {"mirostat": 2, "max_length": 20}
    assert recommended_options({**generation, **unknown}) == HUGGING_FACE


@pytest.mark.requirement("VN-2")
async def test_a_request_wins_over_the_values_of_the_models_files(serve: Serve, ask: Ask) -> None:
    plain = engine(["ok"])
    generation = {"temp": 0.25, "top_p": 0.5, "top_k": 40, "min_p": 0.125, "penalty_repeat": 1.5}
    scripted_engine = ScriptedEngine(["ok"], card=replace(plain.card, generation=generation))
    server = serve(
        LocalBackend(scripted_engine, ChatDialect(scripted_engine.card, scripted_engine.tokenizer))
    )
    echoed = (await ask(server, temperature=0.75)).terminal_response
    await ask(server)
    (_, stated), (_, recommended) = scripted_engine.requests
    assert values(stated) == (0.75, 0.5, 40, 0.125, 1.5)
    assert values(recommended) == (0.25, 0.5, 40, 0.125, 1.5)
    assert echoed["temperature"] == 0.75

"""Sampling values that a model's files recommend."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from antiphon.backends.local.backend import LocalBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.testing.engine import ScriptedEngine
from tests.conformance.conftest import Serve
from tests.conformance.server import Ask, engine


@pytest.mark.requirement("VN-2")
async def test_a_request_wins_over_the_values_of_the_models_files(serve: Serve, ask: Ask) -> None:
    plain = engine(["ok"])
    generation = {"temp": 0.25, "top_k": 40, "penalty_repeat": 1.5}
    scripted_engine = ScriptedEngine(["ok"], card=replace(plain.card, generation=generation))
    server = serve(
        LocalBackend(scripted_engine, ChatDialect(scripted_engine.card, scripted_engine.tokenizer))
    )
    echoed = (await ask(server, temperature=0.75)).terminal_response
    await ask(server)
    (_, stated), (_, recommended) = scripted_engine.requests
    assert (stated.temperature, stated.top_k, stated.repetition_penalty) == (0.75, 40, 1.5)
    assert (recommended.temperature, recommended.top_k) == (0.25, 40)
    assert echoed["temperature"] == 0.75

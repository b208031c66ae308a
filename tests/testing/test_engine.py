"""The scripted engine passes the engine contract and plays its script."""

from __future__ import annotations

import pytest

from antiphon.engines.base import Capabilities, Sampling
from antiphon.errors import BackendError
from antiphon.inference.tokens import Prompt
from antiphon.testing.engine import ScriptedEngine
from antiphon.testing.engine_check import CHECKS, Check, check_closed, collect
from antiphon.testing.tokenizer import END

TEXT = "Once upon a time, there was a text that an engine had to say."
#: Checks that do not apply, because the texts are scripted.
ABLE = Capabilities(max_logprobs=20, cached_tokens=True, penalties=True)
PROMPT = Prompt(tuple(b"Hello"))


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("chunk", [1, 7])
async def test_keeps_the_contract(check: Check, chunk: int) -> None:
    await check(ScriptedEngine([TEXT], special=["<|a|>"], capabilities=ABLE, chunk=chunk))


async def test_closed_engine_stays_closed() -> None:
    await check_closed(ScriptedEngine([TEXT]))


async def test_replies_are_played_in_turn_and_the_last_repeats() -> None:
    engine = ScriptedEngine(["a", "b"])
    chunks = [
        engine.text(Prompt((await collect(engine, PROMPT, Sampling(max_tokens=9))).ids))
        for _ in range(3)
    ]
    assert chunks == [f"a{END}", f"b{END}", f"b{END}"]
    assert [prompt for prompt, _ in engine.requests] == [PROMPT] * 3


async def test_special_tokens_end_a_reply() -> None:
    engine = ScriptedEngine(["a<|x|>b"], special=["<|x|>"])
    stop = engine.tokenizer.special["<|x|>"]
    outcome = await collect(engine, PROMPT, Sampling(max_tokens=9, stop_ids=(stop,)))
    assert outcome.ids == (ord("a"), stop)
    assert outcome.last.finish == "stop"


async def test_function_gets_the_prompt_and_exceptions_are_raised() -> None:
    engine = ScriptedEngine(lambda prompt: prompt.upper())
    outcome = await collect(engine, PROMPT, Sampling(max_tokens=9))
    assert engine.text(Prompt(outcome.ids)) == f"HELLO{END}"
    with pytest.raises(BackendError, match="broken"):
        await collect(ScriptedEngine([BackendError("broken")]), PROMPT, Sampling(max_tokens=9))


async def test_engine_with_two_answers_fails_the_check() -> None:
    """Each answer is the best one by its own account, but not nearly as good as the other."""
    for capabilities in (Capabilities(), ABLE):
        engine = ScriptedEngine([TEXT, TEXT, TEXT.upper()], capabilities=capabilities)
        with pytest.raises(AssertionError, match="greedy sampling gave two answers"):
            await CHECKS["greedy_is_deterministic"](engine)

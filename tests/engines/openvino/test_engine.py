"""The engine over OpenVINO, with the tiny model: a real pipeline in a real child process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.common.continued_engine import ContinuedEngine
from antiphon.engines.openvino.engine import OpenvinoEngine, load
from antiphon.errors import BackendError, InvalidRequest, SetupError
from antiphon.inference.tokens import Constraint
from antiphon.testing.engine_check import CHECKS, Check, check_closed, collect
from tests.child_processes import LINUX, child_processes, kill_next
from tests.tiny_models.tiny_tools import FOLDER, GGUF, calls_a_tool_and_answers, prompt

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    pytest.importorskip("openvino_genai")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[OpenvinoEngine]:
    loaded = await load(GGUF, LoadOptions(threads=1, context_size=1024))
    yield loaded
    await loaded.close()


def greedy(max_tokens: int) -> Sampling:
    return Sampling(max_tokens=max_tokens, temperature=0, ignore_eos=True)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_keeps_the_contract(engine: OpenvinoEngine, check: Check) -> None:
    await check(engine)


async def test_closed_engine_refuses_requests() -> None:
    await check_closed(await load(GGUF, LoadOptions(threads=1, context_size=512)))


async def test_a_tool_is_called_and_answered(engine: OpenvinoEngine) -> None:
    await calls_a_tool_and_answers(engine)


async def test_requests_without_a_seed_differ(engine: OpenvinoEngine) -> None:
    input_prompt = prompt(engine, "Once upon a time")
    hot = Sampling(max_tokens=16, temperature=1.5, ignore_eos=True)
    text = [(await collect(engine, input_prompt, hot)).ids for _ in range(4)]
    assert len(set(text)) > 1


async def test_unsupported_grammar_is_refused_and_breaks_nothing(engine: OpenvinoEngine) -> None:
    sampling = Sampling(max_tokens=4, temperature=0, constraint=Constraint(r"start: /a(?=b)/"))
    assert engine.capabilities.grammars is not None
    assert not engine.capabilities.grammars(r"start: /a(?=b)/")
    with pytest.raises(InvalidRequest, match="does not support it"):
        await collect(engine, prompt(engine, "Hi"), sampling)
    assert len((await collect(engine, prompt(engine, "Hi"), greedy(2))).ids) == 2


#: Every kind of rule that is written for xgrammar: the release in OpenVINO has to read them all.
GRAMMARS = {
    "schema": (
        "start: %json "
        + json.dumps(
            {
                "$defs": {"name": {"type": "string", "minLength": 1, "maxLength": 3}},
                "type": "object",
                "properties": {
                    "a": {"$ref": "#/$defs/name"},
                    "b": {"type": "array", "items": {"enum": ["x", 1]}, "maxItems": 2},
                    "c": {"anyOf": [{"const": 5}, {"type": "integer", "minimum": 0}]},
                    "d": {"type": ["boolean", "null"]},
                    "e": {"type": "string", "pattern": "^[a-c]{2}$"},
                },
                "required": ["a", "b", "c", "d", "e"],
                "additionalProperties": False,
                "x-guidance": {"whitespace_flexible": False},
            }
        ),
        r"(?s)\{.*\}?",
    ),
    "regex": (r"start: /[a-c]{3}x[0-9]{1,4}(é|\n)y/", r"[a-c]{3}x[0-9]{1,4}(é|\n)y"),
    "rules": ('start: head{2} [tail] "."\nhead: /[^a-z]/\ntail: "é🦄" | "\\""', r"[^a-z]{2}.*\."),
}


@pytest.mark.parametrize("kind", GRAMMARS)
async def test_grammars_are_enforced(engine: OpenvinoEngine, kind: str) -> None:
    lark, expected = GRAMMARS[kind]
    for temperature in (0, 1.2):
        sampling = Sampling(
            max_tokens=80, temperature=temperature, seed=3, constraint=Constraint(lark)
        )
        outcome = await collect(engine, prompt(engine, "Hi"), sampling)
        assert re.fullmatch(expected, outcome.text(engine)), outcome.text(engine)


async def test_control_tokens_are_part_of_grammars(engine: OpenvinoEngine) -> None:
    """A text ends where a control token begins, which is sampled as such."""
    special = engine.tokenizer.special
    think, end = special["<think>"], special["</think>"]
    lark = f'start: <[{think}]> thought <[{end}]> "yes"\nthought: /(?s:.*)/'
    sampling = Sampling(max_tokens=400, temperature=0, constraint=Constraint(lark))
    outcome = await collect(engine, prompt(engine, "Hi"), sampling)
    assert outcome.ids[0] == think and outcome.ids.count(think) == 1
    if outcome.last.finish == "stop":
        assert outcome.ids.count(end) == 1 and outcome.text(engine).endswith("yes")


async def test_prompt_lookup_obeys_grammars() -> None:
    engine = await load(
        GGUF, LoadOptions(threads=1, context_size=512, engine_options={"prompt_lookup": True})
    )
    try:
        input_prompt = prompt(engine, "What is the weather in Rome?")
        lark = 'start: word{6}\nword: "sun " | "rain "'
        sampling = Sampling(max_tokens=60, temperature=0, constraint=Constraint(lark))
        together = await asyncio.gather(
            collect(engine, input_prompt, sampling), collect(engine, input_prompt, greedy(8))
        )
        assert re.fullmatch("(sun |rain ){6}", together[0].text(engine))
        assert len(together[1].ids) == 8
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("yes", "must be true, false or a table"),
        ({"size": 3}, "has no option 'size'"),
        ({"max_ngram_size": 0}, "must be a positive integer"),
    ],
)
async def test_invalid_prompt_lookup_is_rejected(value: object, problem: str) -> None:
    with pytest.raises(SetupError, match=problem):
        await load(GGUF, LoadOptions(engine_options={"prompt_lookup": value}))


@LINUX
async def test_worker_death_fails_running_requests_only() -> None:
    others = child_processes()
    engine = await load(GGUF, LoadOptions(threads=1, context_size=1024))
    try:
        input_prompt = prompt(engine, "Once upon a time")
        running = [engine.generate(input_prompt, greedy(900)) for _ in range(2)]
        async with asyncio.timeout(60):
            for chunks in running:
                await anext(chunks)
            (pid,) = child_processes() - others
            os.kill(pid, signal.SIGKILL)
            for chunks in running:
                with pytest.raises(BackendError, match="its process ended"):
                    async for _ in chunks:
                        pass
        together = await asyncio.gather(
            *(collect(engine, input_prompt, greedy(4)) for _ in range(3))
        )
        assert {len(one.ids) for one in together} == {4}
        (new_pid,) = child_processes() - others
        assert new_pid != pid
    finally:
        await engine.close()


@LINUX
async def test_worker_that_dies_again_while_it_loads_is_started_once_more() -> None:
    others = child_processes()
    inner = await load(GGUF, LoadOptions(threads=1, context_size=1024))
    engine = ContinuedEngine(inner)
    try:
        async with asyncio.timeout(60):
            chunks = engine.generate(prompt(inner, "Once upon a time"), greedy(40))
            ids = list((await anext(chunks)).ids)
            killing = asyncio.ensure_future(kill_next(others, count=2))
            async for chunk in chunks:
                ids += chunk.ids
            await killing
        assert len(ids) == 40
    finally:
        await engine.close()


@LINUX
async def test_the_child_goes_with_its_engine() -> None:
    others = child_processes()
    engine = await load(GGUF, LoadOptions(threads=1, context_size=512))
    (pid,) = child_processes() - others
    await engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_load_failure_gives_a_one_line_error(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(GGUF.read_bytes()[:5000])
    with pytest.raises(SetupError, match="not a usable GGUF"):
        await load(cut)
    (tmp_path / "tokenizer.json").write_bytes((FOLDER / "tokenizer.json").read_bytes())
    with pytest.raises(SetupError, match="OpenVINO cannot load") as raised:
        await load(tmp_path)
    assert "\n" not in str(raised.value)
    with pytest.raises(SetupError, match="OpenVINO cannot load"):
        await load(GGUF, LoadOptions(engine_options={"scheduler": {"no_such_attribute": 1}}))

"""What the shipped contract does not ask of every engine, with the real model."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.common.continued_engine import ContinuedEngine
from antiphon.engines.gguf.reader import read_gguf
from antiphon.engines.llama import engine as llama_engine
from antiphon.engines.llama.client import LlamaClient
from antiphon.engines.llama.engine import LlamaEngine, load
from antiphon.engines.llama.stream import LlamaStream
from antiphon.errors import BackendError, InvalidRequest, SetupError
from antiphon.inference.tokens import Chunk, Constraint, Prompt
from antiphon.testing.engine_check import TIMEOUT_S, collect
from tests.child_processes import LINUX, child_processes, kill_next, socket_path
from tests.tiny_models.tiny_tools import GGUF

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


def prompt(engine: LlamaEngine, text: str) -> Prompt:
    return Prompt(tuple(engine.tokenizer.encode(text, special=True)))


def greedy(max_tokens: int, **more: Any) -> Sampling:
    return Sampling(max_tokens=max_tokens, temperature=0, **more)


async def test_says_what_the_file_says(llama: LlamaEngine, smollm2_path: Path) -> None:
    card = llama.card
    assert card.name == smollm2_path.stem
    assert card.chat_template is not None and "im_start" in card.chat_template
    assert (card.architecture, card.context_size) == ("llama", 1024)
    assert (card.bos_token, card.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert card.fingerprint and card.fingerprint in read_gguf(smollm2_path).vocabulary_digest


async def test_dry_sampler_ends_loops_of_text_but_not_of_formats(smollm2_path: Path) -> None:
    dry = {"dry_multiplier": 2, "dry_allowed_length": 2, "dry_penalty_last_n": 64}
    options = LoadOptions(parallel=1, threads=1, context_size=256, engine_options=dry)
    llama = await load(smollm2_path, options)
    try:
        loop = prompt(llama, " The cat sat on the mat." * 6)
        pattern = r"start: /( The cat sat on the mat\.| No\.)+/"
        text, beside_calls, form = [
            b"".join(map(llama.tokenizer.piece, (await collect(llama, loop, sampling)).ids))
            for sampling in (
                greedy(7),
                greedy(7, constraint=Constraint("start: /(.|\\n)*/", free_text=True)),
                greedy(7, constraint=Constraint(pattern)),
            )
        ]
    finally:
        await llama.close()
    assert b"The cat sat on the mat." not in text
    assert b"The cat sat on the mat." not in beside_calls
    assert form == b" The cat sat on the mat."


@pytest.mark.parametrize("options", [{"mirostat": 1}, {"dry_base": -1}, {"dry_base": "1"}])
async def test_unusable_engine_option_is_refused(smollm2_path: Path, options: Any) -> None:
    with pytest.raises(SetupError, match=next(iter(options))):
        await load(smollm2_path, LoadOptions(engine_options=options))


async def test_yields_the_end_token_it_sampled(llama: LlamaEngine) -> None:
    request = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"
    end = llama.tokenizer.special["<|im_end|>"]
    outcome = await collect(llama, prompt(llama, request), greedy(50, logit_bias={end: 50.0}))
    assert (outcome.ids, outcome.last.finish) == ((end,), "stop")
    endless = await collect(
        llama, prompt(llama, request), greedy(5, ignore_eos=True, logit_bias={end: 50.0})
    )
    assert (len(endless.ids), endless.last.finish) == (5, "length")


@pytest.mark.parametrize("text", ["🦄é漢 🦄🇩🇪x", "Ünïcödé ½ 😀😃", "漢字かな"])
async def test_tells_every_id_of_characters_in_several_tokens(
    llama: LlamaEngine, text: str
) -> None:
    for result in (None, 1):
        sampling = greedy(60, constraint=Constraint(f"start: /{text}/"), logprobs=result)
        outcome = await collect(llama, prompt(llama, "Write: "), sampling)
        *ids, end = outcome.ids
        assert end in llama.tokenizer.end_ids
        assert b"".join(map(llama.tokenizer.piece, ids)).decode() == text
        assert ids == llama.tokenizer.encode(text, special=False)


async def test_tokens_of_an_incomplete_character_are_counted(llama: LlamaEngine) -> None:
    input_prompt, text = prompt(llama, "Write: "), "🦄🇩🇪"
    ids = llama.tokenizer.encode(text, special=False)
    constraint, unreported_tokens = Constraint(f"start: /{text}/"), set()
    for most in range(1, len(ids) + 1):
        outcome = await collect(llama, input_prompt, greedy(most, constraint=constraint))
        assert outcome.last.finish == "length"
        assert list(outcome.ids) == ids[: most - outcome.last.unreported_tokens]
        unreported_tokens.add(outcome.last.unreported_tokens)
    assert unreported_tokens > {0, 1}


async def test_the_end_of_the_context_ends_it(llama: LlamaEngine) -> None:
    long = prompt(llama, "one " * 1500)
    close = Prompt(long.ids[: llama.card.context_size - 8])
    outcome = await collect(llama, close, greedy(100, ignore_eos=True))
    assert outcome.last.finish == "length"
    assert 1 <= len(outcome.ids) <= 8


@pytest.mark.parametrize(
    ("ids", "max_tokens", "param"), [((), 5, "input"), ((5,), 0, "max_output_tokens")]
)
async def test_values_that_llama_cpp_would_change_are_refused(
    llama: LlamaEngine, ids: tuple[int, ...], max_tokens: int, param: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await collect(llama, Prompt(ids), greedy(max_tokens))
    assert raised.value.param == param


async def test_ids_outside_the_vocabulary_raise(llama: LlamaEngine) -> None:
    with pytest.raises(BackendError, match="outside the model's vocabulary"):
        await collect(llama, Prompt((10**6,)), greedy(5))


async def test_slow_consumer_receives_merged_chunks(llama: LlamaEngine) -> None:
    """And is not waited for: the generation ends while nobody reads."""
    chunks = llama.generate(prompt(llama, "Count: 1 2 3"), greedy(30, ignore_eos=True))
    others = asyncio.all_tasks()
    async with contextlib.aclosing(chunks), asyncio.timeout(TIMEOUT_S):
        await anext(chunks)
        await asyncio.wait(asyncio.all_tasks() - others)
        rest = [chunk async for chunk in chunks]
    assert len(rest) == 1
    assert (len(rest[0].ids), rest[0].finish) == (30, "length")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[LlamaStream]:
    """Every generation that begins."""
    begun: list[LlamaStream] = []

    def begin(*arguments: Any) -> LlamaStream:
        begun.append(LlamaStream(*arguments))
        return begun[-1]

    monkeypatch.setattr(llama_engine, "LlamaStream", begin)
    return begun


async def test_closing_the_iterator_stops_llama_cpp_and_frees_the_thread(
    llama: LlamaEngine, streams: list[LlamaStream]
) -> None:
    observed, others = [], asyncio.all_tasks()
    chunks = llama.generate(prompt(llama, "Count: 1 2 3"), greedy(900, ignore_eos=True))
    async with asyncio.timeout(TIMEOUT_S):
        while not observed:
            observed += (await anext(chunks)).ids
        await chunks.aclose()
        at_close = len(streams[0].sampled)
        while running := asyncio.all_tasks() - others:
            await asyncio.wait(running)
    assert len(streams[0].sampled) <= at_close + 1


async def test_prompt_processing_can_be_aborted(
    llama: LlamaEngine, streams: list[LlamaStream]
) -> None:
    others = asyncio.all_tasks()
    ids = tuple(range(1000, 2000))
    chunks = llama.generate(Prompt(ids), greedy(1))
    async with asyncio.timeout(TIMEOUT_S):
        first = await anext(chunks)
        assert first == Chunk(cached_tokens=first.cached_tokens)
        await chunks.aclose()
        while running := asyncio.all_tasks() - others:
            await asyncio.wait(running)
    assert streams[0].sampled == []


@pytest.mark.parametrize("max_tokens", [6, 900], ids=["finished", "interrupted"])
async def test_continuation_finds_the_state_of_a_generation_that_was_just_closed(
    llama: LlamaEngine, max_tokens: int
) -> None:
    ids = list(prompt(llama, f"Of {max_tokens} tokens, this text repeats a word. " * 12).ids)
    async with asyncio.timeout(TIMEOUT_S):
        for _ in range(4):
            chunks = llama.generate(Prompt(tuple(ids)), greedy(max_tokens, ignore_eos=True))
            before = len(ids)
            async for chunk in chunks:
                ids += chunk.ids
                if chunk.finish or len(ids) >= before + 4:
                    break
            await chunks.aclose()
            outcome = await collect(llama, Prompt(tuple(ids)), greedy(1))
            assert outcome.cached_tokens is not None
            assert outcome.cached_tokens >= before
            ids += outcome.ids


async def test_alternating_conversations_keep_their_cached_prefix(llama: LlamaEngine) -> None:
    system = prompt(llama, "You answer like a pirate would. " * 12).ids
    talks = [[*system, *prompt(llama, f"Question {number}: ").ids] for number in range(6)]
    for turn in range(2):
        for talk in talks:  # six in turn, over four slots
            outcome = await collect(llama, Prompt(tuple(talk)), greedy(12, ignore_eos=True))
            if turn:
                assert outcome.cached_tokens is not None
                assert outcome.cached_tokens > len(system) + 8
            talk += [*outcome.ids, *prompt(llama, "\nGo on: ").ids]


@LINUX
async def test_loads_without_a_word_and_leaves_nothing(
    smollm2_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    others = child_processes()
    engine = await load(smollm2_path, LoadOptions(threads=1, context_size=256, parallel=1))
    await collect(engine, prompt(engine, "Hi"), greedy(2))
    (pid,) = child_processes() - others
    folder = socket_path(pid).parent
    await engine.close()
    await engine.close()
    assert capfd.readouterr() == ("", "")
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@LINUX
async def test_only_this_user_with_the_key_reaches_the_server(smollm2_path: Path) -> None:
    others = child_processes()
    engine = await load(smollm2_path, LoadOptions(threads=1, context_size=256, parallel=1))
    try:
        (pid,) = child_processes() - others
        sockets = Path(f"/proc/{pid}/fd")
        mine = {str(each.readlink()) for each in sockets.iterdir()}
        for table in ("tcp", "tcp6"):
            rows = [row.split() for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
            assert not [row for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine]
        path = socket_path(pid)
        assert path.parent.stat().st_mode & 0o077 == 0
        refused = await LlamaClient(str(path), 0, "wrong").get("/props")
        assert refused["error"]["code"] == 401
    finally:
        await engine.close()


@LINUX
async def test_process_that_died_is_started_again(smollm2_path: Path) -> None:
    others = child_processes()
    engine = await load(smollm2_path, LoadOptions(threads=1, context_size=512, parallel=2))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            chunks = engine.generate(prompt(engine, "Count: 1 2"), greedy(400, ignore_eos=True))
            await anext(chunks)
            (pid,) = child_processes() - others
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(BackendError, match="process ended"):
                async for _ in chunks:
                    pass
        outcome = await collect(engine, prompt(engine, "Count: 1 2"), greedy(4, ignore_eos=True))
        assert (len(outcome.ids), outcome.cached_tokens) == (4, 0)
    finally:
        await engine.close()


@LINUX
async def test_process_that_dies_again_while_it_loads_is_started_once_more(
    smollm2_path: Path,
) -> None:
    others = child_processes()
    inner = await load(smollm2_path, LoadOptions(threads=1, context_size=512, parallel=2))
    engine = ContinuedEngine(inner)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            chunks = engine.generate(prompt(inner, "Count: 1 2"), greedy(40, ignore_eos=True))
            ids = list((await anext(chunks)).ids)
            rest = asyncio.ensure_future(_ids(chunks))
            await kill_next(others, count=2)  # the second one has not loaded the model yet
            assert len(ids + await rest) == 40
    finally:
        await engine.close()


async def _ids(chunks: AsyncGenerator[Chunk, None]) -> list[int]:
    return [id async for chunk in chunks for id in chunk.ids]


async def test_loading_holds_up_no_other_task(smollm2_path: Path) -> None:
    """llama.cpp's binding would hold the GIL for the whole load."""
    loop, gaps = asyncio.get_running_loop(), [0.0]

    async def watch() -> None:
        while True:
            before = loop.time()
            await asyncio.sleep(0)
            gaps.append(loop.time() - before)

    gc.collect()
    watching = asyncio.create_task(watch())
    started = loop.time()
    engine = await load(smollm2_path, LoadOptions(threads=1, parallel=4))
    took = loop.time() - started
    watching.cancel()
    await engine.close()
    assert max(gaps) < took / 2


async def test_truncated_file_gives_a_one_line_error(smollm2_path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with smollm2_path.open("rb") as whole:
        cut.write_bytes(whole.read(3_000_000))
    for path, reason in ((cut, "after the end of the file"), (tmp_path / "none", "no model file")):
        with pytest.raises(SetupError, match=reason) as raised:
            await load(path)
        assert "\n" not in str(raised.value)


@LINUX
async def test_process_that_is_killed_while_it_loads_is_a_setup_error() -> None:
    """The system does this when memory runs out."""
    others = child_processes()
    loading = asyncio.create_task(load(GGUF, LoadOptions(threads=1)))
    async with asyncio.timeout(TIMEOUT_S):
        await kill_next(others, count=1)
        with pytest.raises(SetupError, match="SIGKILL, perhaps because memory ran out"):
            await loading
    assert child_processes() == others


async def test_a_missing_extra_is_named(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"pip install .*\[llama\]"):
        await load(smollm2_path)

"""Replies that are interrupted under a grammar, or whose grammar is costly, continue within it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b

import pytest
from msgspec.structs import replace

from antiphon.backends.base import Reply
from antiphon.backends.local.backend import LocalBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import Sampling
from antiphon.engines.common import watched_generation
from antiphon.engines.common.grammar_state import GrammarState, GrammarTracker
from antiphon.errors import BackendError, CannotContinue, EngineLost
from antiphon.inference.conversation import Conversation, Options, ResumePoint
from antiphon.inference.tokens import Chunk, ModelCard, Prompt
from antiphon.stream.deltas import Delta, Finish, SampledTokens, Text
from antiphon.testing.engine import ScriptedEngine
from antiphon.testing.replies import deltas_of
from antiphon.wire.items import InputText, Message, OutputText
from antiphon.wire.response import JsonSchemaFormat, TextConfig

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "maximum": 999},
        "kind": {"enum": ["boat", "sea"]},
    },
    "required": ["name", "count", "kind"],
    "additionalProperties": False,
}
OPTIONS = Options(
    text=TextConfig(format=JsonSchemaFormat(name="thing", schema=SCHEMA, strict=True)),
    temperature=0,
)
CONVERSATION = Conversation((Message(role="user", content=(InputText(text="Hi"),)),))


class GreedyEngine(ScriptedEngine):
    """Samples the token with the highest pseudo-random score, which depends on the last three, and
    applies grammars from the first token of a request only."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        self.requests.append((prompt, sampling))
        ends = {*self.tokenizer.end_ids, *sampling.stop_ids}
        state: GrammarState | None = None
        if sampling.constraint is not None:
            state = GrammarTracker(self.tokenizer).start(sampling.constraint.lark, (), ends)
            assert state is not None
        ids = list(prompt.ids)
        for count in range(1, sampling.max_tokens + 1):
            bias = dict(sampling.logit_bias)
            for id, value in (state.bias() if state else {}).items():
                bias[id] = bias.get(id, 0) + value
            best = max(range(self.tokenizer.size), key=lambda id: _score(ids, id) + bias.get(id, 0))
            ids.append(best)
            if state is not None:
                assert state.accept([best]) == 1
            if best in ends:
                yield Chunk((best,), finish="stop")
                return
            yield Chunk((best,), finish="length" if count == sampling.max_tokens else None)


def _score(ids: list[int], id: int) -> float:
    key = b"".join(each.to_bytes(4) for each in (*ids[-3:], id))
    # endless white space is of no use
    return int.from_bytes(blake2b(key, digest_size=4).digest()) / 2**32 - (id <= 32)


def _backend(engine: ScriptedEngine) -> LocalBackend:
    return LocalBackend(engine, ChatDialect(engine.card, engine.tokenizer))


def _engine() -> GreedyEngine:
    return GreedyEngine(card=ModelCard(name="greedy", context_size=1024, fingerprint="bytes"))


async def _play(reply: Reply) -> list[Delta]:
    return [delta async for delta in deltas_of(reply)]


def _text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Text))


def _finish(deltas: list[Delta]) -> Finish:
    (finish,) = (delta for delta in deltas if isinstance(delta, Finish))
    return finish


def _ids(deltas: list[Delta]) -> tuple[int, ...]:
    return tuple(id for delta in deltas if isinstance(delta, SampledTokens) for id in delta.ids)


async def test_constrained_reply_continues_behind_any_token() -> None:
    backend = _backend(_engine())
    reply = await backend.prepare(CONVERSATION, OPTIONS)
    prompt = reply.prompt_tokens
    assert prompt is not None
    undisturbed = await _play(reply)
    ids, text = _ids(undisturbed), _text(undisturbed)
    assert len(ids) > 30 and text.endswith("}")
    for count in range(1, len(ids), 13):
        before = bytes(ids[:count]).decode()
        message = Message(role="assistant", content=(OutputText(text=before),))
        point = ResumePoint(prompt.ids, ids[:count], (), (message,))
        resumed = (await backend.prepare(CONVERSATION, OPTIONS)).resume(point)
        deltas = await _play(resumed)
        assert before + _text(deltas) == text
        (finish,) = (delta for delta in deltas if isinstance(delta, Finish))
        assert finish.reason == "stop" and finish.usage.output_tokens == len(ids)


async def test_reply_that_never_matched_its_grammar_cannot_continue() -> None:
    backend = _backend(_engine())
    reply = await backend.prepare(CONVERSATION, OPTIONS)
    assert reply.prompt_tokens is not None
    point = ResumePoint(reply.prompt_tokens.ids, tuple(b"no"), (), ())
    with pytest.raises(CannotContinue):
        await _play(reply.resume(point))


async def test_engine_without_logit_bias_cannot_continue_a_constrained_reply() -> None:
    engine = _engine()
    engine.capabilities = replace(engine.capabilities, logit_bias=False)
    reply = await _backend(engine).prepare(CONVERSATION, OPTIONS)
    with pytest.raises(CannotContinue, match="grammar"):
        reply.resume(ResumePoint((1,), tuple(b"{"), (), ()))


class CrashingEngine(GreedyEngine):
    """Its process ends after each ``lifetime`` tokens of a request that is not masked."""

    lifetime = 11

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        count = 0
        async for chunk in super().generate(prompt, sampling):
            yield chunk
            count += 1
            if count == self.lifetime and chunk.finish is None:
                raise EngineLost


@pytest.mark.parametrize("masks_delay_others", [True, False])
async def test_constrained_reply_outlives_the_process_of_its_engine(
    masks_delay_others: bool,
) -> None:
    texts = []
    card = _engine().card
    for engine in (_engine(), CrashingEngine(card=card)):
        engine.capabilities = replace(engine.capabilities, masks_delay_others=masks_delay_others)
        deltas = await _play(await _backend(engine).prepare(CONVERSATION, OPTIONS))
        texts.append((_text(deltas), _ids(deltas), _finish(deltas).usage.output_tokens))
    assert texts[0] == texts[1]
    assert len(engine.requests) > 2


async def test_constrained_reply_without_logit_bias_fails_with_its_process() -> None:
    engine = CrashingEngine(card=_engine().card)
    engine.capabilities = replace(engine.capabilities, logit_bias=False)
    reply = await _backend(engine).prepare(CONVERSATION, OPTIONS)
    with pytest.raises(EngineLost) as caught:
        await _play(reply)
    assert "retry" in caught.value.client_message


class YieldingEngine(GreedyEngine):
    """Other tenants wait for it after 11 tokens."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        count = 0
        async for chunk in super().generate(prompt, sampling):
            count += 1
            yield replace(chunk, gives_way=count > 11 and sampling.constraint is not None)


@pytest.mark.parametrize("masks_delay_others", [True, False])
async def test_constrained_reply_gives_way_if_its_grammar_is_followed(
    masks_delay_others: bool,
) -> None:
    texts = []
    card = _engine().card
    for engine in (_engine(), YieldingEngine(card=card)):
        engine.capabilities = replace(engine.capabilities, masks_delay_others=masks_delay_others)
        for _ in range(2):  # the grammar is not remembered as costly
            engine.requests.clear()
            deltas = await _play(await _backend(engine).prepare(CONVERSATION, OPTIONS))
            assert engine.requests[0][1].constraint is not None
        texts.append((_text(deltas), _ids(deltas), _finish(deltas).usage.output_tokens))
    assert texts[0] == texts[1]
    assert (len(engine.requests) > 1) == masks_delay_others


class DelayedEngine(GreedyEngine):
    """Computes masks in its loop, and gives the measurement of each the time that it needs."""

    def __init__(self) -> None:
        super().__init__(card=_engine().card)
        self.capabilities = replace(self.capabilities, masks_delay_others=True)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().generate(prompt, sampling):
            await asyncio.get_running_loop().run_in_executor(None, int)
            yield chunk


def _set_cost(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let each piece of work on a grammar take this CPU time, on the only thread."""
    clock = itertools.count(step=seconds)
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    monkeypatch.setattr(watched_generation, "_PAUSE_S", 0.0)
    executor = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(executor)


async def test_costly_grammar_leaves_the_engines_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = await _play(await _backend(_engine()).prepare(CONVERSATION, OPTIONS))
    _set_cost(monkeypatch, 0.01)
    engine = DelayedEngine()
    backend = _backend(engine)
    first = await _play(await backend.prepare(CONVERSATION, OPTIONS))
    assert _text(first) == _text(undisturbed)
    (finish,) = (delta for delta in first if isinstance(delta, Finish))
    assert finish.usage.output_tokens == len(_ids(first)) == len(_ids(undisturbed))
    constrained = [sampling.constraint is not None for _, sampling in engine.requests]
    assert constrained[0] and len(constrained) > 1 and not any(constrained[1:])
    engine.requests.clear()
    again = await _play(await backend.prepare(CONVERSATION, OPTIONS))
    assert _text(again) == _text(undisturbed)
    assert all(sampling.constraint is None for _, sampling in engine.requests)


async def test_usual_grammar_stays_in_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_cost(monkeypatch, 1e-5)
    engine = DelayedEngine()
    await _play(await _backend(engine).prepare(CONVERSATION, OPTIONS))
    assert [sampling.constraint is not None for _, sampling in engine.requests] == [True]


async def test_grammar_over_its_budget_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_cost(monkeypatch, 0.5)
    reply = await _backend(DelayedEngine()).prepare(CONVERSATION, OPTIONS)
    with pytest.raises(BackendError, match="too costly") as raised:
        await _play(reply)
    assert raised.value.permanent and raised.value.code == "invalid_grammar"


async def test_grammar_over_llguidances_limits_fails_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _set_cost(monkeypatch, 0.0)
    monkeypatch.setattr(GrammarState, "is_broken", property(lambda state: True))
    monkeypatch.setattr(GrammarState, "measure", lambda state, ids: -1)
    reply = await _backend(DelayedEngine()).prepare(CONVERSATION, OPTIONS)
    with pytest.raises(BackendError, match="too costly"):
        await _play(reply)

"""Replies that are interrupted under a grammar continue within it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from hashlib import blake2b

import pytest
from msgspec.structs import replace

from antiphon.backends.base import Reply, flatten
from antiphon.backends.local.backend import LocalBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import Sampling
from antiphon.engines.common.grammar_state import GrammarState, GrammarTracker
from antiphon.errors import CannotContinue
from antiphon.inference.conversation import Conversation, Options, ResumePoint
from antiphon.inference.tokens import Chunk, ModelCard, Prompt
from antiphon.stream.deltas import Delta, Finish, SampledTokens, Text
from antiphon.testing.engine import ScriptedEngine
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
    return [delta async for delta in flatten(reply.deltas())]


def _text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Text))


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

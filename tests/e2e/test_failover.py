"""Two real engines, of which one is killed in the middle of replies, behind the whole server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing
from typing import Any

import pytest

from antiphon.backends.local.backend import LocalBackend
from antiphon.dialects.chat.dialect import ChatDialect
from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.completions.engine import CompletionsEngine, load
from antiphon.inference.tokens import Chunk, Prompt
from antiphon.testing.memory_store.store import MemoryStore
from tests.conformance import oracle
from tests.conformance.server import Server
from tests.tiny_models.tiny_tools import GGUF
from tests.upstream.started import llama_server_process
from tests.upstream.test_fleet import recorded_replicas

pytestmark = pytest.mark.e2e

WAIT_S = 120
#: The ways to ask, each for two conversations.
WAYS = [{"stream": True}, {}, {"background": True, "stream": True}, {"background": True}]
BODY = {"temperature": 0, "ignore_eos": True, "max_output_tokens": 180}
#: Questions to which llama.cpp gives the same greedy answer wherever its prompt ends. For others a
#: token with a close second may change, because it computes prompts and single tokens differently.
#: In these answers, the log-probabilities of the best two tokens differ by 0.12 or more.
QUESTIONS = ("What is 2 plus 3?", "Add 4 and 5.", "Who are you?", "What is your name?")


async def _finished(server: Server, way: dict[str, Any], question: str) -> dict[str, Any]:
    """Ask and return the terminal response; the events of a stream are checked."""
    reply = await server.post(input=question, **BODY, **way)
    assert reply.status_code == 200, reply.text
    if way.get("stream"):
        response: dict[str, Any] = oracle.stream(reply.content)[-1]["response"]
        return response
    response = reply.json()
    while response["status"] in ("queued", "in_progress"):
        events = await server.get(f"responses/{response['id']}", stream="true")
        assert oracle.stream(events.content)
        response = (await server.get(f"responses/{response['id']}")).json()
    return response


async def _ask_all(server: Server) -> list[dict[str, Any]]:
    ways = [way for way in WAYS for _ in range(2)]
    request = (
        _finished(server, way, QUESTIONS[number % len(QUESTIONS)])
        for number, way in enumerate(ways)
    )
    return await asyncio.gather(*request)


def _count_chunks(
    engine: CompletionsEngine, monkeypatch: pytest.MonkeyPatch, count: int
) -> tuple[asyncio.Event, list[list[int]]]:
    """Return an event that is set once the engine has yielded so many chunks, and the token ids of
    each reply so far."""
    begun, left, generate = asyncio.Event(), iter(range(count)), engine.generate
    sampled: list[list[int]] = []

    async def counted(prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Chunk, None]:
        ids: list[int] = []
        sampled.append(ids)
        async with aclosing(generate(prompt, sampling)) as chunks:
            async for chunk in chunks:
                ids.extend(chunk.ids)
                if next(left, None) is None:
                    begun.set()
                yield chunk

    monkeypatch.setattr(engine, "generate", counted)
    return begun, sampled


def _without_ids(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the output items of a response without their ids."""
    return [{**item, "id": ""} for item in response["output"]]


@pytest.mark.requirement("UP-FAILOVER")
async def test_replies_survive_the_death_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        processes = dict(stack.enter_context(llama_server_process(GGUF)) for _ in range(2))
        made = recorded_replicas(monkeypatch)
        engine = await load(",".join(processes), LoadOptions(name="tiny"))
        backend = LocalBackend(engine, ChatDialect(engine.card, engine.tokenizer))
        server = Server(backend, MemoryStore())
        try:
            async with asyncio.timeout(WAIT_S):
                undisturbed = await _ask_all(server)
                begun, sampled = _count_chunks(engine, monkeypatch, 250)
                asking = asyncio.create_task(_ask_all(server))
                await begun.wait()
                victim = max(made, key=lambda replica: replica.running)
                running = victim.running
                sizes = [len(ids) for ids in sampled]
                processes[victim.root].kill()
                survived = await asking
        finally:
            await server.close()
            await backend.close()
    assert running >= 4 and victim.failures
    assert any(0 < size < 180 for size in sizes), "no reply was interrupted after its first token"
    for before, after in zip(undisturbed, survived, strict=True):
        assert after["status"] == before["status"] == "incomplete"
        assert _without_ids(after) == _without_ids(before)
        assert after["usage"]["output_tokens"] == before["usage"]["output_tokens"] == 180
        assert after["usage"]["input_tokens"] == before["usage"]["input_tokens"]

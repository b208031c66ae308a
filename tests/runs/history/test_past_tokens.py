"""The upstream is asked to count tokens only when the usage of the last turn allows a too long
prompt."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from antiphon.backends.remote.factory import create_chat_backend
from antiphon.errors import RunError
from antiphon.runs.service import Service
from antiphon.wire.response import Response
from tests.runs.scripted_service import create, make_service
from tests.upstream.fakes import Answer, Fake, chunks, fake, json_answer

_CONTEXT = 5000
_TURN = "word " * 250  # some 1,300 bytes
_ANSWER_TOKENS = 10


def _answer(playing: Fake, input_tokens: int) -> None:
    usage = {"prompt_tokens": input_tokens, "completion_tokens": _ANSWER_TOKENS}
    stream = chunks({"content": "Yes."}, usage={**usage, "total_tokens": 0})
    playing.routes["/v1/chat/completions"] = [Answer(stream)]


@asynccontextmanager
async def _service(owner: str = "vllm") -> AsyncIterator[tuple[Fake, Service]]:
    models = json_answer({"object": "list", "data": [{"id": "m", "owned_by": owner}]})
    async with fake(v1__models=models, tokenize=json_answer({"count": 10})) as playing:
        backend = await create_chat_backend("m", playing.url, context_size=_CONTEXT)
        try:
            yield playing, make_service(backend)
        finally:
            await backend.close()


async def _turns(playing: Fake, service: Service, count: int, **fields: Any) -> Response:
    """A chain of turns. The model counts a token for each four bytes of the prompt."""
    previous: str | None = None
    for turn in range(1, count + 1):
        _answer(playing, turn * len(_TURN) // 4)
        run = await create(service, input=_TURN, previous_response_id=previous, **fields)
        await run.drive()
        previous = run.response.id
    return run.response


def _counts(playing: Fake) -> int:
    return sum(path == "/tokenize" for path, _, _ in playing.asked)


async def test_agent_chain_is_sent_once() -> None:
    async with _service() as (playing, service):
        last = await _turns(playing, service, 11, instructions="Be brief.")
        sizes = {"all": 0, "prompts": 0}
        for path, body, _ in playing.asked:
            if body is not None:
                sizes["all"] += len(json.dumps(body))
                sizes["prompts"] += len(json.dumps(body)) if path != "/tokenize" else 0
        assert last.usage is not None
        assert sizes["prompts"] > 5 * _CONTEXT, "the last prompt has more bytes than tokens fit"
        assert _counts(playing) == 0
        assert sizes["all"] <= 1.01 * sizes["prompts"]


async def test_upstream_counts_when_the_new_items_may_not_fit() -> None:
    async with _service() as (playing, service):
        last = await _turns(playing, service, 5)
        room = _CONTEXT - (last.usage.total_tokens if last.usage else 0)
        for text, expected in (("x" * (room - 300), 0), ("x" * room, 1)):
            run = await create(service, input=text, previous_response_id=last.id)
            await run.drive()
            assert _counts(playing) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"instructions": "Be long."},
        {"tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}]},
        {"text": {"format": {"type": "json_object"}}},  # which the answer is not
    ],
)
async def test_usage_counts_only_for_the_same_prompt(changed: dict[str, Any]) -> None:
    async with _service() as (playing, service):
        last = await _turns(playing, service, 5)
        fields = {"input": _TURN, "previous_response_id": last.id, **changed}
        with suppress(RunError):
            await (await create(service, **fields)).drive()
        assert _counts(playing) >= 1


async def test_truncated_prompt_says_nothing_about_the_whole_conversation() -> None:
    async with _service() as (playing, service):
        await _turns(playing, service, 5, truncation="auto")
        assert _counts(playing) == 2, "the last two prompts have more bytes than tokens fit"


async def test_without_an_endpoint_for_counts_the_prompt_is_sent_once() -> None:
    async with _service(owner="nobody") as (playing, service):
        await _turns(playing, service, 11)
        assert _counts(playing) == 0

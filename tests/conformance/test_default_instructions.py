"""The default system prompt of a model."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.testing.memory_store.store import MemoryStore
from tests.conformance.server import Server

PROMPT = "You are a poet."
SYSTEM = {"role": "system", "content": "You are a lawyer."}
USER = {"role": "user", "content": "hi"}


@pytest.mark.requirement("API-DEFAULT-INSTRUCTIONS")
@pytest.mark.parametrize(
    ("fields", "used"),
    [
        ({}, PROMPT),
        ({"input": [USER]}, PROMPT),
        ({"instructions": "Be brief."}, "Be brief."),
        ({"instructions": ""}, ""),
        ({"input": [SYSTEM, USER]}, None),
        ({"input": [USER, {**SYSTEM, "role": "developer"}, USER]}, None),
    ],
)
async def test_prompt_is_used_where_nothing_else_instructs(
    fields: dict[str, Any], used: str | None
) -> None:
    backend = ScriptedBackend()
    server = Server(backend, MemoryStore(), instructions=PROMPT)
    body = (await server.post(**fields)).json()
    again = (await server.post(**fields)).json()
    assert [conversation.instructions for conversation, _ in backend.requests] == [used, used]
    assert body["instructions"] == again["instructions"] == used
    await server.close()


@pytest.mark.requirement("API-DEFAULT-INSTRUCTIONS")
async def test_chain_keeps_its_own_system_message() -> None:
    backend = ScriptedBackend()
    server = Server(backend, MemoryStore(), instructions=PROMPT)
    for first, used in ((SYSTEM, None), (USER, PROMPT)):
        response = (await server.post(input=[first, USER])).json()
        await server.post(previous_response_id=response["id"])
        assert backend.requests[-1][0].instructions == used
    await server.close()


@pytest.mark.requirement("API-DEFAULT-INSTRUCTIONS")
async def test_prompt_is_counted() -> None:
    counts = []
    for prompt in (None, PROMPT):
        server = Server(ScriptedBackend(), MemoryStore(), instructions=prompt)
        body = {"model": "tiny", "input": "hi"}
        reply = await server.client.post("/v1/responses/input_tokens", json=body)
        counts.append(reply.json()["input_tokens"])
        await server.close()
    assert counts[1] == counts[0] + len(PROMPT.split())

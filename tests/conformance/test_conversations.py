"""Conversations: kept lists of items that responses are made in."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.backends.scripted import ScriptedBackend
from antiphon.store.base import Store
from tests.conformance import oracle
from tests.conformance.breaking import Breaking
from tests.conformance.conftest import Serve
from tests.conformance.line import Line
from tests.conformance.scripts import said
from tests.conformance.served import Ask, Json, Server
from tests.conformance.test_state import heard


async def begun(server: Server, *texts: str) -> str:
    items = [{"role": "user", "content": text} for text in texts]
    reply = await server.client.post("/v1/conversations", json={"items": items})
    created: Json = reply.json()
    assert created["object"] == "conversation"
    return str(created["id"])


async def texts(server: Server, conversation: str) -> list[str]:
    page = (await server.get(f"conversations/{conversation}/items", order="asc")).json()
    return [item["content"][0]["text"] for item in page["data"]]


@pytest.mark.requirement("D-66", "API-CONVERSATION", "API-CONVERSATION-BARE")
async def test_response_reads_and_extends_its_conversation(
    serve: Serve, ask: Ask, stores: Store
) -> None:
    backend = ScriptedBackend(["one", "two", "three"])
    server = serve(backend, on=stores)
    talk = await begun(server, "a")
    first = await ask(server, input="b", conversation=talk, instructions="Be brief.")
    assert first.ended["conversation"] == {"id": talk}
    assert await texts(server, talk) == ["a", "b", "one"]
    await ask(server, input="c", conversation={"id": talk}, store=False)
    assert heard(backend) == ["a", "b", "one", "c"]
    assert backend.requests[1][0].instructions is None
    assert await texts(server, talk) == ["a", "b", "one"]


@pytest.mark.requirement("API-CONVERSATION-LOCK")
async def test_conversation_has_one_response_at_a_time(serve: Serve, ask: Ask) -> None:
    server = serve(Breaking([*said("Hello")[:2], asyncio.Event()]))
    talk = await begun(server, "a")
    async with Line(server.app, conversation=talk) as line:
        await line.event()
        refused = (await ask(server, conversation=talk)).refused
    assert (refused["http"], refused["code"], refused["param"]) == (
        400, "conversation_locked", "conversation",
    )  # fmt: skip


@pytest.mark.requirement("API-CONVERSATION-UNKNOWN", "API-CONVERSATION-OR-CHAIN")
async def test_unknown_conversation_is_rejected(serve: Serve, ask: Ask) -> None:
    unknown = (await ask(serve(), conversation="conv_none")).refused
    assert unknown["http"] == 404
    assert unknown["message"] == "Conversation with id 'conv_none' not found."
    assert unknown["param"] == "conversation"
    both = {"conversation": "conv_1", "previous_response_id": "resp_1"}
    refused = (await ask(serve(), **both)).refused
    assert (refused["http"], refused["code"]) == (400, "mutually_exclusive_parameters")


@pytest.mark.requirement("API-CONVERSATION-DELETE")
async def test_responses_outlive_their_conversation(serve: Serve, ask: Ask, stores: Store) -> None:
    server = serve(on=stores)
    talk = await begun(server, "a")
    made = (await ask(server, input="b", conversation=talk)).ended
    await server.client.delete(f"/v1/conversations/{talk}")
    assert (await server.get(f"conversations/{talk}")).status_code == 404
    assert (await server.get(f"responses/{made['id']}")).json() == made


@pytest.mark.requirement("API-CONVERSATION-DUPLICATE")
async def test_conversation_contains_each_item_once(serve: Serve, stores: Store) -> None:
    server = serve(on=stores)
    talk = await begun(server)
    item = {"id": "msg_mine", "role": "user", "content": "x"}
    path = f"/v1/conversations/{talk}/items"
    assert (await server.client.post(path, json={"items": [item]})).status_code == 200
    again = await server.client.post(path, json={"items": [item]})
    assert again.status_code == 400
    assert "Duplicate item found with id msg_mine." in oracle.error(again)["message"]


async def test_unknown_item_reference_returns_404(serve: Serve, stores: Store) -> None:
    server = serve(on=stores)
    talk = await begun(server)
    body = {"items": [{"type": "item_reference", "id": "msg_none"}]}
    for path in ("/v1/conversations", f"/v1/conversations/{talk}/items"):
        refused = await server.client.post(path, json=body)
        assert (refused.status_code, oracle.error(refused)["param"]) == (404, "items")

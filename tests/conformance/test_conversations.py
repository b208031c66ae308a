"""Conversations: stored lists of items that responses read and extend."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.store.base import Store
from tests.conformance import oracle
from tests.conformance.asgi_clients import StreamingClient
from tests.conformance.conftest import Serve
from tests.conformance.scripts import message_deltas
from tests.conformance.server import Ask, Json, Server
from tests.conformance.stepped_backend import SteppedBackend
from tests.conformance.test_state import prompt_texts


async def create_conversation(server: Server, *texts: str) -> str:
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
    serve: Serve, ask: Ask, store: Store
) -> None:
    backend = ScriptedBackend(["one", "two", "three"])
    server = serve(backend, on=store)
    conversation = await create_conversation(server, "a")
    first = await ask(server, input="b", conversation=conversation, instructions="Be brief.")
    assert first.terminal_response["conversation"] == {"id": conversation}
    assert await texts(server, conversation) == ["a", "b", "one"]
    await ask(server, input="c", conversation={"id": conversation}, store=False)
    assert prompt_texts(backend) == ["a", "b", "one", "c"]
    assert backend.requests[1][0].instructions is None
    assert await texts(server, conversation) == ["a", "b", "one"]


@pytest.mark.requirement("API-CONVERSATION-LOCK")
async def test_conversation_has_one_response_at_a_time(serve: Serve, ask: Ask) -> None:
    server = serve(SteppedBackend([*message_deltas("Hello")[:2], asyncio.Event()]))
    conversation = await create_conversation(server, "a")
    async with StreamingClient(server.app, conversation=conversation) as line:
        await line.event()
        rejection = (await ask(server, conversation=conversation)).rejection
    assert (rejection["http"], rejection["code"], rejection["param"]) == (
        400, "conversation_locked", "conversation",
    )  # fmt: skip


@pytest.mark.requirement("D-66", "API-CONVERSATION-UNKNOWN", "API-CONVERSATION-OR-CHAIN")
async def test_unknown_conversation_is_rejected(serve: Serve, ask: Ask) -> None:
    unknown = (await ask(serve(), conversation="conv_none")).rejection
    assert unknown["http"] == 404
    assert unknown["message"] == "Conversation with id 'conv_none' not found."
    assert unknown["param"] == "conversation"
    both = {"conversation": "conv_1", "previous_response_id": "resp_1"}
    rejection = (await ask(serve(), **both)).rejection
    assert (rejection["http"], rejection["code"]) == (400, "mutually_exclusive_parameters")


@pytest.mark.requirement("API-CONVERSATION-DELETE")
async def test_responses_outlive_their_conversation(serve: Serve, ask: Ask, store: Store) -> None:
    server = serve(on=store)
    conversation = await create_conversation(server, "a")
    created = (await ask(server, input="b", conversation=conversation)).terminal_response
    await server.client.delete(f"/v1/conversations/{conversation}")
    assert (await server.get(f"conversations/{conversation}")).status_code == 404
    assert (await server.get(f"responses/{created['id']}")).json() == created


@pytest.mark.requirement("API-CONVERSATION-DUPLICATE")
async def test_conversation_contains_each_item_once(serve: Serve, store: Store) -> None:
    server = serve(on=store)
    conversation = await create_conversation(server)
    item = {"id": "msg_mine", "role": "user", "content": "x"}
    path = f"/v1/conversations/{conversation}/items"
    assert (await server.client.post(path, json={"items": [item]})).status_code == 200
    again = await server.client.post(path, json={"items": [item]})
    assert again.status_code == 400
    assert "Duplicate item found with id msg_mine." in oracle.error(again)["message"]


async def test_unknown_item_reference_returns_404(serve: Serve, store: Store) -> None:
    server = serve(on=store)
    conversation = await create_conversation(server)
    body = {"items": [{"type": "item_reference", "id": "msg_none"}]}
    for path in ("/v1/conversations", f"/v1/conversations/{conversation}/items"):
        rejection = await server.client.post(path, json=body)
        assert (rejection.status_code, oracle.error(rejection)["param"]) == (404, "items")


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "1"}


@pytest.mark.requirement("API-CONVERSATION")
@pytest.mark.parametrize(
    "items",
    [
        [{**OUTPUT, "status": "incomplete"}],
        [OUTPUT, CALL],
        [{"type": "custom_tool_call_output", "call_id": "c1", "output": "1"}],
        [{"type": "program_output", "call_id": "c1", "result": "1"}],
        [{"type": "local_shell_call_output", "id": "c1", "output": "1"}],
        [{"type": "shell_call_output", "call_id": "c1", "output": [], "status": "incomplete"}],
    ],
)
async def test_output_that_no_model_could_be_shown_is_refused(
    serve: Serve, store: Store, items: list[Json]
) -> None:
    server = serve(on=store)
    refused = await server.client.post("/v1/conversations", json={"items": items})
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["param"] == "items" and "No tool call found" in error["message"]


@pytest.mark.requirement("API-CONVERSATION")
async def test_output_without_its_call_is_refused_before_a_response_needs_it(
    serve: Serve, ask: Ask, store: Store
) -> None:
    server = serve(ScriptedBackend(["one"]), on=store)
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "1"}
    refused = await server.client.post("/v1/conversations", json={"items": [output]})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "items"
    conversation = await create_conversation(server, "a")
    path = f"/v1/conversations/{conversation}/items"
    assert (await server.client.post(path, json={"items": [output]})).status_code == 400
    for item in (call, output):  # the call may wait for its output
        assert (await server.client.post(path, json={"items": [item]})).status_code == 200
    refused = await server.client.post(path, json={"items": [{**output, "id": "fco_2"}]})
    assert refused.json()["error"]["param"] == "items[0].call_id"
    await ask(server, input="b", conversation=conversation)

"""Steering: a client gives a response in progress further input, and a successor continues it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest
from openai.types.responses import (
    ResponseSteerAcceptedEvent,
    ResponseSteerFailedEvent,
    ResponseSteerPendingEvent,
)

from antiphon.backends.base import Backend
from antiphon.errors import BackendError, InvalidRequest, RequestError
from antiphon.inference.conversation import Conversation, Options
from antiphon.store.base import Store
from antiphon.stream.deltas import Delta
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.wire.items import Message
from tests.conformance.asgi_clients import WebSocketClient
from tests.conformance.conftest import Serve
from tests.conformance.documented import DocumentedClient
from tests.conformance.scripts import TOOL, call, finish, message_deltas, reasoning_deltas
from tests.conformance.server import Json, Server
from tests.conformance.stepped_backend import SteppedBackend

pytestmark = pytest.mark.requirement("API-STEERING")

Step = Delta | Exception | asyncio.Event


class SteppedTurns(Backend):
    """A backend that plays one list of steps for each request (see ``SteppedBackend``), or refuses
    the request."""

    context_size = None
    recommended_options: Mapping[str, Any] = {}

    def __init__(self, *turns: Sequence[Step] | RequestError) -> None:
        self._turns = [
            each if isinstance(each, RequestError) else SteppedBackend(each) for each in turns
        ]
        self.conversations: list[Conversation] = []

    async def prepare(self, conversation: Conversation, options: Options) -> SteppedBackend:
        self.conversations.append(conversation)
        turn = self._turns[len(self.conversations) - 1]
        if isinstance(turn, RequestError):
            raise turn
        return turn

    def texts(self, number: int = -1) -> list[str]:
        """Return the texts of the messages of a conversation."""
        items = self.conversations[number].items
        return [item.content[0].text for item in items if isinstance(item, Message)]  # type: ignore[union-attr]


def answer(text: str) -> list[Step]:
    return [*message_deltas(text), finish()]


class Gate(asyncio.Event):
    """A step that waits. ``reached`` is set when the backend waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.reached.set()
        return await super().wait()


async def at_end(server: Server, response_id: str) -> Json:
    """Wait for the end of a background response, and return the response."""
    await server.service.event_logs.wait("default", response_id)
    response: Json = (await server.get(f"responses/{response_id}")).json()
    return response


async def steer(server: Server, response_id: str, input: Any = "Stop!") -> Json:
    reply = await server.client.post(f"/v1/responses/{response_id}/steer", json={"input": input})
    assert reply.status_code == 200, reply.text
    submission: Json = reply.json()
    return submission


async def documented_calls(call: DocumentedClient) -> None:
    server = Server(SteppedTurns([Gate()], answer("Stopped.")), MemoryStore())
    try:
        call = call.using(server.client)
        body = {"model": "tiny", "input": "hi", "background": True}
        first = await call("createResponse", json=body)
        await call("steerResponse", first["id"], json={"input": "Stop!"})
    finally:
        await server.close()


# --- background ----------------------------------------------------------------------------------


async def test_background_response_ends_at_its_next_item(serve: Serve, store: Store) -> None:
    gate = Gate()
    closed = [*reasoning_deltas("Hm")[2:], *message_deltas("Well.")]
    backend = SteppedTurns([*reasoning_deltas("Hm")[:2], gate, *closed, Gate()], answer("Stopped."))
    server = serve(backend, on=store)
    first = (await server.post(input="Talk", background=True)).json()
    await gate.reached.wait()
    submission = await steer(server, first["id"])
    again = await steer(server, first["id"], [{"role": "user", "content": "Really!"}])
    assert submission["object"] == "response.steer"
    assert submission["previous_response_id"] == first["id"]
    assert submission["id"] != again["id"]
    assert submission["successor_id"] == again["successor_id"]
    gate.set()
    ended = await at_end(server, first["id"])
    assert ended["incomplete_details"] == {"reason": "steered"}
    assert [item["type"] for item in ended["output"]] == ["reasoning"]
    assert ended["usage"]["output_tokens"] > 0
    successor = await at_end(server, submission["successor_id"])
    assert successor["status"] == "completed", successor
    assert successor["previous_response_id"] == first["id"]
    assert backend.texts() == ["Talk", "Stop!", "Really!"]
    events = await server.get(f"responses/{successor['id']}", stream="true")
    assert "response.completed" in events.text


async def test_response_that_ends_by_itself_is_continued_too(serve: Serve) -> None:
    gate = Gate()
    backend = SteppedTurns([gate, *answer("Done.")], answer("Stopped."))
    server = serve(backend)
    first = (await server.post(background=True)).json()
    await gate.reached.wait()
    submission = await steer(server, first["id"])
    gate.set()
    assert (await at_end(server, first["id"]))["status"] == "completed"
    successor = await at_end(server, submission["successor_id"])
    assert successor["status"] == "completed"
    assert backend.texts() == ["hi", "Done.", "Stop!"]


async def test_input_waits_for_the_results_of_the_client(serve: Serve, store: Store) -> None:
    gate = Gate()
    backend = SteppedTurns([gate, *call("{}", call_id="c1"), finish()], answer("Stopped."))
    server = serve(backend, on=store)
    first = (await server.post(background=True, tools=[TOOL])).json()
    await gate.reached.wait()
    submission = await steer(server, first["id"])
    gate.set()
    ended = await at_end(server, first["id"])
    assert ended["status"] == "completed"
    pending = ended["pending_steering"]
    assert pending["reason"] == "waiting_for_required_input"
    assert pending["steers"] == [submission["id"]]
    (stub,) = pending["required_input"]
    assert stub == {"type": "function_call_output", "call_id": "c1", "name": "get_weather"}
    assert (await server.get(f"responses/{submission['successor_id']}")).status_code == 404
    events = await server.get(f"responses/{first['id']}", stream="true")
    assert "pending_steering" in events.text
    refused = await server.post(
        previous_response_id=first["id"],
        tools=[TOOL],
        input=[{**stub, "output": "ok"}, {"role": "user", "content": [{"type": "input_file"}]}],
    )
    assert refused.json()["error"]["param"] == "input[1].content[0].file_data"
    answered = await server.post(
        previous_response_id=first["id"], tools=[TOOL], input=[{**stub, "output": "ok"}]
    )
    assert answered.json()["status"] == "completed", answered.text
    assert backend.texts() == ["hi", "Stop!"]
    listed = (await server.get(f"responses/{answered.json()['id']}/input_items")).json()["data"]
    assert [item["type"] for item in listed][:2] == ["function_call_output", "message"]


async def test_cancelled_response_has_a_successor_that_fails(serve: Serve) -> None:
    gate = Gate()
    server = serve(SteppedTurns([gate]))
    first = (await server.post(background=True)).json()
    await gate.reached.wait()
    submission = await steer(server, first["id"])
    await server.client.post(f"/v1/responses/{first['id']}/cancel")
    successor = await at_end(server, submission["successor_id"])
    assert successor["status"] == "failed"
    assert "is cancelled" in successor["error"]["message"]


@pytest.mark.parametrize(
    ("input", "param"),
    [
        (None, "input"),
        ("", "input"),
        ([], "input"),
        ([{"role": "developer", "content": "x"}], "input[0].role"),
        ([{"type": "function_call_output", "call_id": "c", "output": ""}], "input[0].call_id"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": "x", "phase": "commentary"}], "input[0].phase"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "input[0].content[0]"),
    ],
)
async def test_only_messages_of_the_user_steer(serve: Serve, input: Any, param: str) -> None:
    server = serve(SteppedTurns([asyncio.Event()]))
    first = (await server.post(background=True)).json()
    reply = await server.client.post(f"/v1/responses/{first['id']}/steer", json={"input": input})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"context_management": [{"type": "compaction"}]}, "steering_not_supported"),
        ({"store": False}, "steering_not_supported"),
        ({"conversation": "conv"}, "steering_not_supported"),
    ],
)
async def test_some_responses_cannot_be_steered(serve: Serve, body: Json, code: str) -> None:
    server = serve(SteppedTurns([asyncio.Event()]))
    if "conversation" in body:
        created = (await server.client.post("/v1/conversations", json={})).json()
        body = {"conversation": created["id"]}
    first = (await server.post(background=True, **body)).json()
    path = f"/v1/responses/{first['id']}/steer"
    reply = await server.client.post(path, json={"input": "x"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)


async def test_ended_and_unknown_responses_cannot_be_steered(serve: Serve) -> None:
    server = serve()
    ended = (await server.post()).json()
    reply = await server.client.post(f"/v1/responses/{ended['id']}/steer", json={"input": "x"})
    assert reply.json()["error"]["code"] == "response_already_completed"
    reply = await server.client.post("/v1/responses/resp_x/steer", json={"input": "x"})
    assert reply.status_code == 404


@pytest.mark.parametrize(("count", "size"), [(16, 1), (3, 6 * 2**20)])
async def test_waiting_submissions_are_limited(serve: Serve, count: int, size: int) -> None:
    server = serve(SteppedTurns([asyncio.Event()]))
    first = (await server.post(background=True)).json()
    for _ in range(count):
        await steer(server, first["id"], "x" * size)
    reply = await server.client.post(f"/v1/responses/{first['id']}/steer", json={"input": "x"})
    assert reply.json()["error"]["code"] == "too_many_pending_steers"


# --- WebSocket -----------------------------------------------------------------------------------

_TYPES = {
    "response.steer.accepted": ResponseSteerAcceptedEvent,
    "response.steer.pending": ResponseSteerPendingEvent,
    "response.steer.failed": ResponseSteerFailedEvent,
}


async def next_of(wire: WebSocketClient, *types: str) -> Json:
    """Return the next event of one of these types, without the prefix ``response.``. Steering
    events must be valid for the official client, unless they return invalid input."""
    while True:
        event = await wire.event()
        is_invalid = event.get("error", {}).get("code") == "invalid_input"
        if (kind := _TYPES.get(event["type"])) is not None and not is_invalid:
            kind.model_validate_json(json.dumps(event), strict=True)
        if event["type"].removeprefix("response.") in types:
            return event


def send_steer(wire: WebSocketClient, response_id: str, input: Any = "Stop!", **more: Any) -> None:
    frame = {"type": "response.steer", "previous_response_id": response_id, "input": input}
    wire.send({**frame, **more})


@pytest.mark.parametrize("stored", [True, False])
async def test_steered_response_is_followed_by_its_successor(serve: Serve, stored: bool) -> None:
    gate = Gate()
    backend = SteppedTurns(
        [*reasoning_deltas("Hm"), gate, *message_deltas("A long"), asyncio.Event()],
        answer("Stopped."),
        answer("Sure."),
    )
    server = serve(backend)
    async with WebSocketClient(server.app) as wire:
        wire.create(input="Talk", stream_id="left", store=stored, metadata={"a": "b"})
        first = (await next_of(wire, "created"))["response"]
        await next_of(wire, "output_item.done")
        send_steer(wire, first["id"])
        accepted = await next_of(wire, "steer.accepted")
        send_steer(wire, first["id"], [{"type": "message", "role": "user", "content": "Now!"}])
        again = await next_of(wire, "steer.accepted")
        assert accepted["steer"]["id"] != again["steer"]["id"]
        assert accepted["stream_id"] == "left"
        gate.set()
        ended = (await next_of(wire, "incomplete"))["response"]
        assert ended["incomplete_details"] == {"reason": "steered"}
        assert [item["type"] for item in ended["output"]] == ["reasoning"]
        created = await next_of(wire, "created")
        assert created["stream_id"] == "left"
        assert created["response"]["previous_response_id"] == first["id"]
        assert created["response"]["metadata"] == {"a": "b"}
        second = (await next_of(wire, "completed"))["response"]
        assert second["store"] is stored
        send_steer(wire, first["id"])
        failed = await next_of(wire, "steer.failed")
        assert failed["error"]["code"] == "response_already_completed"
        assert failed["stream_id"] == "left"
        wire.create(input="Fine", stream_id="left", previous_response_id=second["id"])
        await next_of(wire, "completed")
    assert backend.texts() == ["Talk", "Stop!", "Now!", "Stopped.", "Fine"]


async def test_response_that_completes_first_is_followed_too(serve: Serve) -> None:
    gate = Gate()
    backend = SteppedTurns(
        [*message_deltas("Hi")[:2], gate, *message_deltas("Hi")[2:], finish()], answer("Stopped.")
    )
    async with WebSocketClient(serve(backend).app) as wire:
        wire.create()
        first = (await next_of(wire, "created"))["response"]
        send_steer(wire, first["id"])
        await next_of(wire, "steer.accepted")
        gate.set()
        await next_of(wire, "completed")
        assert (await next_of(wire, "completed"))["response"]["status"] == "completed"
    assert backend.texts() == ["hi", "Hi", "Stop!"]


@pytest.mark.parametrize("stored", [True, False])
async def test_socket_waits_for_the_results_of_the_client(serve: Serve, stored: bool) -> None:
    gate = Gate()
    opened, text, closed = call("{}", call_id="c1")
    backend = SteppedTurns([opened, text, gate, closed, finish()], answer("Stopped."))
    async with WebSocketClient(serve(backend).app) as wire:
        wire.create(tools=[TOOL], store=stored)
        first = (await next_of(wire, "created"))["response"]
        await next_of(wire, "output_item.added")
        send_steer(wire, first["id"])
        await next_of(wire, "steer.accepted")
        gate.set()
        pending = await next_of(wire, "steer.pending")
        (stub,) = pending["required_input"]
        assert stub == {"type": "function_call_output", "call_id": "c1", "name": "get_weather"}
        send_steer(wire, first["id"], "And hurry!")
        await next_of(wire, "steer.accepted")
        await next_of(wire, "steer.pending")
        wire.create(previous_response_id=first["id"], tools=[TOOL], input=[])
        assert (await next_of(wire, "error"))["error"]["message"].startswith("No tool output")
        filled = [{**stub, "output": "ok"}]
        wire.create(previous_response_id=first["id"], tools=[TOOL], input=filled, store=stored)
        assert (await next_of(wire, "completed"))["response"]["status"] == "completed"
    assert backend.texts() == ["hi", "Stop!", "And hurry!"]


async def test_input_comes_back_if_the_client_goes_on_without_it(serve: Serve) -> None:
    gate = Gate()
    backend = SteppedTurns([gate, *call("{}", call_id="c1"), finish()], answer("New."))
    async with WebSocketClient(serve(backend).app) as wire:
        wire.create(tools=[TOOL])
        first = (await next_of(wire, "created"))["response"]
        send_steer(wire, first["id"])
        accepted = await next_of(wire, "steer.accepted")
        gate.set()
        await next_of(wire, "steer.pending")
        wire.create(input="Something else")
        failed = await next_of(wire, "steer.failed")
        assert failed["error"]["code"] == "response_not_active"
        assert failed["steer"] == {**accepted["steer"], "input": "Stop!"}


async def test_input_comes_back_if_its_successor_cannot_be_created(serve: Serve) -> None:
    gate = Gate()
    backend = SteppedTurns([gate, *answer("Hi")], InvalidRequest("It is too much."))
    steered = [{"type": "message", "role": "user", "content": "Stop!"}]
    async with WebSocketClient(serve(backend).app) as wire:
        wire.create()
        first = (await next_of(wire, "created"))["response"]
        send_steer(wire, first["id"], steered)
        accepted = await next_of(wire, "steer.accepted")
        gate.set()
        failed = await next_of(wire, "steer.failed")
        assert failed["error"]["code"] == "successor_creation_failed"
        assert failed["error"]["message"] == "It is too much."
        assert failed["steer"] == {**accepted["steer"], "input": steered}


async def test_input_comes_back_if_the_response_fails(serve: Serve) -> None:
    gate = Gate()
    backend = SteppedTurns([*message_deltas("Hi"), gate, BackendError("It broke.")])
    async with WebSocketClient(serve(backend).app) as wire:
        wire.create()
        first = (await next_of(wire, "created"))["response"]
        await next_of(wire, "output_text.delta")
        send_steer(wire, first["id"])
        await next_of(wire, "steer.accepted")
        gate.set()
        failed = await next_of(wire, "steer.failed")
        assert failed["error"]["code"] == "response_not_active"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"previous_response_id": "resp_unknown"}, "response_not_found"),
        ({"input": []}, "invalid_input"),
        ({"input": [{"role": "system", "content": "x"}]}, "invalid_input"),
        ({"stream_id": "x"}, "invalid_input"),
        ({"store": False}, "invalid_input"),
    ],
)
async def test_refused_input_comes_back(serve: Serve, more: Json, code: str) -> None:
    async with WebSocketClient(serve(SteppedTurns([asyncio.Event()])).app) as wire:
        wire.create(stream_id="left")
        first = (await next_of(wire, "created"))["response"]
        send_steer(wire, first["id"], **more)
        failed = await next_of(wire, "steer.failed")
        assert failed["error"]["code"] == code
        frame = {"previous_response_id": first["id"], "input": "Stop!", **more}
        assert failed["steer"] == {name: frame[name] for name in ("previous_response_id", "input")}
        is_known = "previous_response_id" not in more
        assert failed.get("stream_id") == ("left" if is_known else None)

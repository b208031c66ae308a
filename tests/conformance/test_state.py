"""State: storage, continuation, listing and deletion, over every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import BackendError, StoreError
from antiphon.store.base import Retention, Store
from antiphon.store.records import ConversationLock, StoredResponse
from antiphon.store.usage import UsageRecord
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.tokenizer import ByteTokenizer
from tests.conformance.conftest import Serve
from tests.conformance.scripts import (
    TOOL,
    call,
    event_types,
    finish,
    message_deltas,
    reasoning_deltas,
)
from tests.conformance.server import NOW, Answer, Ask, Json, Server, engine

CALL_OUTPUT = {"type": "function_call_output", "output": "22 degrees"}


def prompt_texts(backend: Any, number: int = -1) -> list[str]:
    """Return the texts of the model's prompt."""
    conversation, _ = backend.requests[number]
    return [
        "".join(part.text for part in item.content)
        for item in conversation.items
        if hasattr(item, "content")
    ]


async def continue_response(
    ask: Ask, server: Server, previous: Answer, text: str, **more: Any
) -> Answer:
    return await ask(
        server, input=text, previous_response_id=previous.terminal_response["id"], **more
    )


# --- continuing ----------------------------------------------------------------------------------


@pytest.mark.requirement("GO-9", "D-43", "VN-30", "API-CHAIN")
async def test_chain_contains_all_earlier_inputs_and_outputs(
    serve: Serve, ask: Ask, store: Store
) -> None:
    backend = ScriptedBackend(["one", "two", "three"])
    server = serve(backend, on=store)
    first = await ask(server, input="a")
    second = await continue_response(ask, server, first, "b")
    third = await continue_response(ask, server, second, "c")
    assert prompt_texts(backend) == ["a", "one", "b", "two", "c"]
    assert third.terminal_response["previous_response_id"] == second.terminal_response["id"]
    stored = await store.load("default", third.terminal_response["id"])
    assert stored is not None and len(stored.input) == 1  # a turn costs what it adds


@pytest.mark.requirement("D-44", "D-45", "D-46", "API-INSTRUCTIONS")
async def test_settings_are_not_inherited(serve: Serve, ask: Ask, store: Store) -> None:
    backend = ScriptedBackend(["one", "two", "three"])
    server = serve(backend, on=store)
    body: Json = {"temperature": 0.1, "reasoning": {"effort": "high"}, "tools": [TOOL]}
    first = await ask(server, instructions="Old.", **body)
    second = await continue_response(ask, server, first, "b")
    await continue_response(
        ask, server, second, "c", instructions="New.", reasoning={"effort": "low"}
    )
    messages = [conversation.instructions for conversation, _ in backend.requests]
    assert messages == ["Old.", None, "New."]
    options = [options for _, options in backend.requests]
    assert [len(each.tools) for each in options] == [1, 0, 0]
    assert [each.reasoning and each.reasoning.effort for each in options] == ["high", None, "low"]
    assert [each.temperature for each in options] == [0.1, 1.0, 1.0]
    assert second.terminal_response["instructions"] is None


@pytest.mark.requirement("API-SYSTEM-STAYS")
async def test_developer_messages_stay_in_the_chain(serve: Serve, ask: Ask, store: Store) -> None:
    backend = ScriptedBackend(["one", "two"])
    server = serve(backend, on=store)
    rules = {"role": "developer", "content": "Be kind."}
    first = await ask(server, input=[rules, {"role": "user", "content": "a"}])
    await continue_response(ask, server, first, "b")
    assert prompt_texts(backend) == ["Be kind.", "a", "one", "b"]
    assert backend.requests[1][0].items[0].role == "developer"


@pytest.mark.requirement("D-40", "D-41", "API-BRANCH")
async def test_response_can_be_continued_twice(serve: Serve, ask: Ask, store: Store) -> None:
    backend = ScriptedBackend(["root", "left", "right", "far left"])
    server = serve(backend, on=store)
    root = await ask(server, input="a")
    left = await continue_response(ask, server, root, "b")
    await continue_response(ask, server, root, "c")
    assert prompt_texts(backend) == ["a", "root", "c"]
    await continue_response(ask, server, left, "d")
    assert prompt_texts(backend) == ["a", "root", "b", "left", "d"]


@pytest.mark.requirement("D-47", "TR-11", "VO-5", "API-CHAIN-CALLS")
async def test_chain_includes_reasoning_and_calls(serve: Serve, ask: Ask, store: Store) -> None:
    turn = [
        *reasoning_deltas("Hm."),
        *message_deltas("I look."),
        *call('{"city": "Rome"}'),
        finish(),
    ]
    backend = ScriptedBackend([turn, "It is warm."])
    server = serve(backend, on=store)
    first = await ask(server, tools=[TOOL])
    answered = {**CALL_OUTPUT, "call_id": first.output[-1]["call_id"]}
    second = await ask(
        server, input=[answered], tools=[TOOL], previous_response_id=first.terminal_response["id"]
    )
    assert second.terminal_response["status"] == "completed"
    items = backend.requests[1][0].items
    assert [type(item).__name__ for item in items] == [
        "Message", "Reasoning", "Message", "FunctionCall", "FunctionCallOutput",
    ]  # fmt: skip
    assert items[3].arguments == '{"city": "Rome"}'


FIRST = "<think>\nHm.\n</think>\n\nfirst"


class Merging(ByteTokenizer):
    """A tokenizer that encodes "first" as one token.

    The model writes it in five tokens, as real models may. Its output can be extended only if its
    tokens were stored.
    """

    ONE = 1000

    @property
    def size(self) -> int:
        return self.ONE + 1

    def encode(self, text: str, *, special: bool) -> list[int]:
        if text == FIRST or "first" not in text:
            return super().encode(text, special=special)
        before, continue_response = text.split("first")
        return [
            *super().encode(before, special=special),
            self.ONE,
            *super().encode(continue_response, special=special),
        ]

    def piece(self, token: int) -> bytes:
        return b"first" if token == self.ONE else super().piece(token)


@pytest.mark.requirement("D-79", "VN-62", "API-KEPT-TOKENS")
async def test_next_prompt_extends_the_sampled_tokens(serve: Serve, ask: Ask, store: Store) -> None:
    scripted_engine = engine([FIRST, "second"])
    scripted_engine.tokenizer = Merging(tuple(scripted_engine.tokenizer.special))
    server = serve(scripted_engine, on=store)
    first = await ask(server, input="a")
    second = await continue_response(ask, server, first, "b")
    (before, _), (prompt, _) = scripted_engine.requests
    whole = (*before.ids, *scripted_engine.sampled[0])
    assert Merging.ONE not in whole
    assert prompt.ids[: len(whole)] == whole
    cached = second.terminal_response["usage"]["input_tokens_details"]["cached_tokens"]
    assert cached == len(whole)
    assert second.terminal_response["usage"]["input_tokens"] == len(prompt.ids)


@pytest.mark.requirement("VN-16", "D-39", "D-49", "API-PREVIOUS")
@pytest.mark.parametrize(
    "why", ["unknown", "deleted", "not stored", "kept for a while", "another's", "failed"]
)
async def test_invalid_previous_response_is_rejected(
    serve: Serve, ask: Ask, store: Store, why: str
) -> None:
    server = serve(ScriptedBackend(["one", BackendError("!"), "three"]), on=store)
    kept_for_a_while = why == "kept for a while"  # in the background, for who asks how it went
    stored = why != "not stored" and not kept_for_a_while
    previous = (await server.post(store=stored, background=kept_for_a_while)).json()["id"]
    while kept_for_a_while:
        found = (await server.client.get(f"/v1/responses/{previous}")).json()
        kept_for_a_while = found["status"] != "completed"
        await asyncio.sleep(0)
    if why == "unknown":
        previous = "resp_none"
    elif why == "deleted":
        await server.client.delete(f"/v1/responses/{previous}")
    elif why == "another's":
        stored_response = await store.load("default", previous)
        assert stored_response is not None
        await store.delete("default", previous)
        await store.save("somebody", stored_response)
    elif why == "failed":
        events = (await server.post(stream=True, previous_response_id=previous)).text
        previous = events.partition('"id":"')[2].partition('"')[0]
    rejection = (await ask(server, previous_response_id=previous)).rejection
    assert rejection["param"] == "previous_response_id"
    assert rejection["http"] == 400
    if why == "failed":
        assert "failed" in rejection["message"]
    else:
        assert rejection["code"] == "previous_response_not_found"
        assert rejection["message"] == f"Previous response with id '{previous}' not found."


@pytest.mark.requirement("API-CONTINUE-CUT")
async def test_incomplete_response_can_be_continued(serve: Serve, ask: Ask, store: Store) -> None:
    backend = ScriptedBackend([[*message_deltas("Hel"), finish("length")], "lo"])
    server = serve(backend, on=store)
    first = await ask(server, input="a")
    assert first.terminal_response["status"] == "incomplete"
    await continue_response(ask, server, first, "go on")
    assert prompt_texts(backend) == ["a", "Hel", "go on"]


@pytest.mark.requirement("D-39", "API-PAIRS")
async def test_pending_call_requires_its_output(serve: Serve, ask: Ask, store: Store) -> None:
    server = serve(ScriptedBackend([[*call("{}", call_id="call_7"), finish()], "x"]), on=store)
    first = await ask(server, tools=[TOOL])
    rejection = (await continue_response(ask, server, first, "And?")).rejection
    assert (rejection["http"], rejection["param"]) == (400, "input")
    assert rejection["message"] == "No tool output found for function call call_7."


# --- storage -------------------------------------------------------------------------------------


@pytest.mark.requirement("VN-3", "VN-15", "VN-21", "GO-10", "API-STORE")
async def test_stored_response_can_be_retrieved(serve: Serve, ask: Ask, store: Store) -> None:
    server = serve(on=store)
    stored = await ask(server)
    assert stored.terminal_response["store"] is True
    again = await server.get(f"responses/{stored.terminal_response['id']}")
    assert again.json() == stored.terminal_response


@pytest.mark.requirement("API-STORE-FALSE", "VN-15", "GO-10")
async def test_unstored_response_is_not_retrievable(
    serve: Serve, ask_foreground: Ask, store: Store
) -> None:
    server = serve(on=store)
    passing = await ask_foreground(server, store=False)
    assert passing.terminal_response["store"] is False
    assert passing.terminal_response["id"].startswith("resp_")
    assert (await server.get(f"responses/{passing.terminal_response['id']}")).status_code == 404
    reference = {"type": "item_reference", "id": passing.output[0]["id"]}
    rejection = (await ask_foreground(server, input=[reference])).rejection
    assert rejection["http"] == 404
    assert "Items are not persisted when `store` is set to false" in rejection["message"]


@pytest.mark.requirement("API-PERSIST-FIRST", "CL-CHAIN-AT-ONCE")
async def test_response_is_stored_before_its_terminal_event(serve: Serve) -> None:
    order: list[str] = []

    class Slow(MemoryStore):
        async def save(
            self,
            tenant: str,
            stored: StoredResponse,
            *,
            lock: ConversationLock | None = None,
            usage: UsageRecord | None = None,
        ) -> bool:
            await asyncio.sleep(0)
            is_saved = await super().save(tenant, stored, lock=lock, usage=usage)
            order.append("kept")
            return is_saved

    server = serve(on=Slow())

    async def send(message: Any) -> None:
        if b"response.completed" in message.get("body", b""):
            order.append("told")

    await _message_texts(server, send)
    assert order == ["kept", "told"]


async def _message_texts(server: Server, send: Any) -> None:
    body = iter([{"type": "http.request", "body": b'{"input": "hi", "stream": true}'}])

    async def receive() -> Any:
        for message in body:
            return message
        await asyncio.Event().wait()

    scope = {
        "type": "http", "method": "POST", "path": "/v1/responses", "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }  # fmt: skip
    async with asyncio.timeout(60):
        await server.app(scope, receive, send)


@pytest.mark.requirement("API-STORE-FAILS")
async def test_store_failure_fails_the_response(serve: Serve, ask: Ask) -> None:
    class Full(MemoryStore):
        async def save(
            self,
            tenant: str,
            stored: StoredResponse,
            *,
            lock: ConversationLock | None = None,
            usage: UsageRecord | None = None,
        ) -> bool:
            raise StoreError("The store could not be written.")

    server = serve(on=Full())
    reply = await server.post()
    assert reply.status_code == 503
    assert reply.json()["error"]["message"].startswith("The store could not be written.")
    body = (await server.post(stream=True)).text
    assert event_types([{"type": line[7:]} for line in body.split("\n") if line[:7] == "event: "])[
        -3:
    ] == ["output_item.done", "error", "failed"]


@pytest.mark.requirement("VN-66", "API-ABANDONED")
async def test_abandoned_response_is_not_stored(serve: Serve, store: Store) -> None:
    from tests.conformance.asgi_clients import StreamingClient
    from tests.conformance.stepped_backend import SteppedBackend

    backend = SteppedBackend([*message_deltas("Hello")[:2], asyncio.Event()])
    server = serve(backend, on=store)
    async with StreamingClient(server.app) as line:
        created = await line.event()
        line.disconnect()
        await backend.closed.wait()
    assert (await server.get(f"responses/{created['response']['id']}")).status_code == 404


@pytest.mark.requirement("D-30", "D-42", "GO-10", "API-RETENTION")
async def test_evicted_response_returns_404(serve: Serve, ask: Ask, store: Store) -> None:
    server = serve(on=store)
    old, new = await ask(server), await ask(server)
    assert await store.sweep(Retention(max_responses=1), NOW) == 1
    removed = await server.get(f"responses/{old.terminal_response['id']}")
    assert removed.status_code == 404
    assert (
        removed.json()["error"]["message"]
        == f"Response with id '{old.terminal_response['id']}' not found."
    )
    assert (await server.get(f"responses/{new.terminal_response['id']}")).status_code == 200
    rejection = (await continue_response(ask, server, old, "b")).rejection
    assert rejection["code"] == "previous_response_not_found"


@pytest.mark.requirement("TR-6", "API-RETENTION")
@pytest.mark.parametrize(
    "bound", [{"max_responses": 2}, {"max_age_s": 15}, {"max_bytes": 250_000}], ids=str
)
async def test_retention_removes_the_oldest_beyond_each_limit(
    serve: Serve, ask_foreground: Ask, store: Store, bound: dict[str, int]
) -> None:
    server = serve(on=store)
    created = []
    for age in (30, 20, 10, 0):
        server.now = NOW - age
        created.append((await ask_foreground(server, input="x" * 100_000)).terminal_response["id"])
    assert await store.sweep(Retention(**bound), NOW) == 2
    found = [(await server.get(f"responses/{id}")).status_code for id in created]
    assert found == [404, 404, 200, 200]


# --- routes --------------------------------------------------------------------------------------


@pytest.mark.requirement("API-REFERENCE", "CL-REFERENCE")
async def test_item_reference_resolves_any_stored_item(
    serve: Serve, ask: Ask, store: Store
) -> None:
    turn = [*reasoning_deltas("Hm."), *message_deltas("Yes."), *call("{}"), finish()]
    backend = ScriptedBackend([turn, "ok"])
    server = serve(backend, on=store)
    first = await ask(server, tools=[TOOL])
    references = [{"type": "item_reference", "id": item["id"]} for item in first.output]
    answered = {**CALL_OUTPUT, "call_id": first.output[-1]["call_id"]}
    await ask(server, input=[{"role": "user", "content": "hi"}, *references, answered])
    items = backend.requests[1][0].items
    assert [item.id for item in items[1:4]] == [item["id"] for item in first.output]
    assert items[3].name == "get_weather"


@pytest.mark.requirement("D-94", "API-INPUT-ITEMS")
async def test_input_items_are_paginated(serve: Serve, ask: Ask, store: Store) -> None:
    server = serve(ScriptedBackend(["one", "two"]), on=store)
    first = await ask(server, input="a")
    second = await continue_response(ask, server, first, "b")
    path = f"responses/{second.terminal_response['id']}/input_items"
    listed = (await server.get(path)).json()
    assert listed["object"] == "list"
    assert _texts(listed["data"]) == ["b", "one", "a"]  # newest first, never its own output
    assert all(item["id"] for item in listed["data"])
    page = (await server.get(path, limit=2)).json()
    assert (page["has_more"], page["first_id"]) == (True, listed["data"][0]["id"])
    rest = (await server.get(path, limit=2, after=page["last_id"])).json()
    assert (rest["has_more"], _texts(rest["data"])) == (False, ["a"])
    ordered = (await server.get(path, order="asc")).json()
    assert _texts(ordered["data"]) == ["a", "one", "b"]
    assert (await server.get(path, after="msg_none")).status_code == 400
    assert (await server.get(path, limit=0)).status_code == 400


def _texts(items: list[Json]) -> list[str]:
    return [item["content"][0]["text"] for item in items]


@pytest.mark.requirement("D-94", "D-30", "API-DELETE", "API-DELETE-MIDDLE")
async def test_deleting_a_response_keeps_its_children(serve: Serve, ask: Ask, store: Store) -> None:
    backend = ScriptedBackend(["one", "two", "three"])
    server = serve(backend, on=store)
    first = await ask(server, input="a")
    second = await continue_response(ask, server, first, "b")
    path = f"/v1/responses/{first.terminal_response['id']}"
    deleted = await server.client.delete(path)
    assert deleted.json() == {
        "id": first.terminal_response["id"],
        "object": "response",
        "deleted": True,
    }
    assert (await server.client.get(path)).status_code == 404
    assert (await server.client.delete(path)).status_code == 404
    await continue_response(ask, server, second, "c")
    assert prompt_texts(backend) == ["a", "one", "b", "two", "c"]


@pytest.mark.requirement("VN-74", "D-34", "API-CANCEL-SYNC")
async def test_finished_foreground_response_cannot_be_cancelled_or_streamed(
    serve: Serve, ask_foreground: Ask
) -> None:
    server = serve()
    ended = (await ask_foreground(server)).terminal_response
    cancelled = await server.client.post(f"/v1/responses/{ended['id']}/cancel")
    assert cancelled.status_code == 400
    assert cancelled.json()["error"]["message"] == "Cannot cancel a synchronous response."
    again = await server.get(f"responses/{ended['id']}", stream="true")
    assert (again.status_code, again.json()["error"]["param"]) == (400, "stream")
    assert again.headers["content-type"] == "application/json"


@pytest.mark.requirement("D-94", "API-COUNT")
async def test_token_count_equals_the_rendered_prompt(serve: Serve, ask: Ask, store: Store) -> None:
    scripted_engine = engine(["first", "second"])
    server = serve(scripted_engine, on=store)
    first = await ask(server, input="a", tools=[TOOL])
    body = {
        "input": "b",
        "instructions": "Be brief.",
        "tools": [TOOL],
        "previous_response_id": first.terminal_response["id"],
    }
    counted = await server.client.post("/v1/responses/input_tokens", json=body)
    second = await ask(server, **body)
    assert counted.json() == {
        "object": "response.input_tokens",
        "input_tokens": second.terminal_response["usage"]["input_tokens"],
    }


@pytest.mark.requirement("API-LIST-RESPONSES")
async def test_responses_are_listed_and_filtered(serve: Serve) -> None:
    server = serve()
    names: dict[str, str] = {}

    async def create(name: str, **fields: Any) -> None:
        answer = await server.client.post("/v1/responses", json=fields)
        names[answer.json()["id"]] = name

    async def listed(**params: Any) -> str:
        answer = await server.client.get("/v1/responses", params=params)
        assert answer.status_code == 200, answer.text
        return "".join(names[each["id"]] for each in answer.json()["data"])

    await create("a", input="Name a River!")
    (first,) = names
    await create("b", input="Another one", previous_response_id=first)
    await create("c", input="hi", background=True)
    await create("d", input="hi", store=False)
    assert await listed() == "cba"
    assert await listed(order="asc", limit=2) == "ab"
    assert await listed(after=first) == ""
    assert await listed(previous_response_id=first) == "b"
    assert await listed(search="a river") == "a"
    assert await listed(background="true") == "c"
    assert await listed(failed="true") == await listed(model="other") == ""
    page = (await server.client.get("/v1/responses", params={"limit": 1})).json()
    assert (page["has_more"], page["last_id"]) == (True, page["data"][0]["id"])
    entry = (await server.client.get("/v1/responses", params={"search": "river"})).json()["data"][0]
    assert entry["object"] == "response.summary"
    assert (entry["input_preview"], entry["usage"]["output_tokens"] > 0) == ("Name a River!", True)
    opened = {"role": "assistant", "content": "The Volga and", "status": "incomplete"}
    await create("e", input=[{"role": "user", "content": "Go on"}, opened])
    page = (await server.client.get("/v1/responses", params={"limit": 1})).json()
    assert page["data"][0]["input_preview"] == "Go on"  # the question, not the opened answer


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"status": "done"}, "status"),
        ({"failed": "perhaps"}, "failed"),
        ({"after": "resp_none"}, "after"),
        ({"limit": "0"}, "limit"),
    ],
)
async def test_invalid_filters_of_the_list_are_400(
    serve: Serve, params: dict[str, str], param: str
) -> None:
    answer = await serve().client.get("/v1/responses", params=params)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_transcript_is_the_text_that_the_model_saw(serve: Serve) -> None:
    server = serve(engine(["Hello there!", "Fine."]))
    first = (await server.client.post("/v1/responses", json={"input": "Hi"})).json()["id"]
    fields = {"input": "How are you?", "previous_response_id": first}
    second = (await server.client.post("/v1/responses", json=fields)).json()
    answer = await server.client.get(f"/antiphon/responses/{second['id']}/transcript")
    text = answer.json()["text"]
    parts = [text.index(part) for part in ("Hi", "Hello there!", "How are you?", "Fine.")]
    assert parts == sorted(parts)
    total = second["usage"]["total_tokens"]
    assert total - 2 <= answer.json()["token_count"] <= total


async def test_timeline_tells_when_the_items_were_made(serve: Serve) -> None:
    server = serve(engine(["Hello there!"]))
    response = (await server.client.post("/v1/responses", json={"input": "Hi"})).json()
    answer = await server.client.get(f"/antiphon/responses/{response['id']}/timeline")
    timeline = answer.json()
    (item,) = timeline.pop("items")
    assert [item["id"], item["type"]] == [response["output"][0]["id"], "message"]
    times = [timeline["created_at"], timeline["started_at"], item["started_at"]]
    times += [item["completed_at"], timeline["completed_at"]]
    assert times == sorted(times) and int(times[0]) >= response["created_at"]
    assert "times" not in response
    missing = await server.client.get("/antiphon/responses/resp_none/timeline")
    assert missing.status_code == 404


async def test_transcript_of_unknown_tokens_is_refused(serve: Serve) -> None:
    client = serve().client
    missing = await client.get("/antiphon/responses/resp_none/transcript")
    assert missing.status_code == 404
    response = (await client.post("/v1/responses", json={"input": "Hi"})).json()
    refused = await client.get(f"/antiphon/responses/{response['id']}/transcript")
    assert refused.status_code == 400

"""Stored chat completions, through the official client."""

from __future__ import annotations

import base64
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionStoreMessage

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import BackendError
from antiphon.store.base import Store
from tests.attachments.samples import png
from tests.conformance.conftest import Clients, Serve
from tests.conformance.server import Server
from tests.conformance.test_chat import ANSWER_DELTAS

Json = dict[str, Any]
HI: Any = [{"role": "user", "content": "hi"}]
IMAGE = f"data:image/png;base64,{base64.b64encode(png()).decode()}"


async def store_chat(client: openai.AsyncOpenAI, **body: Any) -> ChatCompletion:
    return await client.chat.completions.create(
        **{"model": "tiny", "messages": HI, "store": True, **body}
    )


@pytest.mark.requirement("CC-STORED")
async def test_stored_completion_is_read_changed_and_deleted(
    serve: Serve, client_of: Clients, store: Store
) -> None:
    stored = client_of(serve(ScriptedBackend(["one"]), on=store).app).chat.completions
    client = client_of(serve(ScriptedBackend(["one"]), on=store).app)
    made = await store_chat(client, metadata={"a": "b"})
    assert made.metadata == {"a": "b"}
    found = await stored.retrieve(made.id)
    ChatCompletion.model_validate(found.model_dump(), strict=True)
    assert found.model_dump() == made.model_dump()
    changed = await stored.update(made.id, metadata={"c": "d"})
    assert changed.metadata == (await stored.retrieve(made.id)).metadata == {"c": "d"}
    assert [each.id async for each in stored.list(metadata={"c": "d"})] == [made.id]
    assert changed.choices == made.choices and changed.usage == made.usage
    assert (await stored.update(made.id, metadata={"e": "\0"})).metadata == {"e": "\0"}
    assert [each.id async for each in stored.list(metadata={"e": "\0"})] == [made.id]
    assert (await stored.update(made.id, metadata=None)).metadata == {}
    deleted = await stored.delete(made.id)
    assert (deleted.id, deleted.object) == (made.id, "chat.completion.deleted")
    with pytest.raises(openai.NotFoundError, match=made.id):
        await stored.retrieve(made.id)
    assert [each async for each in stored.list()] == []


@pytest.mark.requirement("CC-STORED")
async def test_only_stored_completions_are_found(serve: Serve, client_of: Clients) -> None:
    client = client_of(serve(ScriptedBackend(["a", "b", "c"])).app)
    passing = await store_chat(client, store=False)
    assert "metadata" not in passing.model_fields_set
    response = await client.responses.create(model="tiny", input="hi")
    as_chat = "chatcmpl-" + response.id.removeprefix("resp_")
    for id in (passing.id, as_chat, response.id):
        with pytest.raises(openai.NotFoundError, match=id):
            await client.chat.completions.retrieve(id)
    assert [each async for each in client.chat.completions.list()] == []


@pytest.mark.requirement("CC-STORED")
async def test_streamed_completion_is_stored_whole(serve: Serve, client_of: Clients) -> None:
    client = client_of(serve("Hello there!").app)
    chunks = [chunk async for chunk in await store_chat(client, stream=True)]  # type: ignore[attr-defined]
    found = await client.chat.completions.retrieve(chunks[0].id)
    assert found.choices[0].message.content == "Hello there!"
    assert (found.created, found.metadata) == (chunks[0].created, {})


@pytest.mark.requirement("CC-STORED-LIST")
async def test_list_is_filtered_and_paged(serve: Serve, client_of: Clients, store: Store) -> None:
    client = client_of(serve(ScriptedBackend(list("abcde")), on=store).app)
    ids = []
    for number in range(4):
        made = await store_chat(client, metadata={"1": str(number % 2), "all": "yes"})
        ids.append(made.id)
    await client.responses.create(model="tiny", input="hi", metadata={"all": "yes"})
    stored = client.chat.completions

    async def listed(**query: Any) -> list[str]:
        return [each.id async for each in stored.list(**query)]

    assert await listed() == await listed(limit=1) == await listed(metadata={"all": "yes"}) == ids
    assert await listed(order="desc") == ids[::-1]
    assert await listed(metadata={"1": "1", "all": "yes"}, limit=1) == [ids[1], ids[3]]
    assert await listed(model="tiny", after=ids[1]) == ids[2:]
    assert await listed(model="other") == await listed(metadata={"1": "2"}) == []
    page = await stored.list(limit=2, metadata={"1": "0"})
    assert [each.id for each in page.data] == [ids[0], ids[2]] and not page.has_more
    for query in ({"after": "chatcmpl-0"}, {"after": "resp_0"}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError) as refused:
            await listed(**query)
        assert refused.value.param == next(iter(query))
        assert query.get("after", "") in refused.value.message


@pytest.mark.requirement("CC-STORED-MESSAGES")
async def test_messages_are_those_of_the_request(serve: Serve, client_of: Clients) -> None:
    client = client_of(serve(ScriptedBackend(["one"])).app)
    function = {"name": "f", "arguments": '{"a": 1}'}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    parts = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
    ]
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "Hm."},
        {"role": "assistant", "content": "Wait.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
        {"role": "user", "content": "So?"},
    ]
    made = await store_chat(client, messages=messages)
    of = client.chat.completions.messages
    found = [each async for each in of.list(made.id, limit=4)]
    assert all(isinstance(each, ChatCompletionStoreMessage) for each in found)
    assert len({each.id for each in found}) == len(messages)
    assert [each.role for each in found] == [each["role"] for each in messages]
    assert [each.content for each in found] == ["Be brief.", "Look:", "Hm.", "Wait.", "2", "So?"]
    assert [each.model_dump(exclude_unset=True) for each in found[1].content_parts or ()] == parts
    assert all(each.content_parts is None for each in found[2:])
    assert [each.model_dump(exclude_unset=True) for each in found[3].tool_calls or ()] == calls
    assert found[4].model_dump()["tool_call_id"] == "call_1"
    newest = await of.list(made.id, order="desc", limit=1)
    assert newest.data == found[-1:] and newest.has_more


@pytest.mark.requirement("CC-STORED")
async def test_completion_without_an_answer_is_not_found(serve: Serve, client_of: Clients) -> None:
    client = client_of(serve(ScriptedBackend([ANSWER_DELTAS, BackendError("Gone.")])).app)
    made = await store_chat(client)
    found = await client.chat.completions.retrieve(made.id)
    assert found.choices == made.choices and found.choices[0].message.tool_calls
    with pytest.raises(openai.InternalServerError):
        await client.with_options(max_retries=0).chat.completions.create(
            model="tiny", messages=HI, store=True
        )
    assert [each.id async for each in client.chat.completions.list()] == [made.id]


@pytest.mark.requirement("CC-STORED")
@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "metadata", "missing_required_parameter"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    ],
)
async def test_invalid_update_names_the_field(
    server: Server, client_of: Clients, body: Json, param: str, code: str
) -> None:
    made = await store_chat(client_of(server.app))
    reply = await server.client.post(f"/v1/chat/completions/{made.id}", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, param, code)


async def documented_calls(call: Any) -> None:
    body = {"model": "tiny", "messages": HI, "store": True}
    made = await call("createChatCompletion", json=body)
    await call("getChatCompletion", made["id"])
    await call("listChatCompletions", params={"metadata[a]": "b"})
    await call("getChatCompletionMessages", made["id"])
    await call("updateChatCompletion", made["id"], json={"metadata": {"a": "b"}})
    await call("deleteChatCompletion", made["id"])

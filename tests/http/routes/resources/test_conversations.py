"""Conversations over HTTP (C1 to C8 of the API), with the official client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import pytest

from antiphon.backends.base import Backend, DeltaSink, Reply
from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.http.app import create_app
from antiphon.inference.conversation import Conversation, Options
from antiphon.runs.service import Service
from antiphon.store.base import Store
from antiphon.store.sqlite.store import SqliteStore
from antiphon.stream.deltas import Close, Delta, Finish, Open, Text
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.replies import push_all
from antiphon.wire.items import Message
from antiphon.wire.response import Usage
from tests.harness import asgi_client
from tests.http.conftest import counted
from tests.runs.scripted_service import make_service


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Store]:
    created: Store = (
        MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "a.db")
    )
    yield created
    await created.close()


class ConversationApi:
    """The app over a real service with a scripted model, and a client."""

    def __init__(self, backend: Any, store: Store) -> None:
        import structlog

        self.backend = backend
        self.service: Service = make_service(backend, store)
        app = create_app(self.service, ids=counted(), log=structlog.get_logger())
        self.http = asgi_client(app)

    async def __call__(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.http.request(method, f"/v1{path}", json=body)
        self.status = answer.status_code
        return answer.json()


@pytest.fixture
async def api(store: Store) -> AsyncIterator[ConversationApi]:
    api = ConversationApi(ScriptedBackend(["one", "two", "three"]), store)
    yield api
    await api.http.aclose()


def texts(page: Any) -> list[str]:
    return [item["content"][0]["text"] for item in page["data"] if item["type"] == "message"]


async def test_conversation_is_created_read_updated_and_deleted(api: ConversationApi) -> None:
    created = await api("POST", "/conversations", {"metadata": {"topic": "a"}})
    assert created["object"] == "conversation" and created["metadata"] == {"topic": "a"}
    assert isinstance(created["created_at"], int)
    path = f"/conversations/{created['id']}"
    assert await api("GET", path) == created
    changed = await api("POST", path, {"metadata": {"topic": "b"}})
    assert changed == {**created, "metadata": {"topic": "b"}}
    assert await api("GET", path) == changed
    deleted = await api("DELETE", path)
    assert deleted == {"id": created["id"], "object": "conversation.deleted", "deleted": True}
    answer = await api("GET", path)
    assert api.status == 404 and answer["error"]["param"] == "conversation_id"


async def test_empty_body_creates_an_empty_conversation(api: ConversationApi) -> None:
    created = (await api.http.post("/v1/conversations")).json()
    page = await api("GET", f"/conversations/{created['id']}/items")
    assert page == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


async def test_items_are_added_listed_read_and_deleted(api: ConversationApi) -> None:
    first = [{"role": "user", "content": "a"}]
    created = await api("POST", "/conversations", {"items": first})
    path = f"/conversations/{created['id']}/items"
    more = [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    added = await api("POST", path, {"items": more})
    assert texts(added) == ["b", "c"] and added["first_id"] == added["data"][0]["id"]
    assert texts(await api("GET", path)) == ["c", "b", "a"]
    assert texts(await api("GET", f"{path}?order=asc")) == ["a", "b", "c"]
    page = await api("GET", f"{path}?limit=2")
    assert page["has_more"] is True
    rest = await api("GET", f"{path}?limit=2&after={page['last_id']}")
    assert texts(rest) == ["a"] and rest["has_more"] is False
    one = added["data"][0]
    assert await api("GET", f"{path}/{one['id']}") == one
    assert await api("DELETE", f"{path}/{one['id']}") == created
    assert texts(await api("GET", f"{path}?order=asc")) == ["a", "c"]
    await api("GET", f"{path}/{one['id']}")
    assert api.status == 404
    await api("DELETE", f"{path}/{one['id']}")
    assert api.status == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "items"),
        ({"items": [{"role": "user", "content": "x"}] * 21}, "items"),
        ({"items": [{"type": "nonsense"}]}, "items[0].type"),
        ({"items": [{"role": "user", "content": "again", "id": "msg_known"}]}, "items"),
    ],
)
async def test_invalid_items_are_refused_by_name(
    api: ConversationApi, body: Any, param: str
) -> None:
    known = {"role": "user", "content": "x", "id": "msg_known"}
    created = await api("POST", "/conversations", {"items": [known]})
    answer = await api("POST", f"/conversations/{created['id']}/items", body)
    assert api.status == 400
    assert answer["error"]["param"] == param


async def test_update_requires_metadata(api: ConversationApi) -> None:
    created = await api("POST", "/conversations", {})
    answer = await api("POST", f"/conversations/{created['id']}", {})
    assert (api.status, answer["error"]["code"]) == (400, "missing_required_parameter")
    labels = {f"k{n}": "v" for n in range(17)}
    await api("POST", f"/conversations/{created['id']}", {"metadata": labels})
    assert api.status == 400


async def test_responses_continue_a_conversation(api: ConversationApi) -> None:
    created = await api("POST", "/conversations", {"items": [{"role": "user", "content": "a"}]})
    for given in (created["id"], {"id": created["id"]}):
        body = {"input": "b", "instructions": "Be brief.", "conversation": given}
        answer = await api("POST", "/responses", body)
        assert answer["conversation"] == {"id": created["id"]}
    path = f"/conversations/{created['id']}/items?order=asc"
    assert texts(await api("GET", path)) == ["a", "b", "one", "b", "two"]
    conversation = api.backend.requests[1][0]
    assert [item.content[0].text for item in conversation.items] == ["a", "b", "one", "b"]
    assert await api("DELETE", f"/responses/{answer['id']}")
    assert len((await api("GET", path))["data"]) == 5


async def test_unstored_response_is_not_added_to_the_conversation(api: ConversationApi) -> None:
    created = await api("POST", "/conversations", {"items": [{"role": "user", "content": "a"}]})
    await api("POST", "/responses", {"input": "b", "conversation": created["id"], "store": False})
    assert [i.content[0].text for i in api.backend.requests[0][0].items] == ["a", "b"]
    assert texts(await api("GET", f"/conversations/{created['id']}/items")) == ["a"]


async def test_unknown_or_foreign_conversation_is_404(api: ConversationApi) -> None:
    answer = await api("POST", "/responses", {"input": "b", "conversation": "conv_none"})
    assert (api.status, answer["error"]["message"]) == (
        404,
        "Conversation with id 'conv_none' not found.",
    )
    for method, path, body in (
        ("GET", "/conversations/conv_none", None),
        ("POST", "/conversations/conv_none", {"metadata": {}}),
        ("DELETE", "/conversations/conv_none", None),
        ("GET", "/conversations/conv_none/items", None),
        ("POST", "/conversations/conv_none/items", {"items": []}),
        ("GET", "/conversations/conv_none/items/msg_1", None),
        ("DELETE", "/conversations/conv_none/items/msg_1", None),
    ):
        await api(method, path, body)
        assert api.status == 404, path


class GatedBackend(Backend, Reply):
    """A backend that yields nothing until its gate opens."""

    context_size = None
    recommended_options: Mapping[str, Any] = {}
    input_tokens = 1

    def __init__(self) -> None:
        self.started, self.gate = asyncio.Event(), asyncio.Event()

    async def prepare(self, conversation: Conversation, options: Options) -> GatedBackend:
        return self

    async def _deltas(self) -> AsyncGenerator[Delta, None]:
        self.started.set()
        await self.gate.wait()
        yield Open(Message(role="assistant", content=()))
        yield Text("late")
        yield Close()
        yield Finish("stop", Usage())

    async def pump(self, sink: DeltaSink) -> None:
        await push_all(self.deltas(), sink)

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        async with aclosing(self._deltas()) as deltas:
            async for delta in deltas:
                yield (delta,)

    async def close(self) -> None: ...


async def test_conversation_allows_one_response_at_a_time(store: Store) -> None:
    api = ConversationApi(GatedBackend(), store)
    created = await api("POST", "/conversations", {})
    body = {"input": "b", "conversation": created["id"]}
    async with asyncio.timeout(60):
        first = asyncio.create_task(api("POST", "/responses", body))
        await api.backend.started.wait()
        answer = (await api.http.post("/v1/responses", json=body)).json()
        assert answer["error"]["code"] == "conversation_locked"
        assert answer["error"]["param"] == "conversation"
        api.backend.gate.set()
        assert (await first)["status"] == "completed"
        assert (await api("POST", "/responses", body))["status"] == "completed"
        refused = await api("POST", "/responses", {**body, "input": [{"id": "msg_none"}]})
        assert refused["error"]["message"].startswith("Item with id")
        assert (await api("POST", "/responses", body))["status"] == "completed"
    await api.http.aclose()


async def test_item_of_a_conversation_can_be_referenced(api: ConversationApi) -> None:
    created = await api("POST", "/conversations", {"items": [{"role": "user", "content": "a"}]})
    (item,) = (await api("GET", f"/conversations/{created['id']}/items"))["data"]
    await api("POST", "/responses", {"input": [{"type": "item_reference", "id": item["id"]}]})
    assert [i.content[0].text for i in api.backend.requests[0][0].items] == ["a"]

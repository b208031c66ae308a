"""Conversations over HTTP: C1 to C8 of the API, and responses made in them, by the real client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from antiphon.backends.base import Backend, Reply
from antiphon.backends.scripted import ScriptedBackend
from antiphon.conversation import Conversation, Options
from antiphon.http.app import create_app
from antiphon.runs.service import Service
from antiphon.store.base import Store
from antiphon.store.memory.store import MemoryStore
from antiphon.store.sqlite.store import SqliteStore
from antiphon.stream.deltas import Close, Delta, Finish, Open, Text
from antiphon.wire.items import Message
from antiphon.wire.response import Usage
from tests.http.conftest import counted
from tests.runs.served import service


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Store]:
    made: Store = (
        MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "a.db")
    )
    yield made
    await made.close()


class Asked:
    """The app over a real service with a scripted model, and a client."""

    def __init__(self, backend: Any, store: Store) -> None:
        import structlog

        self.backend = backend
        self.service: Service = service(backend, store)
        app = create_app(self.service, ids=counted(), log=structlog.get_logger())
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000"
        )

    async def __call__(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.http.request(method, f"/v1{path}", json=body)
        self.status = answer.status_code
        return answer.json()


@pytest.fixture
async def ask(store: Store) -> AsyncIterator[Asked]:
    asked = Asked(ScriptedBackend(["one", "two", "three"]), store)
    yield asked
    await asked.http.aclose()


def said(page: Any) -> list[str]:
    return [item["content"][0]["text"] for item in page["data"] if item["type"] == "message"]


async def test_a_conversation_is_made_read_labelled_and_forgotten(ask: Asked) -> None:
    made = await ask("POST", "/conversations", {"metadata": {"topic": "a"}})
    assert made["object"] == "conversation" and made["metadata"] == {"topic": "a"}
    assert isinstance(made["created_at"], int)
    path = f"/conversations/{made['id']}"
    assert await ask("GET", path) == made
    changed = await ask("POST", path, {"metadata": {"topic": "b"}})
    assert changed == {**made, "metadata": {"topic": "b"}}
    assert await ask("GET", path) == changed
    gone = await ask("DELETE", path)
    assert gone == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    answer = await ask("GET", path)
    assert ask.status == 404 and answer["error"]["param"] == "conversation_id"


async def test_an_empty_body_makes_an_empty_conversation(ask: Asked) -> None:
    made = (await ask.http.post("/v1/conversations")).json()
    page = await ask("GET", f"/conversations/{made['id']}/items")
    assert page == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


async def test_items_are_added_listed_both_ways_read_and_taken_out(ask: Asked) -> None:
    first = [{"role": "user", "content": "a"}]
    made = await ask("POST", "/conversations", {"items": first})
    path = f"/conversations/{made['id']}/items"
    more = [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    added = await ask("POST", path, {"items": more})
    assert said(added) == ["b", "c"] and added["first_id"] == added["data"][0]["id"]
    assert said(await ask("GET", path)) == ["c", "b", "a"]
    assert said(await ask("GET", f"{path}?order=asc")) == ["a", "b", "c"]
    page = await ask("GET", f"{path}?limit=2")
    assert page["has_more"] is True
    rest = await ask("GET", f"{path}?limit=2&after={page['last_id']}")
    assert said(rest) == ["a"] and rest["has_more"] is False
    one = added["data"][0]
    assert await ask("GET", f"{path}/{one['id']}") == one
    assert await ask("DELETE", f"{path}/{one['id']}") == made
    assert said(await ask("GET", f"{path}?order=asc")) == ["a", "c"]
    await ask("GET", f"{path}/{one['id']}")
    assert ask.status == 404
    await ask("DELETE", f"{path}/{one['id']}")
    assert ask.status == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "items"),
        ({"items": [{"role": "user", "content": "x"}] * 21}, "items"),
        ({"items": [{"type": "nonsense"}]}, "items[0].type"),
        ({"items": [{"role": "user", "content": "again", "id": "msg_known"}]}, "items"),
    ],
)
async def test_items_that_cannot_be_added_are_named(ask: Asked, body: Any, param: str) -> None:
    known = {"role": "user", "content": "x", "id": "msg_known"}
    made = await ask("POST", "/conversations", {"items": [known]})
    answer = await ask("POST", f"/conversations/{made['id']}/items", body)
    assert ask.status == 400
    assert answer["error"]["param"] == param


async def test_labels_must_be_given_to_be_replaced(ask: Asked) -> None:
    made = await ask("POST", "/conversations", {})
    answer = await ask("POST", f"/conversations/{made['id']}", {})
    assert (ask.status, answer["error"]["code"]) == (400, "missing_required_parameter")
    labels = {f"k{n}": "v" for n in range(17)}
    await ask("POST", f"/conversations/{made['id']}", {"metadata": labels})
    assert ask.status == 400


async def test_responses_go_on_in_a_conversation(ask: Asked) -> None:
    made = await ask("POST", "/conversations", {"items": [{"role": "user", "content": "a"}]})
    for given in (made["id"], {"id": made["id"]}):
        body = {"input": "b", "instructions": "Be brief.", "conversation": given}
        answer = await ask("POST", "/responses", body)
        assert answer["conversation"] == {"id": made["id"]}
    path = f"/conversations/{made['id']}/items?order=asc"
    assert said(await ask("GET", path)) == ["a", "b", "one", "b", "two"]
    seen = ask.backend.requests[1][0]
    assert [item.content[0].text for item in seen.items] == ["a", "b", "one", "b"]
    assert await ask("DELETE", f"/responses/{answer['id']}")
    assert len((await ask("GET", path))["data"]) == 5


async def test_what_is_not_stored_is_not_written_to_the_conversation(ask: Asked) -> None:
    made = await ask("POST", "/conversations", {"items": [{"role": "user", "content": "a"}]})
    await ask("POST", "/responses", {"input": "b", "conversation": made["id"], "store": False})
    assert [i.content[0].text for i in ask.backend.requests[0][0].items] == ["a", "b"]
    assert said(await ask("GET", f"/conversations/{made['id']}/items")) == ["a"]


async def test_unknown_and_foreign_conversations_are_404(ask: Asked) -> None:
    answer = await ask("POST", "/responses", {"input": "b", "conversation": "conv_none"})
    assert (ask.status, answer["error"]["message"]) == (
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
        await ask(method, path, body)
        assert ask.status == 404, path


class Waiting(Backend, Reply):
    """A backend that says nothing until it may."""

    context_size = None
    recommended_options: Mapping[str, Any] = {}
    input_tokens = 1

    def __init__(self) -> None:
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    async def prepare(self, conversation: Conversation, options: Options) -> Waiting:
        return self

    async def _deltas(self) -> AsyncGenerator[Delta, None]:
        self.begun.set()
        await self.gate.wait()
        yield Open(Message(role="assistant", content=()))
        yield Text("late")
        yield Close()
        yield Finish("stop", Usage())

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        async with aclosing(self._deltas()) as deltas:
            async for delta in deltas:
                yield (delta,)

    async def close(self) -> None: ...


async def test_a_conversation_takes_one_response_at_a_time(store: Store) -> None:
    ask = Asked(Waiting(), store)
    made = await ask("POST", "/conversations", {})
    body = {"input": "b", "conversation": made["id"]}
    async with asyncio.timeout(10):
        first = asyncio.create_task(ask("POST", "/responses", body))
        await ask.backend.begun.wait()
        answer = (await ask.http.post("/v1/responses", json=body)).json()
        assert answer["error"]["code"] == "conversation_locked"
        assert answer["error"]["param"] == "conversation"
        ask.backend.gate.set()
        assert (await first)["status"] == "completed"
        assert (await ask("POST", "/responses", body))["status"] == "completed"
        refused = await ask("POST", "/responses", {**body, "input": [{"id": "msg_none"}]})
        assert refused["error"]["message"].startswith("Item with id")
        assert (await ask("POST", "/responses", body))["status"] == "completed"
    await ask.http.aclose()


async def test_an_item_of_a_conversation_can_be_referred_to(ask: Asked) -> None:
    made = await ask("POST", "/conversations", {"items": [{"role": "user", "content": "a"}]})
    (item,) = (await ask("GET", f"/conversations/{made['id']}/items"))["data"]
    await ask("POST", "/responses", {"input": [{"type": "item_reference", "id": item["id"]}]})
    assert [i.content[0].text for i in ask.backend.requests[0][0].items] == ["a"]

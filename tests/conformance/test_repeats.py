"""Repeated requests with one ``Idempotency-Key``, over every store."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import BackendError
from antiphon.store.base import Store
from antiphon.stream.deltas import Close, Open, Text
from antiphon.wire.items import Message
from tests.conformance.conftest import Serve
from tests.conformance.scripts import finish
from tests.conformance.server import Server
from tests.conformance.stepped_backend import SteppedBackend

ANSWER = Open(Message(role="assistant", content=()))
KEY = {"idempotency-key": "stainless-python-retry-1"}


class Waiting(asyncio.Event):
    """An event that tells of each run that waits for it: ``arrivals`` is released."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals = asyncio.Semaphore(0)

    async def wait(self) -> Literal[True]:
        self.arrivals.release()
        return await super().wait()


async def ask(server: Server, key: dict[str, str] = KEY, **body: Any) -> Any:
    async with asyncio.timeout(60):
        request_body = {"model": "tiny", "input": "hi", **body}
        return await server.client.post("/v1/responses", json=request_body, headers=key)


@pytest.mark.requirement("API-IDEMPOTENCY")
@pytest.mark.parametrize("body", [{}, {"store": False}, {"stream": True}, {"background": True}])
async def test_repeated_idempotency_key_returns_the_first_answer(
    serve: Serve, store: Store, body: dict[str, Any]
) -> None:
    server = serve(ScriptedBackend(["One answer.", "Another."]), on=store)
    first = await ask(server, **body)
    again = await ask(server, **body)
    assert (first.status_code, again.status_code) == (200, 200)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    if "background" in body:
        assert first.json()["id"] == again.json()["id"]
        return
    assert again.content == first.content
    assert b"One answer." in first.content


@pytest.mark.requirement("API-IDEMPOTENCY")
async def test_different_requests_make_new_responses(serve: Serve, store: Store) -> None:
    server = serve(ScriptedBackend(["a"]), on=store)
    one = (await ask(server)).json()["id"]
    others = [
        (await ask(server, input="ho")).json()["id"],
        (await ask(server, {"idempotency-key": "2"})).json()["id"],
        (await ask(server, {})).json()["id"],
        (await ask(server, {})).json()["id"],
    ]
    assert len({one, *others}) == 5
    assert (await ask(server)).json()["id"] == one


@pytest.mark.requirement("API-IDEMPOTENCY")
async def test_concurrent_requests_with_one_key_share_a_run(serve: Serve, store: Store) -> None:
    waiting = Waiting()
    server = serve(
        SteppedBackend([ANSWER, Text("one "), waiting, Text("two"), Close(), finish()]), on=store
    )
    requests = [asyncio.create_task(ask(server, stream=stream)) for stream in (False, True, False)]
    async with asyncio.timeout(60):
        for _ in range(2):
            await waiting.arrivals.acquire()
        waiting.set()
        plain, streamed, same = await asyncio.gather(*requests)
    assert plain.json() == same.json()
    assert plain.json()["output"][0]["content"][0]["text"] == "one two"
    last = streamed.content.decode().split("data: ")[-2]
    assert json.loads(last)["type"] == "response.completed"
    assert json.loads(last)["response"]["id"] != plain.json()["id"], "another body"


@pytest.mark.requirement("API-IDEMPOTENCY")
async def test_answer_is_available_after_a_disconnect(serve: Serve, store: Store) -> None:
    waiting = Waiting()
    server = serve(
        SteppedBackend([ANSWER, Text("one "), waiting, Text("two"), Close(), finish()]), on=store
    )
    asking = asyncio.create_task(ask(server))
    async with asyncio.timeout(60):
        await waiting.arrivals.acquire()
        asking.cancel()
        await asyncio.wait([asking])
        waiting.set()
        answer = await ask(server)
    assert answer.json()["output"][0]["content"][0]["text"] == "one two"
    assert answer.headers["idempotent-replayed"] == "true"


@pytest.mark.requirement("API-IDEMPOTENCY")
async def test_rejected_request_can_be_repeated(serve: Serve, store: Store) -> None:
    server = serve(ScriptedBackend(["a"]), on=store)
    for _ in range(2):
        rejection = await ask(server, max_output_tokens=10**9, truncation="never")
        assert rejection.status_code == 400
        assert "idempotent-replayed" not in rejection.headers


@pytest.mark.requirement("API-IDEMPOTENCY")
async def test_failure_is_replayed(serve: Serve, store: Store) -> None:
    server = serve(SteppedBackend([ANSWER, Text("one "), BackendError("It broke.")]), on=store)
    first, again = await ask(server), await ask(server)
    assert (first.status_code, first.content) == (again.status_code, again.content)
    assert again.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb"])
@pytest.mark.requirement("API-IDEMPOTENCY")
async def test_invalid_idempotency_key_is_rejected(serve: Serve, key: str) -> None:
    rejection = await ask(serve(ScriptedBackend(["a"])), {"idempotency-key": key})
    assert rejection.status_code == 400
    assert rejection.json()["error"]["param"] == "Idempotency-Key"

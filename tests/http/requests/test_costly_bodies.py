"""A body that takes long to parse does not hold up the requests of other clients, at any door: it
is parsed in a thread."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from antiphon.http.routes import websocket
from antiphon.resources.prompts import Prompts
from antiphon.store import open_store
from antiphon.wire.parsing import json_body
from antiphon.wire.parsing.json_body import is_costly
from tests.conformance.asgi_clients import WebSocketClient
from tests.conformance.fake_containers import code_interpreter_options, containers
from tests.conformance.server import Server, engine, local

PART = {"type": "input_text", "text": "x"}
COSTLY = json.dumps({"costly": [PART] * 5_000}).encode()


@pytest.fixture
async def server(tmp_path: Path) -> Any:
    opened = Server(
        local(engine(lambda prompt: "Hello!")),
        await open_store("memory:"),
        prompts=Prompts(tmp_path),
        **code_interpreter_options(containers()),
    )
    yield opened
    await opened.close()


def test_long_bodies_are_costly() -> None:
    assert not is_costly(json.dumps({"input": "x" * 100_000}).encode())
    assert is_costly(json.dumps({"input": "x" * 200_000}).encode())
    assert is_costly(COSTLY)


async def test_every_door_parses_costly_bodies_in_a_thread(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set[str]()

    def decode(body: bytes) -> Any:
        threads.add(threading.current_thread().name)
        return msgspec.json.decode(body)

    names = {**vars(msgspec), "json": SimpleNamespace(decode=decode)}
    monkeypatch.setattr(json_body, "msgspec", SimpleNamespace(**names))
    document = (await server.client.get("/openapi.json")).json()
    parsed = 0
    for path, operations in document["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        if "application/json" not in content:
            continue
        url = path.replace("{", "").replace("}", "")
        headers = {"content-type": "application/json"}
        answer = await server.client.post(url, content=COSTLY, headers=headers)
        assert answer.status_code < 500, (path, answer.text)
        assert threading.main_thread().name not in threads, path
        parsed += bool(threads)  # others refuse the request before they read its body
        threads.clear()
    assert parsed > 20


async def test_frames_of_websockets_are_parsed_in_a_thread(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[str]()

    def read_frame(envelope: Any, limits: Any) -> Any:
        threads.append(threading.current_thread().name)
        return original(envelope, limits)

    original = websocket.read_frame
    monkeypatch.setattr(websocket, "read_frame", read_frame)
    async with WebSocketClient(server.app) as wire:
        wire.create(input=[{"role": "user", "content": [PART] * 1_900}] * 2)
        await wire.events()
        wire.create(input="hi")
        await wire.events()
    costly, cheap = threads
    assert costly != threading.main_thread().name and cheap == threading.main_thread().name

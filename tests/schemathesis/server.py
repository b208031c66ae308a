"""A server with every feature over scripted parts, for Schemathesis."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from antiphon.resources.prompts import Prompts
from antiphon.testing.memory_store.store import MemoryStore
from tests.conformance.fake_containers import code_interpreter_options, containers
from tests.conformance.server import Server, engine, local
from tests.conformance.test_skills import skill_form


@contextmanager
def serve_in_thread(folder: Path) -> Iterator[str]:
    """Serve on a free loopback port in a thread; yield the URL. ``folder`` gets the configuration
    ``schemathesis.toml``, with the ids of objects that exist.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    loop = asyncio.new_event_loop()
    started, stop = threading.Event(), asyncio.Event()

    async def run() -> None:
        server = Server(
            local(engine(lambda prompt: "Hello there!")),
            MemoryStore(),
            prompts=Prompts(folder),
            **code_interpreter_options(containers()),
        )
        (folder / "schemathesis.toml").write_text(_configuration(await create_objects(server)))
        http = uvicorn.Server(uvicorn.Config(server.app, log_level="error", lifespan="off"))
        http.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(http.serve(sockets=[listener]))
        started.set()
        await stop.wait()
        http.should_exit = True
        await serving
        await server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    started.wait(30)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


async def create_objects(server: Server) -> dict[str, str]:
    """Create one object of each kind; return their ids by the names of path parameters."""
    client = server.client

    async def create(path: str, **request: Any) -> str:
        answer = await client.post(path, **request)
        assert answer.status_code == 200, answer.text
        id: str = answer.json()["id"]
        return id

    file = await create(
        "/v1/files", files={"file": ("a.txt", b"A cat sat.")}, data={"purpose": "user_data"}
    )
    store = await create("/v1/vector_stores", json={"name": "notes"})
    batches = f"/v1/vector_stores/{store}/file_batches"
    return {
        "file_id": file,
        "vector_store_id": store,
        "batch_id": await create(batches, json={"file_ids": [file]}),
        "skill_id": await create("/v1/skills", files=skill_form()),
        "version": "1",
        "model": "tiny",
    }


_EXCEPTIONS = (
    # The scripted model obeys no format.
    "[checks.not_a_server_error]",
    'expected-statuses = ["2xx", "3xx", "4xx", 502]',
    # The server takes a text field in place of an uploaded file.
    "[[operations]]",
    'include-operation-id = "createContainerFile"',
    "checks.negative_data_rejection.enabled = false",
)


def _configuration(ids: dict[str, str]) -> str:
    lines = [f"{json.dumps('path.' + name)} = {json.dumps(id)}" for name, id in ids.items()]
    return "\n".join(["[parameters]", *lines, *_EXCEPTIONS, ""])

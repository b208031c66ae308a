"""Three servers over one PostgreSQL behind a real proxy act as one server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import websockets

from tests.e2e.server import Server, serving
from tests.real.postgres import Postgres

STORY = " ".join(f"word{number}" for number in range(80))
MODEL = (
    f'[models.story]\nengine = "scripted"\nsource = "{STORY}"\n'
    "template_kwargs = {wait_s = 0.02}\n"
)

pytestmark = pytest.mark.requirement("API-MANY-PROCESSES")


class Fleet:
    """Three servers, and the proxy's URL."""

    def __init__(self, servers: list[Server], url: str) -> None:
        self.servers = servers
        self.url = url

    def client(self, server: int | None = None) -> openai.AsyncOpenAI:
        """Return the official client of one server or of the proxy."""
        url = self.url if server is None else self.servers[server].url
        return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=3, timeout=60)


@pytest.fixture
def fleet(tmp_path: Path, database: Postgres) -> Iterator[Fleet]:
    store = asyncio.run(database.create_migrated_database())
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                serving(tmp_path / f"server{n}", "lease_s = 0.5", store=store, model=MODEL)
            )
            for n in range(3)
        ]
        url = stack.enter_context(_proxy(tmp_path, [server.root for server in servers]))
        yield Fleet(servers, url)


@contextlib.contextmanager
def _proxy(folder: Path, upstreams: list[str]) -> Iterator[str]:
    """Start Caddy, which passes streams and upgrades on unchanged."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    (folder / "Caddyfile").write_text(
        "{\n admin off\n auto_https off\n}\n"
        f"http://127.0.0.1:{port} {{\n bind 127.0.0.1\n reverse_proxy {' '.join(upstreams)} {{\n"
        "  lb_policy round_robin\n  lb_try_duration 5s\n  fail_duration 5s\n }\n}\n"
    )
    program = shutil.which("caddy", path=str(Path(sys.executable).parent))
    assert program is not None, "the dev extra brings it"
    process = subprocess.Popen(
        [program, "run", "--config", "Caddyfile", "--adapter", "caddyfile"],
        cwd=folder,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{url}/health").status_code == 200:
                    break
        yield f"{url}/v1"
    finally:
        process.terminate()
        process.wait(30)


async def followed(client: openai.AsyncOpenAI, response_id: str, after: int | None = None) -> Any:
    given: dict[str, Any] = {} if after is None else {"starting_after": after}
    stream = await client.responses.retrieve(response_id, stream=True, **given)
    return [event async for event in stream]


@contextlib.asynccontextmanager
async def clients(fleet: Fleet) -> AsyncIterator[list[openai.AsyncOpenAI]]:
    """Yield the clients of the three servers and of the proxy."""
    async with contextlib.AsyncExitStack() as stack:
        places = (0, 1, 2, None)
        yield [await stack.enter_async_context(fleet.client(place)) for place in places]


async def _create_stream_cancel(fleet: Fleet) -> None:
    async with asyncio.timeout(60), clients(fleet) as (first, second, third, proxy):
        created = await first.responses.create(model="story", input="hi", background=True)
        stream = await second.responses.retrieve(created.id, stream=True)
        delta_count = 0
        async for event in stream:
            delta_count += event.type == "response.output_text.delta"
            if delta_count == 5:
                cancelled = await third.responses.cancel(created.id)
                assert cancelled.status == "cancelled"
        assert 5 <= delta_count < 80
        for client in (first, second, third, proxy):
            assert await client.responses.retrieve(created.id) == cancelled
            assert (await followed(client, created.id))[-1].type != "response.completed"


def test_run_is_created_streamed_and_cancelled_on_three_replicas(fleet: Fleet) -> None:
    asyncio.run(_create_stream_cancel(fleet))


async def _kill_one(fleet: Fleet) -> None:
    async with asyncio.timeout(90), clients(fleet) as (*_, proxy):
        created = [
            await proxy.responses.create(model="story", input=str(n), background=True)
            for n in range(6)
        ]
        await asyncio.sleep(0.5)
        fleet.servers[0].kill()
        for response in created:
            received: list[Any] = []
            while not received or received[-1].type != "response.completed":
                with contextlib.suppress(openai.APIError, httpx.HTTPError):
                    last = received[-1].sequence_number if received else None
                    received += await followed(proxy, response.id, last)
            numbers = [event.sequence_number for event in received if event.type != "keepalive"]
            assert numbers == list(range(len(numbers)))
            assert (await proxy.responses.retrieve(response.id)).output_text == STORY


def test_runs_of_a_killed_replica_are_finished_by_others(fleet: Fleet) -> None:
    asyncio.run(_kill_one(fleet))


async def _one_server(fleet: Fleet) -> None:
    async with asyncio.timeout(60), clients(fleet) as (first, second, third, proxy):
        one = await first.responses.create(model="story", input="a", max_output_tokens=50)
        two = await second.responses.create(model="story", input="b", previous_response_id=one.id)
        assert (await third.responses.retrieve(two.id)).previous_response_id == one.id
        talk = await first.conversations.create()
        long = await first.responses.create(
            model="story", input="a", conversation=talk.id, background=True
        )
        with pytest.raises(openai.BadRequestError) as locked:
            await second.responses.create(model="story", input="b", conversation=talk.id)
        assert locked.value.code == "conversation_locked"
        await followed(proxy, long.id)
        assert len((await third.conversations.items.list(talk.id)).data) == 2
        await third.responses.delete(one.id)
        with pytest.raises(openai.NotFoundError):
            await first.responses.retrieve(one.id)
        async with websockets.connect(f"{fleet.url.replace('http', 'ws')}/responses") as wire:
            frame = {"type": "response.create", "model": "story", "input": "c", "store": False}
            await wire.send(json.dumps(frame))
            while json.loads(await wire.recv())["type"] != "response.completed":
                pass


def test_replicas_act_as_one_server(fleet: Fleet) -> None:
    asyncio.run(_one_server(fleet))


def test_replicas_start_together_on_an_empty_database(tmp_path: Path, database: Postgres) -> None:
    async def opened() -> None:
        from antiphon.store import open_store

        url = await database.create_migrated_database()
        stores = await asyncio.gather(*(open_store(url) for _ in range(8)))
        await asyncio.gather(*(store.close() for store in stores))

    asyncio.run(opened())


async def test_servers_on_one_host_send_events_over_sockets(
    tmp_path: Path, database: Postgres
) -> None:
    """A server connects to the other servers of its host when it starts."""
    store = await database.create_migrated_database()
    sockets = tmp_path / "run" / "antiphon"
    environment = {"XDG_RUNTIME_DIR": str(sockets.parent)}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                serving(tmp_path / name, store=store, model=MODEL, environment=environment)
            )
            for name in "ab"
        ]
        assert len(list(sockets.iterdir())) == 2
        fleet = Fleet(servers, servers[0].url)
        async with asyncio.timeout(60), fleet.client(0) as one, fleet.client(1) as other:
            created = await one.responses.create(model="story", input="hi", background=True)
            read = await asyncio.gather(*(followed(each, created.id) for each in (one, other)))
        for events in read:
            assert "".join(e.delta for e in events if e.type.endswith("text.delta")) == STORY
        used = Path("/proc/net/unix").read_text().count(str(sockets))
        assert used > 2, "two sockets that listen, and a connection"
    assert not list(sockets.iterdir())

"""Containers of several processes: any worker and any server on the store uses each of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.conformance.test_tool_search import tool_call
from tests.e2e.server import Server, serving
from tests.real.postgres import Postgres
from tests.sandbox.real_sandboxes import sandbox

WAIT_S = 60
SETTINGS = 'sandbox.kind = "auto"\nfile_search.embeddings = "off"\n'
TOOL: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
#: What the user says → the code that the model writes then.
CODE = {"first": "x = 41", "second": "x + 1", "third": "'again'"}


def _settings(folder: Path) -> str:
    """Write the model's turns into a folder and return the settings of a model that says them."""
    folder.mkdir(exist_ok=True)
    scenes = folder / "scenes.toml"
    scenes.write_text(
        "".join(
            f"[[scenes]]\nwhen = {json.dumps(said)}\n"
            f"turns = {json.dumps([tool_call('python', {'input': code}), 'Done.'])}\n"
            for said, code in CODE.items()
        )
    )
    return f'[models.code]\nengine = "replay"\nsource = "{scenes}"\n'


@pytest.fixture
def servers(tmp_path: Path, database: Postgres) -> Iterator[list[Server]]:
    """A server of two workers, and one of a single process."""
    store = asyncio.run(database.create_migrated_database())
    with (
        serving(
            tmp_path / "a", f"{SETTINGS}workers = 2", store=store,
            model=_settings(tmp_path / "a"),
        ) as first,
        serving(
            tmp_path / "b", SETTINGS, store=store, model=_settings(tmp_path / "b")
        ) as second,
    ):  # fmt: skip
        yield [first, second]


def _client(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=WAIT_S)


async def _turn(client: openai.AsyncOpenAI, said: str, previous: str | None = None) -> Any:
    return await client.responses.create(
        model="code",
        input=said,
        tools=[TOOL],
        include=["code_interpreter_call.outputs"],
        **({} if previous is None else {"previous_response_id": previous}),
    )


async def _use_everywhere(servers: list[Server]) -> None:
    """Each request to a server of workers is a new connection, which any worker may get."""
    await sandbox()  # or the test is skipped
    async with asyncio.timeout(3 * WAIT_S), _client(servers[0]) as one, _client(servers[1]) as two:
        created = await two.containers.create(name="mine")
        for _ in range(4):
            async with _client(servers[0]) as client:
                added = await client.containers.files.create(created.id, file=("a.bin", b"\0two"))
                content = await client.containers.files.content.retrieve(
                    added.id, container_id=created.id
                )
                assert content.read() == b"\0two"
                assert (await client.containers.retrieve(created.id)).status == "active"
        response = await _turn(one, "first")
        call = response.output[0]
        for server in (*servers, *servers):
            async with _client(server) as client:
                later = await _turn(client, "second", response.id)
                assert later.output[0].container_id == call.container_id
                assert later.output[0].outputs[0].logs == "42\n"
        listed = {each.id async for each in two.containers.list()}
        assert listed == {created.id, call.container_id}
        await one.containers.delete(created.id)
        with pytest.raises(openai.NotFoundError):
            await two.containers.retrieve(created.id)


async def _lose_the_owner(servers: list[Server]) -> None:
    async with asyncio.timeout(3 * WAIT_S), _client(servers[0]) as one, _client(servers[1]) as two:
        created = await two.containers.create(name="mine")
        first = await _turn(two, "first")
        await asyncio.to_thread(servers[1].kill)
        with pytest.raises(openai.BadRequestError) as refused:
            await one.containers.files.create(created.id, file=("a.txt", b"two"))
        assert refused.value.code == "container_expired"
        assert (await one.containers.retrieve(created.id)).status == "expired"
        later = await _turn(one, "third", first.id)
        assert later.output[0].container_id != first.output[0].container_id
        assert later.output[0].outputs[0].logs == "'again'\n"


@pytest.mark.requirement("API-CONTAINERS-ANYWHERE")
async def test_workers_and_servers_share_containers(servers: list[Server]) -> None:
    await _use_everywhere(servers)
    await _lose_the_owner(servers)

"""Several workers on one port: requests spread, a worker that dies, limits in sum, the drain.

One server for all tests of this file, which run in order: the last one stops it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.conformance.test_tool_search import tool_call
from tests.e2e.server import Server, serving
from tests.harness import ServerSetup, official_client, scene
from tests.sandbox.real_sandboxes import sandbox

WAIT_S = 60
WORDS = " ".join(f"w{number}" for number in range(40))
SETTINGS = """workers = 2
drain_s = 20
lease_s = 1
max_concurrent_requests = 45
max_queued_requests = 1
file_search.embeddings = "off"
sandbox.kind = "auto"
"""
MODELS = f"""[models.fast]
engine = "scripted"
source = "Hello there."
[models.slow]
engine = "scripted"
source = "{WORDS}"
[models.slow.template_kwargs]
wait_s = 0.05
[models.code]
engine = "replay"
source = "scenes.toml"
"""
#: What the user says → the code that the model writes then.
CODE = {
    "begin": "x = 41; open('/mnt/data/a.txt', 'w').write('kept'); x",
    "continue": "open('/mnt/data/a.txt').read() * 2, x + 1",
    "hang": "import time; time.sleep(3600)",
    "anew": "'again'",
}
TOOL: Any = {"type": "code_interpreter", "container": {"type": "auto"}}


@pytest.fixture(scope="module")
def server_setup(server_folder: Path) -> ServerSetup:
    calls = {said: tool_call("python", {"input": code}) for said, code in CODE.items()}
    scenes = "".join(scene(said, call, "Done.") for said, call in calls.items())
    (server_folder / "scenes.toml").write_text(scenes)
    return ServerSetup(settings=SETTINGS, model=MODELS)


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S, limits=limits) as made:
        yield made


def processes(server: Server) -> dict[str, int]:
    """Return the ids of the supervisor's child processes, by their names."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = {}
    for child in children:
        with suppress(OSError):
            arguments = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            found[arguments[-2]] = int(child)
    return found


def workers(server: Server) -> list[int]:
    """Return the process ids of the workers."""
    return [pid for name, pid in processes(server).items() if name.startswith("worker ")]


def connections(pid: int, port: int) -> int:
    """Return how many connections to ``port`` a process has accepted."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(link))
        except OSError:
            continue
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    local = f"0100007F:{port:04X}"
    return sum(
        row[1] == local and row[3] == "01" and f"socket:[{row[9]}]" in inodes for row in rows
    )


def port_of(server: Server) -> int:
    return int(server.root.rsplit(":", 1)[1])


async def answer(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    given = await http.post("/responses", json={"input": "Hi", **body})
    assert given.status_code == 200, given.text
    result: dict[str, Any] = given.json()
    return result


async def stream(http: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    """Read a stream to its end."""
    request = {"input": "Hi", "stream": True, **body}
    async with http.stream("POST", "/responses", json=request) as given:
        assert given.status_code == 200, await given.aread()
        return [json.loads(line[6:]) async for line in given.aiter_lines() if line[:7] == "data: {"]


def text_of(response: dict[str, Any]) -> str:
    return str(response["output"][0]["content"][0]["text"])


async def test_parallel_requests_spread_over_the_workers(
    server: Server, http: httpx.AsyncClient
) -> None:
    streams = [asyncio.create_task(stream(http, model="slow")) for _ in range(40)]
    async with asyncio.timeout(WAIT_S):
        while server.running() < 40:
            await asyncio.sleep(0.05)
    counts = [connections(pid, port_of(server)) for pid in workers(server)]
    assert len(counts) == 2 and min(counts) >= 5 and sum(counts) >= 40
    for events in await asyncio.gather(*streams):
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert text_of(events[-1]["response"]) == WORDS


async def test_what_one_worker_stores_others_read(http: httpx.AsyncClient) -> None:
    previous = None
    for _ in range(6):  # each over a new connection
        response = await answer(http, model="fast", previous_response_id=previous)
        previous = response["id"]
        found = (await http.get(f"/responses/{previous}")).json()
        assert text_of(found) == "Hello there."


async def test_every_worker_uses_each_container(http: httpx.AsyncClient) -> None:
    await sandbox()  # or the test is skipped
    created = [(await http.post("/containers", json={"name": "x"})).json() for _ in range(4)]
    for number in range(8):  # each over a new connection
        url = f"/containers/{created[number % 4]['id']}"
        added = await http.post(f"{url}/files", files={"file": ("a.bin", bytes([number, 255]))})
        assert added.status_code == 200, added.text
        content = await http.get(f"{url}/files/{added.json()['id']}/content")
        assert content.content == bytes([number, 255])
        listed = (await http.get("/containers", params={"order": "asc"})).json()["data"]
        assert [each["id"] for each in listed] == [each["id"] for each in created]
    for each in created:
        assert (await http.delete(f"/containers/{each['id']}")).status_code == 200
    assert (await http.get("/containers")).json()["data"] == []


async def test_limits_and_metrics_are_those_of_all_workers(
    server: Server, http: httpx.AsyncClient
) -> None:
    before = completed(server)
    given = await asyncio.gather(
        *(http.post("/responses", json={"model": "slow", "input": "Hi"}) for _ in range(60))
    )
    codes = [each.status_code for each in given]
    assert sorted(set(codes)) == [200, 429]
    assert 45 <= codes.count(200) <= 46
    assert completed(server) == before + codes.count(200)


def completed(server: Server) -> int:
    found = re.search(
        r'^antiphon_requests_total\{model="slow",status="completed"\} (\d+)',
        server.get("/metrics"),
        re.M,
    )
    return int(found[1]) if found is not None else 0


async def test_a_worker_that_dies_loses_its_foreground_requests_only(
    server: Server, http: httpx.AsyncClient
) -> None:
    background = [(await answer(http, model="slow", background=True))["id"] for _ in range(8)]
    streams = [asyncio.create_task(stream(http, model="slow")) for _ in range(12)]
    before = workers(server)
    async with asyncio.timeout(WAIT_S):
        while server.running() < 12:
            await asyncio.sleep(0.05)
    victim = max(before, key=lambda pid: connections(pid, port_of(server)))
    lost = connections(victim, port_of(server))
    os.kill(victim, signal.SIGKILL)
    ends = await asyncio.gather(*streams, return_exceptions=True)
    broken = [end for end in ends if isinstance(end, BaseException)]
    assert all(isinstance(end, httpx.HTTPError) for end in broken)
    assert 0 < len(broken) <= lost
    for end in ends:
        if not isinstance(end, BaseException):
            assert text_of(end[-1]["response"]) == WORDS
    async with asyncio.timeout(WAIT_S):
        for response_id in background:
            response = {"status": "queued"}
            while response["status"] in ("queued", "in_progress"):
                await asyncio.sleep(0.1)
                response = (await http.get(f"/responses/{response_id}")).json()
            assert response["status"] == "completed", response
            assert text_of(response) == WORDS
            events = [
                json.loads(line[6:])
                for line in (await http.get(f"/responses/{response_id}?stream=true")).text.split(
                    "\n"
                )
                if line[:7] == "data: {"
            ]
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
        while len(workers(server)) < 2 or victim in workers(server):
            await asyncio.sleep(0.1)
        for _ in range(8):  # also those that the kernel gives to the new worker
            await answer(http, model="fast")
        states = health(server)
        while any(each["status"] != "running" for each in states):
            await asyncio.sleep(0.1)
            states = await asyncio.to_thread(health, server)
    assert sorted(each["name"] for each in states) == [
        "containers",
        "host",
        "worker 1",
        "worker 2",
    ]
    assert sorted(each["restarts"] for each in states) == [0, 0, 0, 1]


@pytest.mark.requirement("API-CONTAINERS-OUTLIVE-WORKERS")
async def test_container_outlives_the_worker_that_made_it(server: Server) -> None:
    await sandbox()  # or the test is skipped
    async with asyncio.timeout(3 * WAIT_S), official_client(server.url) as one:
        first = await run_code(one, "begin")
        maker = next(each for each in workers(server) if connections(each, port_of(server)))
        await kill(server, maker)
        for _ in range(4):
            async with official_client(server.url) as two:  # a new connection
                later = await run_code(two, "continue", first.id)
                assert later.output[0].container_id == first.output[0].container_id
                assert later.output[0].outputs[0].logs == "('keptkept', 42)\n"


@pytest.mark.requirement("API-CONTAINERS-OUTLIVE-WORKERS")
async def test_containers_expire_with_their_process(server: Server) -> None:
    await sandbox()  # or the test is skipped
    async with asyncio.timeout(3 * WAIT_S), official_client(server.url) as client:
        first = await run_code(client, "begin")
        container_id = first.output[0].container_id
        stream = await client.responses.create(
            model="code", input="hang", previous_response_id=first.id, tools=[TOOL], stream=True
        )
        async for event in stream:
            if event.type == "response.code_interpreter_call.interpreting":
                await kill(server, processes(server)["containers"])
        assert event.type == "response.completed"
        lost = event.response.output[0]
        assert lost.status == "failed" and lost.container_id == container_id
        assert (await client.containers.retrieve(container_id)).status == "expired"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.containers.files.list(container_id)
        assert refused.value.code == "container_expired"
        anew = await run_code(client, "anew", first.id)
        assert anew.output[0].container_id != container_id
        assert anew.output[0].outputs[0].logs == "'again'\n"


async def run_code(client: openai.AsyncOpenAI, said: str, previous: str | None = None) -> Any:
    response = await client.responses.create(
        model="code",
        input=said,
        tools=[TOOL],
        include=["code_interpreter_call.outputs"],
        **({} if previous is None else {"previous_response_id": previous}),
    )
    assert response.status == "completed", response
    return response


async def kill(server: Server, pid: int) -> None:
    """Kill a child process of the supervisor and wait until it runs again."""
    before = sum(each["restarts"] for each in health(server))
    os.kill(pid, signal.SIGKILL)
    while True:
        with suppress(OSError):  # a connection to the dead worker waits for its successor
            found = await asyncio.to_thread(health, server)
            is_restarted = sum(each["restarts"] for each in found) > before
            if is_restarted and all(each["status"] == "running" for each in found):
                return
        await asyncio.sleep(0.05)


def health(server: Server) -> list[dict[str, Any]]:
    """Return the states of the processes."""
    found: list[dict[str, Any]] = json.loads(server.get("/health"))["processes"]
    return found


async def test_hangup_reloads_all_workers_under_streams(
    server: Server, server_folder: Path, http: httpx.AsyncClient
) -> None:
    before = workers(server)
    streams = [asyncio.create_task(stream(http, model="slow")) for _ in range(6)]
    async with asyncio.timeout(WAIT_S):
        while server.running() < 6:
            await asyncio.sleep(0.05)
        file = server_folder / "antiphon.toml"
        file.write_text(f'{file.read_text()}\n[models.new]\nengine = "scripted"\nsource = "New."\n')
        server.process.send_signal(signal.SIGHUP)
        found = 0
        while found < 10:  # each over a new connection, so of both workers
            given = await http.post("/responses", json={"model": "new", "input": "Hi"})
            found = found + 1 if given.status_code == 200 else 0
            await asyncio.sleep(0.02)
        for events in await asyncio.gather(*streams):
            assert text_of(events[-1]["response"]) == WORDS
    assert workers(server) == before


def test_server_whose_supervisor_was_killed_can_be_started_again_at_once(tmp_path: Path) -> None:
    """Its processes die with it, so they hold neither the port nor the store."""
    settings = 'workers = 2\nfile_search.embeddings = "off"\n'
    model = '[models.fast]\nengine = "scripted"\nsource = "Hello there."\n'
    environment: dict[str, str] = {}
    for _ in range(4):
        with serving(tmp_path, settings, model=model, environment=environment) as server:
            assert "fast" in server.get("/v1/models")
            environment = {"ANTIPHON_PORT": server.root.rpartition(":")[2]}
            server.kill()


async def test_stop_drains_all_workers(server: Server, http: httpx.AsyncClient) -> None:
    streams = [asyncio.create_task(stream(http, model="slow")) for _ in range(10)]
    async with asyncio.timeout(WAIT_S):
        while server.running() < 10:
            await asyncio.sleep(0.05)
        server.process.terminate()
        for events in await asyncio.gather(*streams):
            assert text_of(events[-1]["response"]) == WORDS
        assert await asyncio.to_thread(server.process.wait, WAIT_S) == 0

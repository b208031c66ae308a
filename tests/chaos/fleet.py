"""Kill the engines of a fleet and the servers in front of it while clients use them.

``python -m tests.chaos.fleet MINUTES [SEED]``: three servers over one PostgreSQL with pgvector,
files in an S3 server, and a model on two llama-servers behind vllm-router, or given as a list of
URLs where no router is installed (``VLLM_ROUTER`` names its program). Every 20 seconds an engine is
killed and started again, every two minutes a server. No response may fail, except that a foreground
response is lost with its server; files, vector stores and conversations must keep what they hold.
The exit status is 1 if that does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
from moto.server import ThreadedMotoServer

from bench.fleet_processes import (
    QUICK_CHECKS,
    ROUTERS,
    WORDS,
    Engine,
    router_program,
    running_engines,
    running_router,
)
from tests.real.postgres import postgres

from .clients import Clients, Violation
from .place import Place, print_counts, wait_for_runs

_SERVERS, _CLIENTS, _TURNS = 3, 8, 6
#: Seconds between two deaths of engines and of servers, and those that an engine is dead.
_ENGINE_S, _SERVER_S, _DEAD_S = 20.0, 120.0, 3.0
#: Seconds in which everything has to end when nothing is killed any more.
_REST_S = 240.0
#: So that an engine is often killed in the middle of a reply.
_LONG = {"temperature": 0, "ignore_eos": True, "max_output_tokens": 400}


class _FleetClients(Clients):
    """Clients that also hold conversations, and store and search files."""

    def __init__(self, places: Sequence[Place], random: Random) -> None:
        super().__init__(
            lambda: [place.url for place in places], {"fleet": None}, random, fields=_LONG
        )
        #: Prompt tokens that could come from the cache of an engine, and those that did.
        self.reusable = self.reused = 0

    async def converse(self) -> None:
        """Hold a conversation by ``previous_response_id``, each turn at any server."""
        previous, known = None, 0
        for _ in range(_TURNS):
            body = {
                "model": "fleet",
                "input": self._sentence(12),
                "previous_response_id": previous,
                "temperature": 0,
                "max_output_tokens": 16,
            }
            response = await self._call("POST", "/responses", json=body)
            if await self._retrieve(response["id"]) != response:
                raise Violation(f"{response['id']} is not stored as it was answered")
            usage = response["usage"]
            if previous is not None:
                self.reusable += known
                self.reused += min(known, usage["input_tokens_details"]["cached_tokens"])
            previous, known = response["id"], usage["input_tokens"]
            self.counts["turns"] += 1

    async def store_file(self) -> None:
        """Store a file, read it, and find it by its contents."""
        text = ". ".join(self._sentence(9) for _ in range(40))
        upload: dict[str, Any] = {
            "files": {"file": ("words.txt", text.encode())},
            "data": {"purpose": "user_data"},
        }
        file = await self._call("POST", "/files", **upload)
        content = await self._request("GET", f"/files/{file['id']}/content")
        if content is None or content.text != text:
            raise Violation(f"{file['id']} has other contents")
        store = await self._call("POST", "/vector_stores", json={"file_ids": [file["id"]]})
        path = f"/vector_stores/{store['id']}"
        async with asyncio.timeout(_REST_S):
            while (found := await self._call("GET", path))["status"] != "completed":
                await asyncio.sleep(0.5)
        if found["file_counts"]["completed"] != 1:
            raise Violation(f"{store['id']} has {found['file_counts']}")
        query = {"query": text.split(". ")[self._random.randrange(40)]}
        hits = (await self._call("POST", f"{path}/search", json=query))["data"]
        if not hits or hits[0]["file_id"] != file["id"]:
            raise Violation(f"{store['id']} does not find what it holds")
        await self._call("DELETE", path)
        self.counts["files"] += 1

    def _sentence(self, words: int) -> str:
        return " ".join(self._random.choices(WORDS, k=words))

    async def _call(self, method: str, path: str, **fields: Any) -> dict[str, Any]:
        answer = await self._request(method, path, **fields)
        assert answer is not None
        if answer.status_code == 404 and method == "DELETE":
            return {}  # the answer to the first attempt was lost
        if answer.status_code != 200:
            raise Violation(f"{method} {path}: {answer.status_code} {answer.text}")
        found: dict[str, Any] = answer.json()
        return found


class _Faults:
    """Deaths of engines and servers. ``interrupted``: responses in progress at deaths of
    engines."""

    def __init__(self, random: Random, engines: Sequence[Engine], places: Sequence[Place]) -> None:
        self._random = random
        self._engines = engines
        self._places = places
        self.interrupted = 0
        self.counts = Counter[str]()

    async def kill_engines(self, end: float) -> None:
        """Kill an engine now and then until ``end``, in seconds of ``time.monotonic``."""
        while time.monotonic() + _ENGINE_S < end:
            await asyncio.sleep(_ENGINE_S - _DEAD_S)
            self.interrupted += await self._in_progress()
            engine = self._random.choice(self._engines)
            await asyncio.to_thread(engine.kill)
            self.counts["engines killed"] += 1
            await asyncio.sleep(_DEAD_S)
            await asyncio.to_thread(engine.start)

    async def kill_servers(self, end: float) -> None:
        """Kill a server now and then until ``end``, in seconds of ``time.monotonic``."""
        while time.monotonic() + _SERVER_S < end:
            await asyncio.sleep(_SERVER_S)
            place = self._random.choice(self._places)
            await asyncio.to_thread(place.kill)
            self.counts["servers killed"] += 1
            await asyncio.to_thread(place.start)

    async def _in_progress(self) -> int:
        servers = [place.server for place in self._places if place.server is not None]
        return sum([await asyncio.to_thread(server.running) for server in servers])


async def _use(clients: _FleetClients, random: Random, end: float) -> None:
    kinds = (clients.background, clients.foreground, clients.converse, clients.store_file)
    while time.monotonic() < end:
        await random.choices(kinds, weights=(5, 5, 2, 1))[0]()


async def _run(
    minutes: float, random: Random, engines: Sequence[Engine], places: Sequence[Place], url: str
) -> None:
    clients = _FleetClients(places, random)
    faults = _Faults(random, engines, places)
    try:
        for place in places:
            await asyncio.to_thread(place.start)
        end = time.monotonic() + 60 * minutes
        async with asyncio.timeout(60 * minutes + _REST_S), asyncio.TaskGroup() as group:
            for _ in range(_CLIENTS):
                group.create_task(_use(clients, random, end))
            group.create_task(faults.kill_engines(end))
            group.create_task(faults.kill_servers(end))
        await wait_for_runs(url, _REST_S)
    finally:
        for place in places:
            await asyncio.to_thread(place.kill)
        await clients.close()
        print_counts(faults=faults.counts, clients=clients.counts)
        share = clients.reused / max(1, clients.reusable)
        print(f"in progress when an engine was killed: {faults.interrupted} responses")
        print(f"reusable prompt tokens from a cache: {share:.1%}")


@contextmanager
def _s3() -> Iterator[str]:
    """Start an S3 server with a bucket and yield the settings that store files there."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        httpx.put(f"http://{host}:{port}/files").raise_for_status()
        yield (
            'files = "s3://files/fleet"\n'
            f'files_options = {{ endpoint = "http://{host}:{port}", region = "us-east-1",'
            ' access_key_id = "id", secret_access_key = "secret" }'
        )
    finally:
        server.stop()


def _model(opened: ExitStack, engines: Sequence[Engine]) -> str:
    """Start a router, if one is installed, and return the settings of the model behind it."""
    urls = [engine.url for engine in engines]
    row = ROUTERS["vllm-router"]
    if router_program("vllm-router") is None:
        print("vllm-router is not installed: the model has a list of URLs")
        source = json.dumps([f"{url}/v1" for url in urls])
        return f"[models.fleet]\nsource = {source}\ncontext_size = 1024\n{row.engine}\n"
    url = opened.enter_context(running_router("vllm-router", urls, *QUICK_CHECKS))
    return (
        f'[models.fleet]\nsource = "{url}/v1"\nrouter = "vllm-router"\ncontext_size = 1024\n'
        f"{row.engine}\n"
    )


def main(arguments: list[str]) -> int:
    """Run the command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.fleet")
    parser.add_argument("minutes", nargs="?", type=float, default=5.0)
    parser.add_argument("seed", nargs="?", type=int, default=int(time.time()))
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-fleet-")))
        database = opened.enter_context(postgres())
        url = asyncio.run(database.create_migrated_database())
        engines = opened.enter_context(running_engines())
        settings = f'vectors = "pgvector"\n{opened.enter_context(_s3())}'
        model = _model(opened, engines)
        places = [
            Place(folder / f"s{n}", url, model, folder / f"s{n}.log", settings=settings)
            for n in range(_SERVERS)
        ]
        try:
            asyncio.run(_run(options.minutes, Random(options.seed), engines, places, url))
        except BaseExceptionGroup as group:
            for error in group.exceptions:
                print(f"{type(error).__name__}: {error}")
            return 1
    print("all invariants hold")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

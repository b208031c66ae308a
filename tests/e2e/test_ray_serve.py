"""Ray Serve runs the API for real: replicas come and go, are replaced and killed under load.

``make ray`` runs this in a network namespace with loopback alone, since Ray listens on all
interfaces.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import websockets

from bench.ray_cluster import Cluster, running_cluster
from tests.offline import has_only_loopback
from tests.real.postgres import Postgres
from tests.upstream.fakes import Answer, chunks, fake, json_answer

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray Serve is not installed: make ray"),
]

#: Limit of everything that is waited for, in seconds.
WAIT_S = 300
#: What the upstream writes, the second part when a test releases it.
TEXT = ("Once upon", " a time.")
#: What a scripted model takes 20 seconds to write.
STORY = " ".join(f"word{number}" for number in range(400))
SETTINGS = """store = "{store}"
sandbox.kind = "off"
lease_s = 1.0
[models.held]
source = "{upstream}/v1"
engine = "chat_completions"
aliases = ["{version}"]
[models.story]
engine = "scripted"
source = "{story}"
template_kwargs = {{ wait_s = 0.05 }}
[models.short]
engine = "scripted"
source = "A short reply."
template_kwargs = {{ wait_s = 0.05 }}
"""


@pytest.fixture(scope="module", params=["own proxy", "haproxy"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if not has_only_loopback():
        pytest.fail("Ray listens on all interfaces: `make ray` runs this where there is only one")
    with running_cluster(haproxy=request.param == "haproxy") as running:
        yield running


class Api:
    """The API on the cluster. ``release``: lets the model ``held`` finish its replies."""

    def __init__(self, cluster: Cluster, folder: Path, store: str, upstream: str) -> None:
        self.cluster = cluster
        self.release = asyncio.Event()
        self.client = openai.AsyncOpenAI(
            base_url=f"{cluster.url}/v1", api_key="none", max_retries=0, timeout=WAIT_S
        )
        self._folder = folder
        self._values = {"store": store, "upstream": upstream, "story": STORY}
        self._is_deployed = False

    async def deploy(
        self, version: str, *, options: Mapping[str, Any] = {}, **arguments: Any
    ) -> None:
        """Deploy a version and wait until it answers. ``options``: see ``Cluster.deploy``."""
        file = self._folder / f"{version}.toml"
        file.write_text(SETTINGS.format(version=version, **self._values))
        arguments = {"config": str(file), **arguments}
        # Each test has an application of its own, so no replicas of earlier ones answer.
        name = self._folder.name
        await asyncio.to_thread(self.cluster.deploy, arguments, name=name, **options)
        async with asyncio.timeout(WAIT_S):
            while not await self._answers(version):
                await asyncio.sleep(0.2)
        self._is_deployed = True

    async def _answers(self, version: str) -> bool:
        try:
            await self.client.models.retrieve(version)
        except openai.NotFoundError:
            return False
        except openai.APIError:
            if self._is_deployed:
                raise
            return False
        return True

    async def has_replicas(self, count: int) -> list[int]:
        """Wait until so many replicas run, and return their processes."""
        async with asyncio.timeout(WAIT_S):
            while len(pids := await asyncio.to_thread(self.cluster.replicas)) != count:
                await asyncio.sleep(0.5)
        return pids

    async def uses_two_replicas(self) -> Any:
        """Wait until requests reach a second replica, which may be later than it runs. Returns a
        stream that was begun at the first one."""
        stream = await self.begin()
        async with asyncio.timeout(WAIT_S), httpx.AsyncClient(timeout=WAIT_S) as client:
            while await running_requests(client, f"{self.cluster.url}/metrics"):
                await asyncio.sleep(0.2)
        return stream

    async def begin(self, model: str = "held", **headers: str) -> Any:
        """Request a stream and read it to its first text."""
        stream = await self.client.responses.create(
            model=model, input="Hi", stream=True, extra_headers=headers
        )
        while (await anext(stream)).type != "response.output_text.delta":
            pass
        return stream

    async def begin_many(self, count: int, **headers: str) -> list[Any]:
        """Have ``count`` streams open at the same time."""
        async with asyncio.timeout(WAIT_S):
            return await asyncio.gather(*(self.begin(**headers) for _ in range(count)))

    @asynccontextmanager
    async def load(self, count: int) -> AsyncIterator[list[str]]:
        """Keep ``count`` clients busy with short replies, and yield these. Raises
        ``ExceptionGroup`` if one fails."""
        texts: list[str] = []
        is_over = False

        async def repeat() -> None:
            while not is_over:
                texts.append(await finish(await self.begin("short")))

        async with asyncio.TaskGroup() as clients:
            for _ in range(count):
                clients.create_task(repeat())
            yield texts
            is_over = True


async def running_requests(client: httpx.AsyncClient, url: str, **headers: str) -> int:
    """The requests in progress at the replica that answers."""
    metrics = (await client.get(url, headers=headers)).raise_for_status().text
    found = re.search(r"^antiphon_num_requests_running (\d+)", metrics, re.M)
    assert found is not None, metrics
    return int(found[1])


async def finish(stream: Any) -> str:
    """Read a stream to its end and return the whole text."""
    async with asyncio.timeout(WAIT_S):
        events = [event async for event in stream]
    assert events and events[-1].type == "response.completed", events[-1:]
    return str(events[-1].response.output_text)


@pytest.fixture
async def api(cluster: Cluster, database: Postgres, tmp_path: Path) -> AsyncIterator[Api]:
    pieces: list[Any] = chunks(*({"content": part} for part in TEXT))
    models = json_answer({"data": [{"id": "held", "object": "model", "owned_by": "test"}]})
    answer = Answer(pieces)
    async with fake(v1__models=models, v1__chat__completions=answer) as upstream:
        api = Api(cluster, tmp_path, await database.create_migrated_database(), upstream.url)
        pieces.insert(1, api.release)
        async with api.client:
            yield api
            api.release.set()


async def test_load_adds_a_replica_and_its_end_removes_it(api: Api) -> None:
    scaling = {"max_replicas": 2, "target_requests": 4}
    await api.deploy("scaled", upscale_delay_s=1, downscale_delay_s=1, **scaling)
    await api.has_replicas(1)
    async with api.load(2) as texts:
        streams = await api.begin_many(10)
        await api.has_replicas(2)
        streams += await api.begin_many(10)
        api.release.set()
        assert [await finish(stream) for stream in streams] == ["".join(TEXT)] * 20
        await api.has_replicas(1)
    assert set(texts) == {"A short reply."}


async def test_redeployment_breaks_no_stream(api: Api) -> None:
    await api.deploy("old")
    streams = await api.begin_many(20)
    async with (
        websockets.connect(f"{api.cluster.url.replace('http', 'ws')}/v1/responses") as socket,
        api.load(2) as texts,
    ):
        await socket.send(json.dumps({"type": "response.create", "model": "held", "input": "Hi"}))
        frames = aiter(socket)
        while json.loads(await anext(frames))["type"] != "response.output_text.delta":
            pass
        await api.deploy("new")
        with pytest.raises(openai.NotFoundError):
            await api.client.models.retrieve("old")
        api.release.set()
        assert [await finish(stream) for stream in streams] == ["".join(TEXT)] * 20
        async with asyncio.timeout(WAIT_S):
            while json.loads(await anext(frames))["type"] != "response.completed":
                pass
    assert set(texts) == {"A short reply."}


class Follower:
    """Follows a background run to its end. ``resumed``: how often its connection broke."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client
        self.events: list[Any] = []
        self.resumed = 0
        self.has_begun = asyncio.Event()

    async def follow(self) -> None:
        body: dict[str, Any] = {"model": "story", "input": "Hi", "background": True, "stream": True}
        stream = await self._client.responses.create(**body)
        while not await self._read(stream):
            self.resumed += 1
            first, last = self.events[0], self.events[-1]
            stream = await self._client.responses.retrieve(
                first.response.id, stream=True, starting_after=last.sequence_number
            )

    async def _read(self, stream: Any) -> bool:
        try:
            async for event in stream:
                if event.type != "keepalive":
                    self.events.append(event)
                if event.type == "response.output_text.delta":
                    self.has_begun.set()
        except (openai.APIError, httpx.HTTPError):
            return False
        assert self.events[-1].type == "response.completed", self.events[-1]
        return True


async def test_death_of_a_replica_ends_its_streams_only(api: Api) -> None:
    await api.deploy("two", min_replicas=2, max_replicas=2)
    victim, _ = await api.has_replicas(2)
    streams = [await api.uses_two_replicas()]
    followers = [Follower(api.client) for _ in range(20)]
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as following:
        for follower in followers:
            following.create_task(follower.follow())
        for follower in followers:
            await follower.has_begun.wait()
        streams += await api.begin_many(19)
        os.kill(victim, signal.SIGKILL)
        broken = (openai.APIError, httpx.HTTPError)
        ends = [asyncio.create_task(finish(stream)) for stream in streams]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert await finish(await api.begin("short")) == "A short reply."
        api.release.set()
        results = await asyncio.gather(*ends, return_exceptions=True)
    lost = [each for each in results if isinstance(each, broken)]
    assert 0 < len(lost) < 20
    assert [each for each in results if each not in lost] == ["".join(TEXT)] * (20 - len(lost))
    assert sum(follower.resumed for follower in followers) > 0
    for follower in followers:
        numbers = [event.sequence_number for event in follower.events]
        assert numbers == list(range(len(numbers)))
        assert follower.events[-1].response.output_text == STORY


async def test_header_keeps_a_session_at_its_replica(api: Api) -> None:
    if api.cluster.has_haproxy:
        pytest.skip("HAProxy takes the place of Serve's routers")
    router = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"
    # Otherwise requests that the replica does not accept go to the next one.
    strict = {"request_router_class": router, "request_router_kwargs": {"num_fallback_replicas": 0}}
    options = {"request_router_config": strict}
    await api.deploy("sessions", min_replicas=2, max_replicas=2, options=options)
    await api.has_replicas(2)
    async with httpx.AsyncClient(base_url=api.cluster.url, timeout=WAIT_S) as client:

        async def running(number: int) -> int:
            """The requests in progress at the replica to which a session belongs."""
            session = {"x-session-id": f"session {number}"}
            return await running_requests(client, "/metrics", **session)

        streams = await api.begin_many(1)
        # The proxy hears of the second replica somewhat later than we do.
        async with asyncio.timeout(WAIT_S):
            while {await running(number) for number in range(32)} != {0, 1}:
                await asyncio.sleep(0.2)
        before = await running(0)
        streams += await api.begin_many(6, **{"x-session-id": "session 0"})
        assert [await running(0) for _ in range(4)] == [before + 6] * 4
        assert {await running(number) for number in range(32)} == {before + 6, 1 - before}
    api.release.set()
    assert [await finish(stream) for stream in streams] == ["".join(TEXT)] * 7

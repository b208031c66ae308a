"""Use a real server for a long time and watch its resources.

``python -m tests.chaos.soak MINUTES``: 64 clients send streams, JSON requests, background responses
with readers, chains, conversations, WebSocket requests, Chat Completions, and streams that they
leave. Memory, open files, threads and the size of the database are sampled every 30 seconds.
Retention bounds what is stored, so all of them have to become flat: the exit status is 1 if one
grows in the second half by more than its share, or if a request fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import httpx
import websockets
from msgspec import Struct

from tests.e2e.server import Server, serving

_CONNECTIONS = 64
_SAMPLE_S = 30.0
#: Seconds after which a request without an answer has failed.
_TIMEOUT_S = 60.0
#: Events that end a request over a WebSocket.
_LAST_EVENTS = ("response.completed", "response.failed", "response.incomplete", "error")
_STORY = " ".join(f"word{number}" for number in range(40))
_MODEL = (
    f'[models.story]\nengine = "scripted"\nsource = "{_STORY}"\n'
    "template_kwargs = {wait_s = 0.01}\n"
)
_SETTINGS = "retention.responses = 2000\nretention.events_s = 60\n"
#: How much of its value each resource may grow in the second half.
LIMITS = {"memory": 0.05, "files": 0.15, "threads": 0.1, "database": 0.1}
_BODY: dict[str, Any] = {"model": "story", "input": "go on"}


class Sample(Struct, frozen=True, kw_only=True):
    """The resources of the server at one time. ``memory`` and ``database`` in bytes."""

    seconds: float
    memory: int
    files: int
    threads: int
    database: int
    requests: int


def growths(samples: Sequence[Sample]) -> dict[str, float]:
    """Return by how much of its value each resource grew in the second half: the mean of the last
    quarter against that of the quarter before."""
    second_half = samples[len(samples) // 2 :]
    middle = max(1, len(second_half) // 2)
    grown = {}
    for name in LIMITS:
        before = statistics.fmean(getattr(sample, name) for sample in second_half[:middle])
        after = statistics.fmean(getattr(sample, name) for sample in second_half[-middle:])
        grown[name] = after / before - 1 if before else 0.0
    return grown


class _Soak:
    """The clients of one server."""

    def __init__(self, server: Server, random: Random) -> None:
        self._server = server
        self._random = random
        self._http = httpx.AsyncClient(
            base_url=server.url, timeout=_TIMEOUT_S, limits=httpx.Limits(max_connections=None)
        )
        self.counts = Counter[str]()

    async def use(self, end: float) -> None:
        """Send requests of all kinds until ``end``."""
        kinds: tuple[Callable[[], Awaitable[None]], ...] = (
            self._plain, self._stream, self._leave, self._background, self._chain,
            self._conversation, self._websocket, self._chat,
        )  # fmt: skip
        while time.monotonic() < end:
            kind = self._random.choice(kinds)
            try:
                await kind()
                self.counts[kind.__name__.strip("_")] += 1
            except (
                httpx.HTTPError,
                OSError,
                AssertionError,
                websockets.WebSocketException,
            ) as error:
                self.counts["failed"] += 1
                print(
                    f"{kind.__name__.strip('_')} failed: {type(error).__name__}: {error}",
                    flush=True,
                )
                await asyncio.sleep(1)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _post(self, path: str = "/responses", **fields: Any) -> Any:
        answer = await self._http.post(path, json={**_BODY, **fields})
        answer.raise_for_status()
        return answer.json()

    async def _plain(self) -> None:
        response = await self._post()
        assert response["status"] == "completed"

    async def _stream(self) -> None:
        lines = await self._read({**_BODY, "stream": True})
        assert any("response.completed" in line for line in lines[-4:])

    async def _leave(self) -> None:
        """Leave a stream in its middle."""
        await self._read({**_BODY, "stream": True}, leave_after=30)

    async def _read(self, body: dict[str, Any], leave_after: int = 10**9) -> list[str]:
        lines: list[str] = []
        async with self._http.stream("POST", "/responses", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                lines.append(line)
                if len(lines) >= leave_after:
                    break
        return lines

    async def _background(self) -> None:
        created = await self._post(background=True)
        path = f"/responses/{created['id']}"
        async with self._http.stream("GET", path, params={"stream": "true"}) as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_lines():
                pass
        assert (await self._http.get(path)).json()["status"] == "completed"

    async def _chain(self) -> None:
        previous = None
        for _ in range(4):
            fields: dict[str, Any] = {} if previous is None else {"previous_response_id": previous}
            previous = (await self._post(**fields))["id"]
        (await self._http.delete(f"/responses/{previous}")).raise_for_status()

    async def _conversation(self) -> None:
        created = (await self._http.post("/conversations", json={})).json()["id"]
        for _ in range(3):
            await self._post(conversation=created)
        (await self._http.delete(f"/conversations/{created}")).raise_for_status()

    async def _websocket(self) -> None:
        url = self._server.url.replace("http://", "ws://") + "/responses"
        async with websockets.connect(url) as socket:
            for _ in range(2):
                await socket.send(json.dumps({"type": "response.create", **_BODY}))
                async with asyncio.timeout(_TIMEOUT_S):
                    while (kind := json.loads(await socket.recv())["type"]) not in _LAST_EVENTS:
                        pass
                assert kind == "response.completed", kind

    async def _chat(self) -> None:
        body = {"model": "story", "messages": [{"role": "user", "content": "go on"}]}
        (await self._http.post("/chat/completions", json=body)).raise_for_status()


def _sample(server: Server, folder: Path, seconds: float, requests: int) -> Sample:
    process = Path(f"/proc/{server.process.pid}")
    status = dict(
        line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
    )
    return Sample(
        seconds=seconds,
        memory=int(status["VmRSS"].split()[0]) * 1024,
        files=len(list((process / "fd").iterdir())),
        threads=int(status["Threads"]),
        database=sum(path.stat().st_size for path in folder.glob("responses.db*")),
        requests=requests,
    )


def _show(sample: Sample) -> None:
    mib = 1024 * 1024
    print(
        f"{sample.seconds:>7.0f} s {sample.memory / mib:>9.1f} MiB {sample.files:>6} files "
        f"{sample.threads:>4} threads {sample.database / mib:>9.1f} MiB database "
        f"{sample.requests:>8} requests",
        flush=True,
    )


async def _run(server: Server, folder: Path, minutes: float) -> tuple[list[Sample], Counter[str]]:
    soak = _Soak(server, Random(1))
    samples: list[Sample] = []
    begun = time.monotonic()
    end = begun + 60 * minutes
    interval_s = min(_SAMPLE_S, 60 * minutes / 8)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_CONNECTIONS):
                group.create_task(soak.use(end))
            while time.monotonic() < end:
                await asyncio.sleep(interval_s)
                seconds = time.monotonic() - begun
                samples.append(_sample(server, folder, seconds, soak.counts.total()))
                _show(samples[-1])
    finally:
        await soak.close()
    return samples, soak.counts


def _drain(server: Server) -> None:
    assert server.process.stdout is not None
    with contextlib.suppress(ValueError, OSError):
        for line in server.process.stdout:
            print(line, end="", flush=True)


def main(arguments: list[str]) -> int:
    """Run the command. Returns the exit status."""
    minutes = float(arguments[0]) if arguments else 60.0
    with tempfile.TemporaryDirectory(prefix="antiphon-soak-") as name:
        folder = Path(name)
        with serving(folder, _SETTINGS, model=_MODEL) as server:
            threading.Thread(target=_drain, args=(server,), daemon=True).start()
            samples, counts = asyncio.run(_run(server, folder, minutes))
    print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    is_flat = counts["failed"] == 0
    for resource, growth in growths(samples).items():
        verdict = "ok" if growth <= LIMITS[resource] else "GROWS"
        is_flat = is_flat and verdict == "ok"
        print(f"{resource:<9} {growth:+8.1%} (at most {LIMITS[resource]:+.0%}) {verdict}")
    return int(not is_flat)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Large bodies wait for memory, which tenants share: a flood of unfinished bodies neither fills the
memory nor delays the body of another tenant."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import structlog

from antiphon.http.middleware.request_context import (
    RequestContextMiddleware,
    header,
    request_context,
)
from antiphon.http.requests import body as bodies
from antiphon.http.requests import multipart
from antiphon.support.fair_limiter import FairLimiter
from antiphon.tracing.base import Tracer

SIZE = 2**20
PIECE = b"x" * (SIZE // 8)


class Sender:
    """A client whose request arrives in pieces. It stalls before the last one, or disconnects."""

    def __init__(self, *pieces: bytes, stalls: bool = False, **headers: str) -> None:
        self.pieces, self.stalls = list(pieces), stalls
        self.headers = {
            name.replace("_", "-").encode(): value.encode() for name, value in headers.items()
        }
        self.taken_bytes = 0
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if not self.pieces or (self.stalls and len(self.pieces) == 1):
            await self.gone.wait()
            return {"type": "http.disconnect"}
        piece = self.pieces.pop(0)
        self.taken_bytes += len(piece)
        return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}


class Requests:
    """The requests of tenants to an app that reads bodies and then answers when it may."""

    def __init__(self, memory: FairLimiter) -> None:
        self.memory = memory
        self.read: list[bytes] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self._app = RequestContextMiddleware(
            self._route,
            ids=lambda prefix: prefix,
            log=structlog.get_logger(),
            clock=lambda: 0.0,
            count_request=lambda *labels: None,
            tracer=Tracer(),
            body_memory=memory,
        )

    def start(self, tenant: str, *senders: Sender) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._request(tenant, each)) for each in senders]

    async def _request(self, tenant: str, sender: Sender) -> None:
        async def send(message: Any) -> None: ...

        headers = list(sender.headers.items())
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        await self._app({**scope, "tenant": tenant}, sender.receive, send)

    async def _route(self, scope: Any, receive: Any, send: Any) -> None:
        request_context(scope).tenant = scope["tenant"]
        if (header(scope, b"content-type") or b"").startswith(b"multipart"):
            form = await multipart.read_files(scope, receive, file="file", limit=SIZE, max_files=1)
            self.read.append(form.files[0][1])
        else:
            self.read.append(await bodies.read(scope, receive, SIZE))
        await self.answers.wait()


@pytest.fixture
def requests() -> Iterator[Requests]:
    opened = Requests(FairLimiter(4 * SIZE, max_per_tenant=3 * SIZE))
    yield opened
    assert (opened.memory.running, opened.memory.waiting) == (0, 0), "all of it was given back"


def unfinished(count: int, **headers: str) -> list[Sender]:
    return [Sender(*[PIECE] * 8, stalls=True, **headers) for _ in range(count)]


def whole() -> Sender:
    return Sender(*[PIECE] * 8, content_length=str(SIZE))


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def end(tasks: Sequence[asyncio.Task[None]], senders: Sequence[Sender]) -> None:
    for sender in senders:
        sender.gone.set()
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    "headers",
    [
        {"content_length": str(SIZE)},
        {},
        {"content_type": "multipart/form-data; boundary=b", "content_length": str(SIZE)},
    ],
    ids=["declared", "undeclared", "form"],
)
async def test_flood_of_unfinished_bodies_leaves_memory_to_others(
    requests: Requests, headers: dict[str, str]
) -> None:
    flood = unfinished(30, **headers)
    tasks = requests.start("flood", *flood)
    await settle()
    assert requests.memory.running_of("flood") <= 3 * SIZE
    # Those that wait have sent no more than what makes a body of unknown size a large one.
    largest = bodies.SMALL_BYTES + len(PIECE)
    assert sum(each.taken_bytes > largest for each in flood) <= 3
    async with asyncio.timeout(60):
        await asyncio.gather(*requests.start("victim", whole()))
    assert requests.read == [PIECE * 8]
    await end(tasks, flood)


async def test_small_bodies_do_not_wait(requests: Requests) -> None:
    flood = unfinished(4, content_length=str(SIZE))
    tasks = requests.start("flood", *flood)
    await settle()
    assert requests.memory.waiting == 1
    small = Sender(b"{}", content_length="2"), Sender(b"{", b"}")
    async with asyncio.timeout(60):
        await asyncio.gather(*requests.start("flood", *small))
    assert requests.read == [b"{}", b"{}"]
    await end(tasks, flood)


async def test_memory_is_held_until_the_request_ends(requests: Requests) -> None:
    requests.answers.clear()
    tasks = requests.start("a", *[whole() for _ in range(4)])
    await settle()
    assert len(requests.read) == 3 and requests.memory.running == 3 * SIZE
    requests.answers.set()
    await end(tasks, ())
    assert len(requests.read) == 4


async def test_cancelled_and_lost_requests_give_memory_back(requests: Requests) -> None:
    flood = unfinished(5, content_length=str(SIZE))
    tasks = requests.start("a", *flood)
    await settle()
    assert (requests.memory.running, requests.memory.waiting) == (3 * SIZE, 2)
    tasks[0].cancel()
    tasks[4].cancel()  # it waits
    flood[1].gone.set()
    await settle()
    assert (requests.memory.running, requests.memory.waiting) == (2 * SIZE, 0)
    await end(tasks, flood)


async def test_body_that_is_larger_than_the_memory_passes_alone() -> None:
    requests = Requests(FairLimiter(SIZE // 2, max_per_tenant=SIZE // 4))
    async with asyncio.timeout(60):
        await asyncio.gather(*requests.start("a", whole(), whole()))
    assert requests.read == [PIECE * 8] * 2
    assert requests.memory.running == 0


@pytest.mark.parametrize("size", [1000, SIZE - 1])
async def test_compressed_body_holds_what_it_decompresses_to(requests: Requests, size: int) -> None:
    requests.answers.clear()
    packed = gzip.compress(bytes(size))
    sender = Sender(packed, content_length=str(len(packed)), content_encoding="gzip")
    tasks = requests.start("a", sender)
    async with asyncio.timeout(60):
        while not requests.read:
            await asyncio.sleep(0.001)
    assert requests.memory.running == (size if size > bodies.SMALL_BYTES else 0)
    requests.answers.set()
    await end(tasks, ())

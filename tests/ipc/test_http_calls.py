"""Calls over HTTP: signatures, limits, cancellation, and forwarding to a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.errors import InvalidRequest, PeerLost
from antiphon.ipc.client import CallClient
from antiphon.ipc.http_calls import HttpCaller, HttpCalls
from antiphon.ipc.http_endpoint import CALLS_PATH, AnswerCall, HttpCallEndpoint
from antiphon.ipc.messages import MessageKind, encode
from antiphon.ipc.methods import CallableMethods
from antiphon.ipc.server import CallServer
from antiphon.ipc.signatures import CallSigner, content_digest
from tests.conformance.fake_containers import Clock
from tests.retained import retained_bytes
from tests.tools.containers.processes import listening, signer

LIMIT = 1000


class Target:
    """What the tests call."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    async def double(self, number: int) -> int:
        return 2 * number

    async def refuse(self) -> None:
        raise InvalidRequest("Bad.", param="input[1]", code="odd")

    async def count(self, last: int) -> AsyncGenerator[int, None]:
        try:
            for number in range(last):
                yield number
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


@asynccontextmanager
async def connected(find: Mapping[str, AnswerCall]) -> AsyncIterator[tuple[str, HttpCaller]]:
    """Yield the URL of an endpoint and a caller."""
    caller = HttpCaller(signer())
    endpoint = HttpCallEndpoint(signer(), find.get, max_bytes=LIMIT)
    try:
        async with asyncio.timeout(60), listening(endpoint) as url:
            yield url, caller
    finally:
        await caller.close()


async def use(calls: HttpCalls, target: Target) -> None:
    assert await calls.call("double", 21, returns=int) == 42
    with pytest.raises(InvalidRequest) as bad:
        await calls.call("refuse")
    assert (bad.value.param, bad.value.code) == ("input[1]", "odd")
    async with aclosing(calls.stream("count", 3, returns=int)) as numbers:
        assert [await anext(numbers) for _ in range(3)] == [0, 1, 2]
    await target.cancelled.wait()


async def test_calls_streams_and_cancels() -> None:
    target = Target()
    async with connected({"p": CallableMethods(target).answers}) as (url, caller):
        await use(caller.calls("p", url), target)
        with pytest.raises(PeerLost) as unknown:
            await caller.calls("other", url).call("double", 1)
        assert not unknown.value.is_gone
    later = HttpCaller(signer())
    with pytest.raises(PeerLost) as gone:
        await later.calls("p", url).call("double", 1)
    await later.close()
    assert gone.value.is_gone


async def test_calls_are_forwarded_to_another_process(tmp_path: Path) -> None:
    target = Target()
    server = CallServer(lambda: target)
    await server.open(tmp_path / "socket")
    client = CallClient(tmp_path / "socket", on_lost=lambda: PeerLost(is_gone=True))
    async with connected({"p": client.forward}) as (url, caller):
        await use(caller.calls("p", url), target)
        await server.close()
        (tmp_path / "socket").unlink(missing_ok=True)
        client.close()
        with pytest.raises(PeerLost) as gone:
            await caller.calls("p", url).call("double", 1)
        assert gone.value.is_gone
    client.close()


async def test_only_signed_calls_are_answered_and_only_once() -> None:
    clock = Clock()
    async with connected({"p": CallableMethods(Target()).answers}) as (url, _):
        body = encode((MessageKind.CALL, 1, "double", (1,)))
        own = signer(clock=clock)

        async def post(headers: Mapping[str, str], content: bytes = body, owner: str = "p") -> int:
            async with httpx.AsyncClient() as client:
                given = await client.post(
                    f"{url}{CALLS_PATH}{owner}", content=content, headers=headers
                )
                return given.status_code

        def signed(by: CallSigner, content: bytes = body, owner: str = "p") -> dict[str, str]:
            return by.sign(owner, content_digest(content))

        headers = signed(own)
        assert [await post(headers), await post(headers)] == [200, 401]
        assert await post({}) == await post(signed(own), b"other") == 401
        assert await post(signed(own, owner="q")) == 401
        assert await post(signed(signer(b"wrong"))) == 401
        assert await post({**signed(own), "x-antiphon-time": "0"}) == 401
        large = b"x" * (LIMIT + 1)
        assert await post(signed(own, large), large) == 413
        assert await post(signed(own, b"\xc1"), b"\xc1") == 400
        clock.now -= 301
        assert await post(signed(own)) == 401
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{url}{CALLS_PATH}p")).status_code == 401


def test_old_nonces_are_forgotten() -> None:
    clock = Clock()
    one, two = signer(clock=clock), signer(clock=clock)

    def use(times: int) -> int:
        for _ in range(times):
            assert two.check("p", one.sign("p", "d")) == "d"
            clock.now += 100
        return retained_bytes(two)

    assert use(100) < 2 * use(10)


def test_invalid_headers_are_refused() -> None:
    values: list[Any] = ["", "x", "é\udc80"]
    for value in values:
        assert signer().check("p", dict.fromkeys(signer().sign("p", "d"), value)) is None

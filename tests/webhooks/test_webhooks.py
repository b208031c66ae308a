"""Webhooks: signed, repeated until they are taken, kept through deaths, and never sent inwards."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from antiphon.backends.scripted import Scripted
from antiphon.errors import SetupError
from antiphon.runs.background import Lease
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.testing.postgres import Postgres
from antiphon.webhooks import deliver
from antiphon.webhooks.address import Guarded, Refused, check_url, is_public
from antiphon.webhooks.deliver import Deliveries, Sender
from antiphon.webhooks.sign import Secret
from tests.runs.served import service
from tests.runs.test_background import enqueue, followed

SECRETS = tuple("whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))
NOW = 1_795_000_000.0


class Receiver:
    """A server of loopback that answers as it is told, in turn; the last answer stays."""

    def __init__(self, answers: list[int]) -> None:
        self.answers = answers
        self.heard: list[tuple[bytes, dict[str, str]]] = []
        self.taken = asyncio.Event()

    async def _hear(self, request: web.Request) -> web.Response:
        self.heard.append((await request.read(), dict(request.headers)))
        status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if 200 <= status < 300 or status == 410:
            self.taken.set()
        return web.Response(status=status, headers={"location": "http://127.0.0.1:1/"})

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/hook", self._hear)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            yield f"http://127.0.0.1:{port}/hook"
        finally:
            await runner.cleanup()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "postgres":
        database: Postgres = request.getfixturevalue("database")
        made = await open_store(await database.fresh())
    else:
        path = {"memory": "memory:", "sqlite": f"sqlite:{tmp_path}/a.db"}[request.param]
        made = await open_store(path)
    yield made
    await made.close()


def deliveries(store: Store, url: str, now: list[float]) -> Deliveries:
    """Those of a process whose clock stands at ``now[0]``."""
    return Deliveries(
        store.runs,
        Sender.open(url, SECRETS, private=True),
        clock=lambda: now[0],
        chance=lambda: 0.5,
        look_s=0.01,
    )


async def ended(store: Store, status: str = "completed") -> str:
    """A background response that is over; returns its id."""
    served = service(
        Scripted(["one"], wait_s=0 if status == "completed" else 5),
        store,
        webhooks=True,
        lease=Lease(lease_s=0.5, flush_s=0),
    )
    served.start()
    queued = await enqueue(served)
    if status == "cancelled":
        await served.cancel("t", queued.id)
    await followed(served, queued.id)
    await served.drain(0)
    return queued.id


@pytest.mark.requirement("API-WEBHOOKS")
@pytest.mark.parametrize("status", ["completed", "cancelled"])
async def test_an_end_is_told_and_signed(store: Store, status: str) -> None:
    receiver = Receiver([204])
    now = [time.time()]  # the official client refuses what is old by the real clock
    async with asyncio.timeout(20), receiver.listening() as url:
        name = await ended(store, status)
        async with deliveries(store, url, now):
            await receiver.taken.wait()
    ((body, headers),) = receiver.heard
    said = json.loads(body)
    assert (said["object"], said["type"], said["data"]) == (
        "event",
        f"response.{status}",
        {"id": name},
    )
    assert headers["webhook-id"] == said["id"]
    for secret in SECRETS:  # either of them is enough
        with openai.OpenAI(api_key="none", webhook_secret=secret) as client:
            event = client.webhooks.unwrap(body.decode(), headers)
            assert event.type == f"response.{status}"


async def test_what_is_not_taken_is_sent_again(store: Store) -> None:
    receiver, now = Receiver([500, 302, 200]), [NOW]
    async with asyncio.timeout(20), receiver.listening() as url:
        await ended(store)
        async with deliveries(store, url, now):
            while not receiver.heard:
                await asyncio.sleep(0)
            for _ in range(20):
                now[0] += 0.2  # the next is due after five
                await asyncio.sleep(0.002)
            assert len(receiver.heard) == 1, "too early"
            while not receiver.taken.is_set():
                now[0] += deliver.SCHEDULE_S[1]
                await asyncio.sleep(0.002)
            while await store.runs.due(NOW + 1e9, NOW + 1e9, limit=9):
                await asyncio.sleep(0)
    ids = {headers["webhook-id"] for _, headers in receiver.heard}
    assert (len(receiver.heard), len(ids)) == (3, 1)


async def test_who_is_gone_is_left_alone(store: Store) -> None:
    receiver, now = Receiver([410]), [NOW]
    async with asyncio.timeout(20), receiver.listening() as url:
        await ended(store)
        async with deliveries(store, url, now):
            await receiver.taken.wait()
            while await store.runs.due(NOW + 1e9, NOW + 1e9, limit=9):
                await asyncio.sleep(0)
    assert len(receiver.heard) == 1


async def test_a_letter_is_given_to_one_and_kept_until_it_is_settled(store: Store) -> None:
    await ended(store)
    far = NOW + 1e9
    first, second = await asyncio.gather(
        store.runs.due(far, far + 60, limit=9), store.runs.due(far, far + 60, limit=9)
    )
    assert len(first) + len(second) == 1
    assert not await store.runs.due(far + 59, far, limit=9)
    (again,) = await store.runs.due(far + 60, far + 120, limit=9)  # who had it died
    assert again.attempts == 2
    await store.runs.settle(again.id)
    assert not await store.runs.due(far * 2, far, limit=9)


async def test_what_is_in_the_foreground_is_told_to_nobody(store: Store) -> None:
    served = service(Scripted(["one"]), store, webhooks=True)
    await (await served.create("t", _request())).drive()
    assert not await store.runs.due(1e12, 1e12, limit=9)


def _request() -> Any:
    from antiphon.wire.decode import create_response

    return create_response(b'{"model": "scripted", "input": "hi"}')


# --- where it may go -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0",
     "100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1",
     "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "fe80::1%eth0", "nonsense"],
)  # fmt: skip
def test_inner_addresses_are_known(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_outer_addresses_are_known(address: str) -> None:
    assert is_public(address)


class Liar:
    """A resolver for which every name is an inner address, among others."""

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[Any]:
        return [{"host": each, "port": port} for each in ("93.184.215.14", "127.0.0.1")]

    async def close(self) -> None: ...


async def test_a_name_that_means_an_inner_address_is_never_dialled() -> None:
    with pytest.raises(Refused):
        await Guarded(Liar(), private=False).resolve("hook.example", 443)
    sender = Sender.open("https://hook.example/x", SECRETS, resolver=Liar())
    try:
        assert await sender.send("evt_1", b"{}", 1) == 0
    finally:
        await sender.close()


@pytest.mark.parametrize(
    "url",
    ["http://hook.example", "https://127.0.0.1/x", "https://[::1]/", "https://u:p@hook.example",
     "ftp://hook.example", "hook.example", "https:///x"],
)  # fmt: skip
def test_a_url_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(SetupError):
        check_url(url, private=False)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!!", "whsec_YQ==", SECRETS[0][6:]])
def test_a_secret_that_is_none_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(SetupError) as refused:
        Secret(secret)
    assert not secret.removeprefix("whsec_") or secret not in str(refused.value)

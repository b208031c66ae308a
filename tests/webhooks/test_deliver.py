"""Webhooks: signed, repeated until they are taken, and kept through deaths."""

from __future__ import annotations

import asyncio
import builtins
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from structlog.testing import capture_logs

from antiphon.backends.scripted import Script, ScriptedBackend
from antiphon.errors import RunError, SetupError
from antiphon.runs.background.worker import LeaseConfig
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.memory.store import MemoryStore
from antiphon.store.records import WebhookEvent
from antiphon.stream.deltas import Finish, Open, Text
from antiphon.testing import run_check
from antiphon.testing.postgres import Postgres
from antiphon.testing.run_check import batch, begun
from antiphon.webhooks.deliver import SCHEDULE_S, TRYING_S, Deliveries, Sender
from antiphon.wire.items import Message
from antiphon.wire.response import Usage
from tests.runs.background.test_worker import enqueue, followed
from tests.runs.served import create, service

from .receiver import SECRETS, SILENCE, Heard, Receiver, Told

NOW = 1_795_000_000.0

_CUT: Script = (Open(Message(role="assistant", content=())), Text("and"), Finish("length", Usage()))
#: What is said, by how it ends.
SCRIPTS: dict[str, Script] = {
    "completed": "one",
    "incomplete": _CUT,
    "failed": RunError("broken"),
    "cancelled": "two words",
}


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


@asynccontextmanager
async def delivering(
    letters: Told, url: str, now: list[float], *, answer_s: float = 15
) -> AsyncIterator[Deliveries]:
    """As a process whose clock stands at ``now[0]``."""
    sender = Sender.open(url, SECRETS, private=True, answer_s=answer_s)
    made = Deliveries(letters, sender, clock=lambda: now[0], chance=lambda: 0.5, look_s=0.01)
    try:
        async with made:
            yield made
    finally:
        await sender.close()


async def ended(store: Store, status: str = "completed") -> str:
    """A background response that is over; returns its id."""
    served = service(
        ScriptedBackend([SCRIPTS[status]], wait_s=60 if status == "cancelled" else 0),
        store,
        webhooks=True,
        lease=LeaseConfig(lease_s=0.5, flush_s=0),
    )
    served.start()
    queued = await enqueue(served)
    if status == "cancelled":
        await served.cancel("t", queued.id)
    await followed(served, queued.id)
    await served.drain(0)
    return queued.id


async def write(store: Store, name: str) -> None:
    """A letter, as a run that ends leaves it."""
    letter = WebhookEvent(f"evt_{name}", b"{}", NOW)
    await store.runs.end(await begun(store, name), run_check.ended(name), batch(2), webhook=letter)


def check_signed(heard: Heard, name: str, status: str) -> None:
    """Either secret is enough for the official client."""
    for secret in SECRETS:
        with openai.OpenAI(api_key="none", webhook_secret=secret) as client:
            event = client.webhooks.unwrap(heard.body.decode(), heard.headers)
        assert (event.id, event.object, event.type) == (
            heard.headers["webhook-id"],
            "event",
            f"response.{status}",
        )
        assert event.id.startswith("evt_")
        assert event.data.id == name  # type: ignore[union-attr]


@pytest.mark.requirement("API-WEBHOOKS")
@pytest.mark.parametrize("status", SCRIPTS)
async def test_an_end_is_told_and_signed(store: Store, status: str) -> None:
    letters, receiver = Told(store.runs), Receiver(204)
    now = [time.time()]  # the official client refuses what is old by the real clock
    async with receiver.listening():
        name = await ended(store, status)
        async with delivering(letters, receiver.url, now):
            assert await letters.news.get() is None
    heard = receiver.heard.get_nowait()
    assert set(json.loads(heard.body)) == {"id", "object", "created_at", "type", "data"}
    assert heard.headers["Content-Type"] == "application/json"
    check_signed(heard, name, status)
    assert await store.runs.take_due_webhooks(1e12, 1e12, limit=9) == ()


async def test_what_is_not_taken_is_sent_again_each_time_later(store: Store) -> None:
    letters, now = Told(store.runs), [NOW]
    receiver = Receiver(500, 307, 404, 429, 204)
    async with receiver.listening():
        await ended(store)
        async with delivering(letters, receiver.url, now):
            for wait in SCHEDULE_S[:4]:
                due_at = await letters.news.get()
                assert due_at == pytest.approx(now[0] + wait)
                now[0] = due_at
            assert await letters.news.get() is None
    heard = [receiver.heard.get_nowait() for _ in range(5)]
    assert len({each.headers["webhook-id"] for each in heard}) == 1
    assert len({each.headers["webhook-timestamp"] for each in heard}) == 5, "signed anew"
    assert receiver.heard.empty(), "a redirect was followed"


@pytest.mark.requirement("API-WEBHOOKS-AGAIN")
async def test_it_outlives_refusals_silence_and_deaths(tmp_path: Path) -> None:
    """A background run, a receiver that fails twice, and a process that dies in the middle."""
    path, now = f"sqlite:{tmp_path}/a.db", [time.time()]
    receiver = Receiver(500, SILENCE, SILENCE, 200)
    async with receiver.listening():
        store = await open_store(path)
        name, letters = await ended(store), Told(store.runs)
        async with delivering(letters, receiver.url, now, answer_s=1):
            now[0] = await letters.news.get() or 0  # 500
            again = await letters.news.get() or 0  # no answer in time
        await store.close()
        now[0] = again

        store = await open_store(path)
        sender = Sender.open(receiver.url, SECRETS, private=True)
        (due,) = await store.runs.take_due_webhooks(now[0], now[0] + TRYING_S, limit=9)
        assert due.attempts == 3
        dying = asyncio.create_task(sender.send(due.id, due.body, int(now[0])))
        first = [await receiver.heard.get() for _ in range(3)]
        dying.cancel()  # in the middle of a delivery
        await asyncio.wait((dying,))
        await sender.close()
        await store.close()

        store = await open_store(path)
        letters = Told(store.runs)
        assert await store.runs.take_due_webhooks(now[0], now[0], limit=9) == ()
        now[0] += TRYING_S
        async with delivering(letters, receiver.url, now):
            assert await letters.news.get() is None
        await store.close()
    last = receiver.heard.get_nowait()
    assert {each.body for each in first} == {last.body}
    check_signed(last, name, "completed")


async def test_it_is_given_up_in_the_end() -> None:
    store, now, receiver = MemoryStore(), [NOW], Receiver(503)
    letters = Told(store.runs)
    with capture_logs() as logs:
        async with receiver.listening():
            await ended(store)
            async with delivering(letters, receiver.url, now):
                while (due_at := await letters.news.get()) is not None:
                    now[0] = due_at
    assert receiver.count == len(SCHEDULE_S) + 1
    assert now[0] - NOW == pytest.approx(sum(SCHEDULE_S))
    assert [each["event"] for each in logs][-1] == "a webhook was given up"
    assert await store.runs.take_due_webhooks(1e12, 1e12, limit=9) == ()


async def test_who_is_gone_is_left_alone() -> None:
    store, receiver = MemoryStore(), Receiver(410)
    letters = Told(store.runs)
    async with receiver.listening():
        await ended(store)
        async with delivering(letters, receiver.url, [NOW]):
            assert await letters.news.get() is None
    assert receiver.count == 1


async def test_many_processes_tell_it_once(store: Store) -> None:
    letters, receiver = Told(store.runs), Receiver(204)
    async with receiver.listening():
        for name in "abc":
            await write(store, name)
        async with (
            delivering(letters, receiver.url, [NOW]),
            delivering(letters, receiver.url, [NOW]),
        ):
            assert [await letters.news.get() for _ in range(3)] == [None] * 3
    ids = [receiver.heard.get_nowait().headers["webhook-id"] for _ in range(receiver.count)]
    assert len(ids) == len(set(ids)) == 3


async def test_a_stop_sees_what_is_sent_to_its_end_and_tells_what_ended_last() -> None:
    store, receiver = MemoryStore(), Receiver(204)
    letters = Told(store.runs)
    receiver.open.clear()
    async with receiver.listening():
        await write(store, "a")
        async with delivering(letters, receiver.url, [NOW]):
            await receiver.heard.get()
            await write(store, "b")
            asyncio.get_running_loop().call_soon(receiver.open.set)
        assert [letters.news.get_nowait() for _ in range(2)] == [None, None]


async def test_a_store_that_does_not_answer_is_asked_again() -> None:
    store, receiver = MemoryStore(), Receiver(204)
    letters = Told(store.runs)
    letters.broken = [RunError("away"), RuntimeError("a bug")]
    with capture_logs() as logs:
        async with receiver.listening():
            await ended(store)
            async with delivering(letters, receiver.url, [NOW]):
                assert await letters.news.get() is None
    assert [each["event"] for each in logs].count("webhooks could not be looked up") == 2


async def test_logs_have_neither_secrets_nor_bodies() -> None:
    store, receiver, now = MemoryStore(), Receiver(500, 204), [NOW]
    letters = Told(store.runs)
    with capture_logs() as logs:
        async with receiver.listening():
            name = await ended(store)
            async with delivering(letters, receiver.url, now):
                now[0] = await letters.news.get() or 0
                assert await letters.news.get() is None
    ours = [each for each in logs if "webhook" in each]
    assert [(each["event"], each["status"]) for each in ours] == [("a webhook is tried again", 500)]
    for unwanted in (name, receiver.url, "v1,", *SECRETS):
        assert unwanted not in str(ours)


@pytest.mark.parametrize("webhooks", [True, False])
async def test_what_nobody_wants_to_know_is_told_to_nobody(webhooks: bool) -> None:
    store = MemoryStore()
    served = service(
        ScriptedBackend(["one"]), store, webhooks=webhooks, lease=LeaseConfig(flush_s=0)
    )
    await (await create(served)).drive()  # the caller hears the end itself
    if not webhooks:
        served.start()
        await followed(served, (await enqueue(served)).id)
        await served.drain(0)
    assert await store.runs.take_due_webhooks(1e12, 1e12, limit=9) == ()


@pytest.mark.parametrize(("secrets", "said"), [((), "webhook_secrets"), (("whsec_",), "whsec_")])
async def test_without_a_secret_nothing_is_opened(secrets: Sequence[str], said: str) -> None:
    with pytest.raises(SetupError, match=said):
        Sender.open("https://hook.example", secrets)


async def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "aiohttp":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(SetupError, match=r'pip install "antiphon\[webhooks\]"'):
        Sender.open("https://hook.example", SECRETS)

"""Webhook delivery: signatures, retries, crashes."""

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

from antiphon.backends.scripted_backend import Script, ScriptedBackend
from antiphon.errors import RunError, SetupError
from antiphon.runs.background.worker import LeaseConfig
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.records import DueWebhook, RunEnd, WebhookEvent
from antiphon.stream.deltas import Finish, Open, Text
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.store_checks.runs import batch, begin_run, ended_response
from antiphon.webhooks.deliver import (
    DELIVERY_LEASE_S,
    RETRY_DELAYS_S,
    WebhookDeliveries,
    WebhookSender,
    WebhookTarget,
)
from antiphon.wire.items import Message
from antiphon.wire.response import Usage
from tests.runs.background.test_worker import enqueue, followed
from tests.runs.scripted_service import create, make_service

from .receiver import NO_RESPONSE, SECRETS, Delivery, Receiver, RecordingRunStore

NOW = 1_795_000_000.0

_TRUNCATED: Script = (
    Open(Message(role="assistant", content=())),
    Text("and"),
    Finish("length", Usage()),
)
#: Script of the backend by final status.
SCRIPTS: dict[str, Script] = {
    "completed": "one",
    "incomplete": _TRUNCATED,
    "failed": RunError("broken"),
    "cancelled": "two words",
}


@asynccontextmanager
async def delivering(
    run_store: RecordingRunStore, url: str, now: list[float], *, timeout_s: float = 15
) -> AsyncIterator[WebhookDeliveries]:
    """Deliver as a process whose clock is at ``now[0]``."""
    sender = WebhookSender.open(timeout_s=timeout_s)
    target = WebhookTarget.parse(url, SECRETS, private=True)

    async def find_target(due: DueWebhook) -> WebhookTarget:
        return target

    created = WebhookDeliveries(
        run_store, sender, find_target, clock=lambda: now[0], random=lambda: 0.5, poll_s=0.01
    )
    try:
        async with created:
            yield created
    finally:
        await sender.close()


async def end_background_run(store: Store, status: str = "completed") -> str:
    """Run a background response to its end and return its id."""
    service = make_service(
        ScriptedBackend([SCRIPTS[status]], wait_s=60 if status == "cancelled" else 0),
        store,
        webhooks=True,
        lease=LeaseConfig(lease_s=0.5, flush_s=0),
    )
    service.start()
    queued = await enqueue(service)
    if status == "cancelled":
        await service.cancel("t", queued.id)
    await followed(service, queued.id)
    await service.drain(0)
    return queued.id


async def add_webhook(store: Store, name: str) -> None:
    """Store a webhook as a run does at its end."""
    webhook_event = WebhookEvent(f"evt_{name}", b"{}", NOW)
    await store.runs.end(
        await begin_run(store, name),
        RunEnd(stored=ended_response(name), batch=batch(2), webhooks=(webhook_event,)),
    )


def check_signed(deliveries: Delivery, name: str, status: str) -> None:
    """Check that the official client verifies the signature with either secret."""
    for secret in SECRETS:
        with openai.OpenAI(api_key="none", webhook_secret=secret) as client:
            event = client.webhooks.unwrap(deliveries.body.decode(), deliveries.headers)
        assert (event.id, event.object, event.type) == (
            deliveries.headers["webhook-id"],
            "event",
            f"response.{status}",
        )
        assert event.id.startswith("evt_")
        assert event.data.id == name  # type: ignore[union-attr]


@pytest.mark.requirement("API-WEBHOOKS")
@pytest.mark.parametrize("status", SCRIPTS)
async def test_signed_webhook_is_sent_when_a_run_ends(store: Store, status: str) -> None:
    run_store, receiver = RecordingRunStore(store.runs), Receiver(204)
    now = [time.time()]  # the official client refuses what is old by the real clock
    async with receiver.listening():
        name = await end_background_run(store, status)
        async with delivering(run_store, receiver.url, now):
            assert await run_store.outcomes.get() is None
    deliveries = receiver.deliveries.get_nowait()
    assert set(json.loads(deliveries.body)) == {"id", "object", "created_at", "type", "data"}
    assert deliveries.headers["Content-Type"] == "application/json"
    check_signed(deliveries, name, status)
    assert await store.runs.take_due_webhooks(1e12, 1e12, limit=9) == ()


async def test_failed_delivery_is_retried_with_growing_delays(store: Store) -> None:
    run_store, now = RecordingRunStore(store.runs), [NOW]
    receiver = Receiver(500, 307, 404, 429, 204)
    async with receiver.listening():
        await end_background_run(store)
        async with delivering(run_store, receiver.url, now):
            for wait in RETRY_DELAYS_S[:4]:
                due_at = await run_store.outcomes.get()
                assert due_at == pytest.approx(now[0] + wait)
                now[0] = due_at
            assert await run_store.outcomes.get() is None
    deliveries = [receiver.deliveries.get_nowait() for _ in range(5)]
    assert len({each.headers["webhook-id"] for each in deliveries}) == 1
    assert len({each.headers["webhook-timestamp"] for each in deliveries}) == 5, "signed anew"
    assert receiver.deliveries.empty(), "a redirect was followed"


@pytest.mark.requirement("API-WEBHOOKS-AGAIN")
async def test_delivery_survives_errors_timeouts_and_crashes(tmp_path: Path) -> None:
    """The receiver fails twice and a process dies during a delivery."""
    path, now = f"sqlite:{tmp_path}/a.db", [time.time()]
    receiver = Receiver(500, NO_RESPONSE, NO_RESPONSE, 200)
    async with receiver.listening():
        store = await open_store(path)
        name, run_store = await end_background_run(store), RecordingRunStore(store.runs)
        async with delivering(run_store, receiver.url, now, timeout_s=1):
            now[0] = await run_store.outcomes.get() or 0  # 500
            again = await run_store.outcomes.get() or 0  # no answer in time
        await store.close()
        now[0] = again

        store = await open_store(path)
        sender = WebhookSender.open()
        target = WebhookTarget.parse(receiver.url, SECRETS, private=True)
        (due,) = await store.runs.take_due_webhooks(now[0], now[0] + DELIVERY_LEASE_S, limit=9)
        assert due.attempts == 3
        dying = asyncio.create_task(sender.send(target, due.id, due.body, int(now[0])))
        first = [await receiver.deliveries.get() for _ in range(3)]
        dying.cancel()  # in the middle of a delivery
        await asyncio.wait((dying,))
        await sender.close()
        await store.close()

        store = await open_store(path)
        run_store = RecordingRunStore(store.runs)
        assert await store.runs.take_due_webhooks(now[0], now[0], limit=9) == ()
        now[0] += DELIVERY_LEASE_S
        async with delivering(run_store, receiver.url, now):
            assert await run_store.outcomes.get() is None
        await store.close()
    last = receiver.deliveries.get_nowait()
    assert {each.body for each in first} == {last.body}
    check_signed(last, name, "completed")


async def test_webhook_is_dropped_after_the_last_retry() -> None:
    store, now, receiver = MemoryStore(), [NOW], Receiver(503)
    run_store = RecordingRunStore(store.runs)
    with capture_logs() as logs:
        async with receiver.listening():
            await end_background_run(store)
            async with delivering(run_store, receiver.url, now):
                while (due_at := await run_store.outcomes.get()) is not None:
                    now[0] = due_at
    assert receiver.count == len(RETRY_DELAYS_S) + 1
    assert now[0] - NOW == pytest.approx(sum(RETRY_DELAYS_S))
    assert [each["event"] for each in logs][-1] == "webhook dropped"
    assert await store.runs.take_due_webhooks(1e12, 1e12, limit=9) == ()


async def test_status_410_ends_the_delivery() -> None:
    store, receiver = MemoryStore(), Receiver(410)
    run_store = RecordingRunStore(store.runs)
    async with receiver.listening():
        await end_background_run(store)
        async with delivering(run_store, receiver.url, [NOW]):
            assert await run_store.outcomes.get() is None
    assert receiver.count == 1


async def test_several_processes_deliver_each_webhook_once(store: Store) -> None:
    run_store, receiver = RecordingRunStore(store.runs), Receiver(204)
    async with receiver.listening():
        for name in "abc":
            await add_webhook(store, name)
        async with (
            delivering(run_store, receiver.url, [NOW]),
            delivering(run_store, receiver.url, [NOW]),
        ):
            assert [await run_store.outcomes.get() for _ in range(3)] == [None] * 3
    ids = [receiver.deliveries.get_nowait().headers["webhook-id"] for _ in range(receiver.count)]
    assert len(ids) == len(set(ids)) == 3


async def test_stop_finishes_current_and_due_deliveries() -> None:
    store, receiver = MemoryStore(), Receiver(204)
    run_store = RecordingRunStore(store.runs)
    receiver.open.clear()
    async with receiver.listening():
        await add_webhook(store, "a")
        async with delivering(run_store, receiver.url, [NOW]):
            await receiver.deliveries.get()
            await add_webhook(store, "b")
            asyncio.get_running_loop().call_soon(receiver.open.set)
        assert [run_store.outcomes.get_nowait() for _ in range(2)] == [None, None]


async def test_store_errors_are_retried() -> None:
    store, receiver = MemoryStore(), Receiver(204)
    run_store = RecordingRunStore(store.runs)
    run_store.errors = [RunError("away"), RuntimeError("a bug")]
    with capture_logs() as logs:
        async with receiver.listening():
            await end_background_run(store)
            async with delivering(run_store, receiver.url, [NOW]):
                assert await run_store.outcomes.get() is None
    assert [each["event"] for each in logs].count("due webhooks could not be loaded") == 2


async def test_logs_contain_no_secrets_and_no_bodies() -> None:
    store, receiver, now = MemoryStore(), Receiver(500, 204), [NOW]
    run_store = RecordingRunStore(store.runs)
    with capture_logs() as logs:
        async with receiver.listening():
            name = await end_background_run(store)
            async with delivering(run_store, receiver.url, now):
                now[0] = await run_store.outcomes.get() or 0
                assert await run_store.outcomes.get() is None
    ours = [each for each in logs if "webhook" in each]
    assert [(each["event"], each["status"]) for each in ours] == [("webhook will be retried", 500)]
    for unwanted in (name, receiver.url, "v1,", *SECRETS):
        assert unwanted not in str(ours)


@pytest.mark.parametrize("webhooks", [True, False])
async def test_foreground_runs_and_disabled_webhooks_send_nothing(webhooks: bool) -> None:
    store = MemoryStore()
    service = make_service(
        ScriptedBackend(["one"]), store, webhooks=webhooks, lease=LeaseConfig(flush_s=0)
    )
    await (await create(service)).drive()  # the caller hears the end itself
    if not webhooks:
        service.start()
        await followed(service, (await enqueue(service)).id)
        await service.drain(0)
    assert await store.runs.take_due_webhooks(1e12, 1e12, limit=9) == ()


@pytest.mark.parametrize(("secrets", "message"), [((), "webhook.secrets"), (("whsec_",), "whsec_")])
def test_missing_or_invalid_secret_is_refused(secrets: Sequence[str], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        WebhookTarget.parse("https://hook.example", secrets)


async def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "aiohttp":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(SetupError, match=r"pip install .*\[webhooks\]"):
        WebhookSender.open()

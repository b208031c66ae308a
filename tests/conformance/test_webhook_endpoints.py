"""``/v1/webhook_endpoints``, through the official client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from antiphon.store.base import Store
from antiphon.store.records import DueWebhook
from antiphon.webhooks.deliver import WebhookDeliveries, WebhookSender, WebhookTarget
from tests.conformance.conftest import Clients, Serve
from tests.conformance.server import NOW, Server
from tests.webhooks.receiver import Delivery, Receiver, RecordingRunStore

URL = "https://hook.example/a"
#: The events of a test endpoint.
COMPLETED, FAILED = "response.completed", "response.failed"


@pytest.fixture
async def sender() -> AsyncIterator[WebhookSender]:
    opened = WebhookSender.open(timeout_s=5)
    yield opened
    await opened.close()


@pytest.fixture
async def server(serve: Serve, sender: WebhookSender) -> Server:
    return serve(webhook_sender=sender, private_webhooks=True)


async def deliver(
    server: Server, sender: WebhookSender, count: int, at: float | None = None
) -> list[float | None]:
    """Deliver this number of due webhooks as a process of this server does, and fail if more are
    due. Returns when each is due again, or None for one that is not. ``at``: the Unix time."""
    runs, endpoints = RecordingRunStore(server.store.runs), server.service.webhook_endpoints

    async def find(due: DueWebhook) -> WebhookTarget | None:
        return await endpoints.target(due.tenant, due.endpoint)

    def clock() -> float:
        return at or time.time()  # the official client refuses what is old by the real clock

    deliveries = WebhookDeliveries(runs, sender, find, clock=clock, random=lambda: 0.5, poll_s=0.01)
    async with asyncio.timeout(60), deliveries:
        outcomes = [await runs.outcomes.get() for _ in range(count)]
    assert runs.outcomes.empty()
    return outcomes


async def end_batch(client: openai.AsyncOpenAI, *lines: str) -> str:
    """Let a batch with these lines end, and return its id."""
    content = "\n".join(lines).encode()
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/responses", completion_window="24h"
    )
    async with asyncio.timeout(20):
        while batch.status not in ("completed", "failed"):
            batch = await client.batches.retrieve(batch.id)
            await asyncio.sleep(0.01)
    return batch.id


async def end_response(server: Server) -> str:
    """Let a background response end, and return its id."""
    id = str((await server.post(background=True)).json()["id"])
    async with asyncio.timeout(20):
        while (await server.get(f"responses/{id}")).json()["status"] != "completed":
            await asyncio.sleep(0)
    return id


def event_of(delivery: Delivery, secret: str) -> Any:
    with openai.OpenAI(api_key="none", webhook_secret=secret) as client:
        return client.webhooks.unwrap(delivery.body.decode(), delivery.headers)


@pytest.mark.requirement("API-WEBHOOK-ENDPOINTS")
async def test_endpoint_is_created_listed_changed_and_deleted(
    server: Server, client_of: Clients
) -> None:
    webhooks = client_of(server.app).webhooks
    created = await webhooks.create(name="a", url=URL, event_types=[COMPLETED, COMPLETED])
    other = await webhooks.create(name="b", url=URL, event_types=[FAILED])
    assert (created.object, created.event_types) == ("webhook_endpoint", [COMPLETED])
    assert (created.created_at, created.updated_at) == (NOW, NOW)
    assert created.signing_secret_hint == f"whsec_…{created.signing_secret[-4:]}"

    server.now += 5
    same = await webhooks.update(created.id, name="a")
    assert same.updated_at == NOW, "nothing changed"
    changed = await webhooks.update(created.id, name="c", event_types=[FAILED])
    assert (changed.name, changed.url, changed.event_types) == ("c", URL, [FAILED])
    assert changed.updated_at == NOW + 5

    page = await webhooks.list(limit=1)
    assert [each.id async for each in page] == [other.id, created.id], "newest first"
    assert await webhooks.retrieve(created.id) == changed
    deleted = await webhooks.delete(created.id)
    assert (deleted.id, deleted.object) == (created.id, "webhook_endpoint.deleted")
    with pytest.raises(openai.NotFoundError):
        await webhooks.retrieve(created.id)
    assert (await webhooks.event_types.list()).data[0] == COMPLETED


@pytest.mark.requirement("API-WEBHOOK-ENDPOINTS-SECRET")
async def test_secret_is_shown_once(server: Server, client_of: Clients) -> None:
    webhooks = client_of(server.app).webhooks
    created = await webhooks.create(name="a", url=URL, event_types=[COMPLETED])
    rotated = await webhooks.rotate_secret(created.id)
    await webhooks.update(created.id, name="b")
    listed = (await server.get("webhook_endpoints")).text
    read = (await server.get(f"webhook_endpoints/{created.id}")).text
    archive = b"".join([line async for line in server.service.tenants.export("default")]).decode()
    stored = await server.store.values.read("default", "webhook endpoints")
    assert stored is not None and "webhook_endpoint" in archive
    for text in (listed, read, archive, str(stored), server.log.getvalue()):
        for secret in (created.signing_secret, rotated.signing_secret):
            assert secret.removeprefix("whsec_") not in text


@pytest.mark.requirement("API-WEBHOOK-ENDPOINTS")
async def test_endpoints_get_the_events_that_they_want(
    serve: Serve, store: Store, client_of: Clients, sender: WebhookSender
) -> None:
    server = serve(on=store, webhook_sender=sender, private_webhooks=True)
    webhooks, receiver = client_of(server.app).webhooks, Receiver(204)
    async with receiver.listening():
        wanting = await webhooks.create(name="a", url=receiver.url, event_types=[COMPLETED])
        await webhooks.create(name="b", url=receiver.url, event_types=[FAILED])
        gone = await webhooks.create(name="c", url=receiver.url, event_types=[COMPLETED])
        id = await end_response(server)
        await webhooks.delete(gone.id)
        assert await deliver(server, sender, 2) == [None, None]
    assert receiver.count == 1
    event = event_of(receiver.deliveries.get_nowait(), wanting.signing_secret)
    assert (event.type, event.data.id) == (COMPLETED, id)


async def test_webhook_waits_for_a_process_that_can_send_it(
    serve: Serve, server: Server, client_of: Clients, sender: WebhookSender
) -> None:
    """One of the other servers has another encryption key, and one may send nothing."""
    webhooks, receiver = client_of(server.app).webhooks, Receiver(204)
    async with receiver.listening():
        await webhooks.create(name="a", url=receiver.url, event_types=[COMPLETED])
        await end_response(server)
        now: float | None = time.time()
        for other in (serve(on=server.store, webhook_sender=sender), serve(on=server.store)):
            (now,) = await deliver(other, sender, 1, now)
            assert now is not None, "it is due again"
        assert receiver.count == 0
        assert await deliver(server, sender, 1, now) == [None]
    assert receiver.count == 1


@pytest.mark.requirement("API-WEBHOOK-ENDPOINTS-SECRET")
@pytest.mark.parametrize(("keeps", "later", "is_valid"), [(True, 9, True), (True, 86_400, False),
                                                          (False, 0, False)])  # fmt: skip
async def test_old_secret_is_valid_for_a_day_if_the_client_wants_it(
    server: Server, client_of: Clients, keeps: bool, later: int, is_valid: bool
) -> None:
    webhooks, receiver = client_of(server.app).webhooks, Receiver(204)
    async with receiver.listening():
        old = await webhooks.create(name="a", url=receiver.url, event_types=[COMPLETED])
        new = await webhooks.rotate_secret(old.id, keep_old_secret_active_for_24_hours=keeps)
        server.now += later
        await webhooks.test(old.id, event_type=COMPLETED)
    signatures = receiver.deliveries.get_nowait().headers["webhook-signature"].split()
    assert len(signatures) == 1 + is_valid
    assert new.signing_secret != old.signing_secret


@pytest.mark.parametrize("status", [204, 500])
async def test_test_reports_the_status(server: Server, client_of: Clients, status: int) -> None:
    webhooks, receiver = client_of(server.app).webhooks, Receiver(status)
    async with receiver.listening():
        endpoint = await webhooks.create(name="a", url=receiver.url, event_types=[FAILED])
        result = await webhooks.test(endpoint.id, event_type=COMPLETED)
    assert (result.status_code, result.webhook_endpoint_id) == (status, endpoint.id)
    with pytest.raises(openai.BadRequestError, match="did not answer"):
        await webhooks.test(endpoint.id, event_type=COMPLETED)


@pytest.mark.requirement("API-WEBHOOKS-INNER")
@pytest.mark.parametrize(
    "url", ["http://hook.example", "https://127.0.0.1/", "https://[::1]/", "https://a:b@c", "x"]
)
async def test_url_must_be_public(
    serve: Serve, sender: WebhookSender, client_of: Clients, url: str
) -> None:
    webhooks = client_of(serve(webhook_sender=sender).app).webhooks
    with pytest.raises(openai.BadRequestError) as refused:
        await webhooks.create(name="a", url=url, event_types=[COMPLETED])
    assert refused.value.param == "url"
    endpoint = await webhooks.create(name="a", url=URL, event_types=[COMPLETED])
    with pytest.raises(openai.BadRequestError):
        await webhooks.update(endpoint.id, url=url)
    assert (await webhooks.retrieve(endpoint.id)).url == URL


@pytest.mark.requirement("API-WEBHOOKS-INNER")
async def test_name_of_an_inner_address_is_not_dialled(
    serve: Serve, sender: WebhookSender, client_of: Clients
) -> None:
    webhooks, receiver = client_of(serve(webhook_sender=sender).app).webhooks, Receiver(204)
    async with receiver.listening():
        url = receiver.url.replace("http://127.0.0.1", "https://localhost")
        endpoint = await webhooks.create(name="a", url=url, event_types=[COMPLETED])
        with pytest.raises(openai.BadRequestError, match="not allowed"):
            await webhooks.test(endpoint.id, event_type=COMPLETED)
    assert receiver.count == 0


@pytest.mark.requirement("API-WEBHOOK-ENDPOINTS")
async def test_end_of_a_response_reads_all_endpoints_at_once(
    server: Server, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhooks = client_of(server.app).webhooks
    made = [await webhooks.create(name="a", url=URL, event_types=[COMPLETED]) for _ in range(5)]
    reads = list[str]()
    read = server.store.values.read

    async def count(tenant: str, name: str) -> bytes | None:
        reads.append(name)
        return await read(tenant, name)

    monkeypatch.setattr(server.store.values, "read", count)
    endpoints = server.service.webhook_endpoints
    events = await endpoints.events("default", COMPLETED, "resp_a", for_operator=False)
    assert [event.endpoint for event in events] == [each.id for each in made]
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"name": ""}, "name"),
        ({"event_types": []}, "event_types"),
        ({"event_types": ["video.completed"]}, "event_types[0]"),
        ({"secret": "x"}, "secret"),
        ({"url": None}, "url"),
    ],
)
async def test_faulty_field_is_named(server: Server, changes: Any, param: str) -> None:
    body = {"name": "a", "url": URL, "event_types": [COMPLETED], **changes}
    reply = await server.client.post("/v1/webhook_endpoints", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


async def test_tenant_has_a_limited_number_of_endpoints(server: Server, client_of: Clients) -> None:
    webhooks = client_of(server.app).webhooks
    for _ in range(20):
        await webhooks.create(name="a", url=URL, event_types=[COMPLETED])
    with pytest.raises(openai.ConflictError):
        await webhooks.create(name="a", url=URL, event_types=[COMPLETED])


async def test_deleted_tenant_leaves_no_endpoints_or_webhooks(
    server: Server, client_of: Clients
) -> None:
    webhooks = client_of(server.app).webhooks
    await webhooks.create(name="a", url=URL, event_types=[COMPLETED])
    await end_response(server)
    await server.service.tenants.delete("default")
    assert (await webhooks.list()).data == []
    assert not await server.store.runs.take_due_webhooks(time.time(), time.time() + 60, limit=9)


async def test_changes_are_audited(server: Server, client_of: Clients) -> None:
    webhooks = client_of(server.app).webhooks
    endpoint = await webhooks.create(name="a", url=URL, event_types=[COMPLETED])
    await webhooks.update(endpoint.id, name="b")
    await webhooks.rotate_secret(endpoint.id)
    await webhooks.delete(endpoint.id)
    events = (await server.client.get("/antiphon/audit")).json()["data"]
    kinds = ("created", "updated", "rotated", "deleted")
    assert {(each["type"], each["target"]) for each in events} == {
        (f"webhook_endpoint.{kind}", endpoint.id) for kind in kinds
    }


async def test_endpoints_are_refused_if_the_operator_does_not_allow_them(
    serve: Serve, client_of: Clients
) -> None:
    webhooks = client_of(serve().app).webhooks
    with pytest.raises(openai.BadRequestError, match=r"webhook\.endpoints"):
        await webhooks.create(name="a", url=URL, event_types=[COMPLETED])
    assert (await webhooks.list()).data == []


async def documented_calls(call: Any) -> None:
    receiver = Receiver(204)
    async with receiver.listening():
        given = {"name": "a", "url": receiver.url, "event_types": [COMPLETED]}
        id = (await call("createWebhookEndpoint", json=given))["id"]
        await call("listWebhookEndpoints", params={"limit": 1})
        await call("getWebhookEndpoint", id)
        await call("updateWebhookEndpoint", id, json={"name": "b"})
        await call("rotateWebhookEndpointSecret", id, json={})
        await call("testWebhookEndpoint", id, json={"event_type": COMPLETED})
        await call("deleteWebhookEndpoint", id)
    await call("listWebhookEventTypes")


@pytest.mark.requirement("API-WEBHOOK-ENDPOINTS")
async def test_end_of_a_batch_is_reported(
    serve: Serve, store: Store, client_of: Clients, sender: WebhookSender
) -> None:
    server = serve(on=store, webhook_sender=sender, private_webhooks=True)
    client, receiver = client_of(server.app), Receiver(204)
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"input": "a"}}
    async with receiver.listening():
        created = await client.webhooks.create(
            name="a", url=receiver.url, event_types=["batch.completed", "batch.failed"]
        )
        ids = [await end_batch(client, json.dumps(line)), await end_batch(client, "no line")]
        assert await deliver(server, sender, 2) == [None, None]
    sent = [receiver.deliveries.get_nowait() for _ in ids]
    events = [event_of(each, created.signing_secret) for each in sent]
    found = {each.type: each for each in events}
    assert {name: each.data.id for name, each in found.items()} == {
        "batch.completed": ids[0],
        "batch.failed": ids[1],
    }
    again = await server.service.webhook_endpoints.events(
        "default", "batch.completed", ids[0], for_operator=False
    )
    assert [each.id for each in again] == [found["batch.completed"].id], "as after a crash"

"""Webhook endpoints: URLs to which a tenant's webhooks are sent. Clients manage their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import asdict, replace

from antiphon.errors import Conflict, InvalidRequest, NotFound, invalid_field
from antiphon.security.encryption import DecryptionError, Encryptor
from antiphon.store.records import WebhookEvent
from antiphon.store.values import Document, ValueStore
from antiphon.stream.writer import Ids
from antiphon.webhooks.deliver import WebhookSender, WebhookTarget, url_fault
from antiphon.webhooks.signature import Secret, new_secret
from antiphon.wire.cursors import PageParams, make_page
from antiphon.wire.pagination import Page
from antiphon.wire.resources.webhook_endpoints import (
    CreateWebhookEndpoint,
    UpdateWebhookEndpoint,
    WebhookEndpoint,
    WebhookEndpointTest,
    WebhookEndpointWithSecret,
)

_log = structlog.get_logger(__name__)

#: Endpoints of one tenant: each may get a webhook at the end of each response.
_MAX_ENDPOINTS = 20
#: Seconds for which an old secret is used beside its successor, if the client wants that.
_OVERLAP_S = 86_400
_HINT_CHARS = 4
_PURPOSE = "webhook secret"
#: Beginning of an event's type → beginning of the ids of its objects.
_PREFIXES = {"response": "resp", "batch": "batch"}


class WebhookEndpoints:
    """The webhook endpoints of all tenants. Methods that take an endpoint's id raise ``NotFound``
    for an unknown id.

    - ``sender`` sends webhooks. None: the operator allows no endpoints, so that nothing is sent.
    - ``seal`` encrypts the secrets in the store.
    - ``private``: whether endpoints may be on this machine or in its network.
    """

    def __init__(
        self,
        values: ValueStore,
        sender: WebhookSender | None,
        *,
        seal: Encryptor,
        clock: Callable[[], float],
        ids: Ids,
        private: bool = False,
    ) -> None:
        self._values = values
        self._sender = sender
        self._seal = seal
        self._clock = clock
        self._ids = ids
        self._private = private

    async def create(self, tenant: str, wanted: CreateWebhookEndpoint) -> WebhookEndpointWithSecret:
        """Create an endpoint with a new secret. Raises ``InvalidRequest`` for a URL to which the
        server does not send, and ``Conflict`` if the tenant has too many endpoints."""
        self._enabled_sender()
        self._check_url(wanted.url)
        now, secret = int(self._clock()), new_secret()
        endpoint = WebhookEndpoint(
            id=self._ids("whe"),
            name=wanted.name,
            url=wanted.url,
            event_types=tuple(dict.fromkeys(wanted.event_types)),
            created_at=now,
            updated_at=now,
            signing_secret_hint=_hint(secret),
        )
        record = EndpointRecord(endpoint=endpoint, secrets=(self._encrypted(tenant, secret),))

        def add(records: dict[str, EndpointRecord]) -> None:
            if len(records) >= _MAX_ENDPOINTS:
                raise Conflict(f"There are {_MAX_ENDPOINTS} webhook endpoints already. Delete one.")
            records[endpoint.id] = record

        await self._stored(tenant).update(add)
        return WebhookEndpointWithSecret(**asdict(endpoint), signing_secret=secret)

    async def list(self, tenant: str, params: PageParams) -> Page[WebhookEndpoint]:
        """Return a page of a tenant's endpoints. Raises ``InvalidRequest`` for an unknown
        cursor."""
        records = await self._stored(tenant).load()
        return make_page([record.endpoint for record in records.values()], params)

    async def retrieve(self, tenant: str, id: str) -> WebhookEndpoint:
        """Return an endpoint, without its secret."""
        return (await self._load(tenant, id)).endpoint

    async def update(self, tenant: str, id: str, wanted: UpdateWebhookEndpoint) -> WebhookEndpoint:
        """Change the fields that ``wanted`` has. Raises ``InvalidRequest`` for a URL to which the
        server does not send."""
        if wanted.url is not None:
            self._check_url(wanted.url)
        fields = {name: value for name, value in asdict(wanted).items() if value is not None}
        if wanted.event_types is not None:
            fields["event_types"] = tuple(dict.fromkeys(wanted.event_types))

        def change(record: EndpointRecord) -> WebhookEndpoint:
            changed = replace(record.endpoint, **fields)
            if changed != record.endpoint:
                record.endpoint = replace(changed, updated_at=int(self._clock()))
            return record.endpoint

        return await self._stored(tenant).update(lambda records: change(_find(records, id)))

    async def rotate_secret(
        self, tenant: str, id: str, *, keeps_old: bool
    ) -> WebhookEndpointWithSecret:
        """Give an endpoint a new secret. ``keeps_old``: whether webhooks are signed with the
        present secret too, for a day."""
        secret, now = new_secret(), self._clock()
        encrypted = self._encrypted(tenant, secret)

        def change(record: EndpointRecord) -> WebhookEndpoint:
            old = replace(record.secrets[0], expires_at=now + _OVERLAP_S)
            record.secrets = (encrypted, old) if keeps_old else (encrypted,)
            record.endpoint = replace(
                record.endpoint, updated_at=int(now), signing_secret_hint=_hint(secret)
            )
            return record.endpoint

        endpoint = await self._stored(tenant).update(lambda records: change(_find(records, id)))
        return WebhookEndpointWithSecret(**asdict(endpoint), signing_secret=secret)

    async def delete(self, tenant: str, id: str) -> None:
        """Delete an endpoint. Webhooks that have not been delivered to it are dropped."""

        def drop(records: dict[str, EndpointRecord]) -> None:
            _find(records, id)
            del records[id]

        await self._stored(tenant).update(drop)

    async def test(self, tenant: str, id: str, event_type: str) -> WebhookEndpointTest:
        """Send a webhook about an object that does not exist, once. Raises ``InvalidRequest`` if
        there is no answer."""
        target, sender = await self.target(tenant, id), self._enabled_sender()
        object_id = f"{_PREFIXES[event_type.partition('.')[0]]}_test"
        event, status = self._event(self._ids("evt"), tenant, id, event_type, object_id), 0
        if target is not None:
            status = await sender.send(target, event.id, event.body, int(self._clock()))
        if not status:
            raise InvalidRequest(
                "The webhook endpoint did not answer, or its address is not allowed."
            )
        return WebhookEndpointTest(
            webhook_endpoint_id=id, event_type=event_type, status_code=status
        )

    # --- for deliveries --------------------------------------------------------------------------

    async def events(
        self, tenant: str, event_type: str, object_id: str, *, for_operator: bool
    ) -> tuple[WebhookEvent, ...]:
        """Return the webhooks that report an event: one to each endpoint of the tenant that wants
        it and, with ``for_operator``, one to the URL in the settings. The same event has the same
        webhooks again. Raises ``StoreError``."""
        receivers = [""] if for_operator else []
        if self._sender is not None:
            records = await self._stored(tenant).load()
            receivers += [
                id for id, record in records.items() if event_type in record.endpoint.event_types
            ]
        return tuple(
            self._event(_event_id(object_id, id), tenant, id, event_type, object_id)
            for id in receivers
        )

    async def target(self, tenant: str, id: str) -> WebhookTarget | None:
        """Return where an endpoint's webhooks are sent. Returns None if the operator allows no
        endpoints, or if its secrets cannot be decrypted. Raises ``StoreError``."""
        record = await self._load(tenant, id)
        if self._sender is None:
            return None
        now, secrets = self._clock(), []
        for each in record.secrets:
            if each.expires_at is None or now < each.expires_at:
                try:
                    text = self._seal.decrypt(each.text, purpose=_PURPOSE, tenant=tenant)
                except DecryptionError:
                    _log.error("a secret of a webhook endpoint cannot be decrypted", endpoint=id)
                    continue
                secrets.append(Secret(text.decode()))
        if not secrets:
            return None
        return WebhookTarget(record.endpoint.url, tuple(secrets), self._private)

    def _event(
        self, id: str, tenant: str, endpoint: str, event_type: str, object_id: str
    ) -> WebhookEvent:
        now = self._clock()
        body = {
            "id": id,
            "object": "event",
            "created_at": int(now),
            "type": event_type,
            "data": {"id": object_id},
        }
        return WebhookEvent(id, msgspec.json.encode(body), now, tenant, endpoint)

    def _enabled_sender(self) -> WebhookSender:
        if self._sender is None:
            raise InvalidRequest(
                "This server has no webhook endpoints: its setting webhook.endpoints is off."
            )
        return self._sender

    def _check_url(self, url: str) -> None:
        if (fault := url_fault(url, private=self._private)) is not None:
            raise invalid_field("url", f"it must {fault}.")

    def _stored(self, tenant: str) -> Document[dict[str, EndpointRecord]]:
        return stored_endpoints(self._values, tenant)

    async def _load(self, tenant: str, id: str) -> EndpointRecord:
        return _find(await self._stored(tenant).load(), id)

    def _encrypted(self, tenant: str, secret: str) -> EncryptedSecret:
        text = self._seal.encrypt(secret.encode(), purpose=_PURPOSE, tenant=tenant)
        return EncryptedSecret(text)


def _hint(secret: str) -> str:
    return f"whsec_…{secret[-_HINT_CHARS:]}"


def _event_id(object_id: str, endpoint: str) -> str:
    """Return the id of the event that an object has ended, which is the same at each call."""
    return f"evt_{sha256(f'{object_id} {endpoint}'.encode()).hexdigest()[:32]}"


def _find(records: Mapping[str, EndpointRecord], id: str) -> EndpointRecord:
    if (record := records.get(id)) is None:
        raise NotFound(f"No webhook endpoint found with id '{id}'.", param="id")
    return record


class EncryptedSecret(Struct, frozen=True):
    """A secret that signs webhooks, encrypted. ``expires_at``: the Unix time in seconds from which
    it is no longer used. None: it is used until it is replaced."""

    text: str
    expires_at: float | None = None


class EndpointRecord(Struct, kw_only=True):
    """A webhook endpoint as it is stored. ``secrets``: the newest first."""

    endpoint: WebhookEndpoint
    secrets: tuple[EncryptedSecret, ...]


def stored_endpoints(values: ValueStore, tenant: str) -> Document[dict[str, EndpointRecord]]:
    """Return the webhook endpoints of a tenant by their ids, in the order in which they were
    created."""
    return Document(values, tenant, "webhook endpoints", dict[str, EndpointRecord])

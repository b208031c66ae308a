"""Stores webhook endpoints. All endpoints of a tenant are one value of the store: there are few,
and each end of a run reads them all."""

from __future__ import annotations

from msgspec import Struct

from antiphon.wire.resources.webhook_endpoints import WebhookEndpoint

from .values import Document, ValueStore


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

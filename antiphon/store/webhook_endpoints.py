"""Stores webhook endpoints as values of the store. The endpoints of a tenant are a collection."""

from __future__ import annotations

from msgspec import Struct

from antiphon.wire.resources.webhook_endpoints import WebhookEndpoint

from .values import Collection, ValueStore


class EncryptedSecret(Struct, frozen=True):
    """A secret that signs webhooks, encrypted. ``expires_at``: the Unix time in seconds from which
    it is no longer used. None: it is used until it is replaced."""

    text: str
    expires_at: float | None = None


class EndpointRecord(Struct, kw_only=True):
    """A webhook endpoint as it is stored. ``secrets``: the newest first."""

    endpoint: WebhookEndpoint
    secrets: tuple[EncryptedSecret, ...]


def endpoint_collection(values: ValueStore) -> Collection[EndpointRecord]:
    """Return the webhook endpoints of all tenants."""
    return Collection(values, "webhook endpoint", EndpointRecord)

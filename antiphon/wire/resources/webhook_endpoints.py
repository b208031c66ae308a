"""Webhook endpoints: types. Source of the fields: the types of the ``openai`` SDK 3.57."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

__all__ = [
    "WEBHOOK_EVENT_TYPES",
    "CreateWebhookEndpoint",
    "RotateWebhookSecret",
    "SendWebhookTest",
    "UpdateWebhookEndpoint",
    "WebhookEndpoint",
    "WebhookEndpointTest",
    "WebhookEndpointWithSecret",
    "WebhookEventType",
    "WebhookEventTypes",
]

#: The events that this server reports.
WebhookEventType = Literal[
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.cancelled",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
]
WEBHOOK_EVENT_TYPES: tuple[WebhookEventType, ...] = get_args(WebhookEventType)
_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_Url = Annotated[str, Meta(min_length=1, max_length=2048)]
_Types = Annotated[tuple[WebhookEventType, ...], Meta(min_length=1, max_length=100)]


class CreateWebhookEndpoint(Struct, frozen=True, kw_only=True):
    """The body of ``POST /webhook_endpoints``. ``event_types``: the events to report to ``url``."""

    name: _Name
    url: _Url
    event_types: _Types


class UpdateWebhookEndpoint(Struct, frozen=True, kw_only=True):
    """A change of a webhook endpoint. A field without a value stays as it is."""

    name: _Name | None = None
    url: _Url | None = None
    event_types: _Types | None = None


class RotateWebhookSecret(Struct, frozen=True, kw_only=True):
    """The body of a request for a new secret. By default, the old secret is no longer used."""

    keep_old_secret_active_for_24_hours: bool | None = None


class SendWebhookTest(Struct, frozen=True, kw_only=True):
    """The body of a request to send a webhook as a test. ``event_type``: the event that it
    reports."""

    event_type: WebhookEventType


class WebhookEndpoint(Struct, frozen=True, kw_only=True):
    """A webhook endpoint. Times are Unix seconds. ``signing_secret_hint``: the end of its
    secret."""

    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    name: str
    url: str
    event_types: tuple[str, ...]
    created_at: int
    updated_at: int
    signing_secret_hint: str


class WebhookEndpointWithSecret(WebhookEndpoint, frozen=True, kw_only=True):
    """A webhook endpoint with the new secret that signs its webhooks."""

    signing_secret: str


class WebhookEndpointTest(Struct, frozen=True, kw_only=True):
    """The result of a test. ``status_code``: the HTTP status of the receiver's answer."""

    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    webhook_endpoint_id: str
    event_type: str
    status_code: int
    success: Literal[True] = True


class WebhookEventTypes(Struct, frozen=True, kw_only=True):
    """The events to which an endpoint may subscribe."""

    object: Literal["list"] = "list"
    data: tuple[str, ...] = WEBHOOK_EVENT_TYPES

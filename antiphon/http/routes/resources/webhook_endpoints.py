"""Endpoints of ``/v1/webhook_endpoints`` and ``/v1/webhook_event_types``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from antiphon.http.auditor import Auditor
from antiphon.http.openapi.operation import operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests.query import object_key, read_query, tenant_of
from antiphon.limits.requests import RequestLimits
from antiphon.wire.cursors import PageParams
from antiphon.wire.pagination import DeletedObject, Page
from antiphon.wire.parsing.fields import body_parser
from antiphon.wire.resources.webhook_endpoints import (
    CreateWebhookEndpoint,
    RotateWebhookSecret,
    SendWebhookTest,
    UpdateWebhookEndpoint,
    WebhookEndpoint,
    WebhookEndpointTest,
    WebhookEndpointWithSecret,
    WebhookEventTypes,
)

if TYPE_CHECKING:
    from antiphon.runs.service import Service

_ENDPOINT = "/v1/webhook_endpoints/{webhook_endpoint_id}"
_key = object_key("webhook_endpoint_id")


class WebhookEndpointRoutes:
    """All routes for webhook endpoints."""

    def __init__(self, service: Service, limits: RequestLimits, auditor: Auditor) -> None:
        self._endpoints = service.webhook_endpoints
        self._limits = limits
        self._auditor = auditor

    @operation(
        "POST /v1/webhook_endpoints",
        "createWebhookEndpoint",
        body=CreateWebhookEndpoint,
        errors=(409,),
    )
    async def create(self, request: Request) -> WebhookEndpointWithSecret:
        """Create a webhook endpoint. Only this answer has the secret."""
        wanted = await bodies.parse(
            request, self._limits, body_parser(CreateWebhookEndpoint, refuses_unknown=True)
        )
        created = await self._endpoints.create(tenant_of(request), wanted)
        await self._auditor.record(request.scope, "webhook_endpoint.created", created.id)
        return created

    @operation("GET /v1/webhook_endpoints", "listWebhookEndpoints", query=PageParams)
    async def list(self, request: Request) -> Page[WebhookEndpoint]:
        """Return a page of the tenant's webhook endpoints, by default newest first."""
        params = read_query(request, PageParams)
        return await self._endpoints.list(tenant_of(request), params)

    @operation(f"GET {_ENDPOINT}", "getWebhookEndpoint")
    async def retrieve(self, request: Request) -> WebhookEndpoint:
        """Return a webhook endpoint without its secret."""
        return await self._endpoints.retrieve(*_key(request))

    @operation(f"POST {_ENDPOINT}", "updateWebhookEndpoint", body=UpdateWebhookEndpoint)
    async def update(self, request: Request) -> WebhookEndpoint:
        """Change the name, the URL or the events of a webhook endpoint."""
        wanted = await bodies.parse(
            request, self._limits, body_parser(UpdateWebhookEndpoint, refuses_unknown=True)
        )
        updated = await self._endpoints.update(*_key(request), wanted)
        await self._auditor.record(request.scope, "webhook_endpoint.updated", updated.id)
        return updated

    @operation(f"DELETE {_ENDPOINT}", "deleteWebhookEndpoint")
    async def delete(self, request: Request) -> DeletedObject:
        """Delete a webhook endpoint."""
        tenant, id = _key(request)
        await self._endpoints.delete(tenant, id)
        await self._auditor.record(request.scope, "webhook_endpoint.deleted", id)
        return DeletedObject(id=id, object="webhook_endpoint.deleted")

    @operation(
        f"POST {_ENDPOINT}/rotate_secret", "rotateWebhookEndpointSecret", body=RotateWebhookSecret
    )
    async def rotate_secret(self, request: Request) -> WebhookEndpointWithSecret:
        """Replace the secret of a webhook endpoint. Only this answer has the new secret."""
        wanted = await bodies.parse(
            request, self._limits, body_parser(RotateWebhookSecret, refuses_unknown=True)
        )
        rotated = await self._endpoints.rotate_secret(
            *_key(request), keeps_old=bool(wanted.keep_old_secret_active_for_24_hours)
        )
        await self._auditor.record(request.scope, "webhook_endpoint.rotated", rotated.id)
        return rotated

    @operation(f"POST {_ENDPOINT}/test", "testWebhookEndpoint", body=SendWebhookTest)
    async def test(self, request: Request) -> WebhookEndpointTest:
        """Send a webhook as a test, and return the status of the receiver's answer."""
        wanted = await bodies.parse(
            request, self._limits, body_parser(SendWebhookTest, refuses_unknown=True)
        )
        return await self._endpoints.test(*_key(request), wanted.event_type)

    @operation("GET /v1/webhook_event_types", "listWebhookEventTypes")
    async def list_event_types(self, request: Request) -> WebhookEventTypes:
        """Return the events to which a webhook endpoint may subscribe."""
        return WebhookEventTypes()

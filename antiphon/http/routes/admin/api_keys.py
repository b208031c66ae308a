"""Endpoints of ``/antiphon/keys``: operators manage the API keys in the store.

Clients need an API key that is listed in the setting ``operators``. On a server without keys, only
clients on this machine may use these endpoints.
"""

from __future__ import annotations

from starlette.requests import Request

from antiphon.errors import InvalidRequest
from antiphon.http.auditor import Auditor
from antiphon.http.openapi.operation import Permission, operation
from antiphon.http.requests import body as bodies
from antiphon.limits.requests import RequestLimits
from antiphon.resources.admin.api_keys import ApiKeys
from antiphon.wire.admin.api_keys import ApiKeyList, CreateApiKey, NewApiKey
from antiphon.wire.pagination import DeletedObject
from antiphon.wire.parsing.fields import body_parser

_parse = body_parser(CreateApiKey, refuses_unknown=True)
_ALLOWED = Permission(("operator",), "manage the API keys")


class ApiKeyRoutes:
    """All routes below ``/antiphon/keys``. ``keys``: the API keys in the store; None if API keys
    are not kept in the store, but only in the settings."""

    def __init__(self, keys: ApiKeys | None, limits: RequestLimits, auditor: Auditor) -> None:
        self._auditor = auditor
        self._keys = keys
        self._limits = limits

    @operation("GET /antiphon/keys", "listApiKeys", permission=_ALLOWED)
    async def list(self, request: Request) -> ApiKeyList:
        """List the API keys in the store, without their secrets."""
        return await self._managed().list()

    @operation(
        "POST /antiphon/keys", "createApiKey", body=CreateApiKey, permission=_ALLOWED, errors=(409,)
    )
    async def create(self, request: Request) -> NewApiKey:
        """Create an API key. Only this response contains the secret of the key."""
        keys = self._managed()
        wanted = await bodies.parse(request, self._limits, _parse)
        created = await keys.create(wanted)
        await self._auditor.record(request.scope, "api_key.created", created.name)
        return created

    @operation("POST /antiphon/keys/{name:path}/rotate", "rotateApiKey", permission=_ALLOWED)
    async def rotate(self, request: Request) -> NewApiKey:
        """Give an API key a new secret. The old secret is refused from now on."""
        rotated = await self._managed().rotate(request.path_params["name"])
        await self._auditor.record(request.scope, "api_key.rotated", rotated.name)
        return rotated

    @operation("DELETE /antiphon/keys/{name:path}", "revokeApiKey", permission=_ALLOWED)
    async def revoke(self, request: Request) -> DeletedObject:
        """Revoke an API key."""
        name = request.path_params["name"]
        await self._managed().revoke(name)
        await self._auditor.record(request.scope, "api_key.revoked", name)
        return DeletedObject(id=name, object="antiphon.api_key.deleted")

    def _managed(self) -> ApiKeys:
        """Return the object that manages the API keys in the store. Raises ``InvalidRequest`` if
        API keys are not kept in the store, but only in the settings."""
        if self._keys is None:
            raise InvalidRequest(
                "The API keys of this server are in its settings only. Set stored_keys = true to"
                " manage them here."
            )
        return self._keys

"""Endpoints of ``/antiphon/tenants``: operators export and delete tenants.

Clients need an API key that is listed in the setting ``operators``. On a server without keys, only
clients on this machine may use these endpoints.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from antiphon.http.auditor import Auditor
from antiphon.http.openapi.operation import Permission, operation
from antiphon.runs.tenants import Tenants
from antiphon.wire.pagination import DeletedObject

#: Minimum size in bytes of a chunk of the archive, except the last chunk.
_CHUNK_BYTES = 1 << 18
_ALLOWED = Permission(("operator",), "manage the tenants")


class TenantRoutes:
    """Routes with which operators export or delete all stored data of a tenant."""

    def __init__(self, tenants: Tenants, auditor: Auditor) -> None:
        self._tenants = tenants
        self._auditor = auditor

    @operation(
        "GET /antiphon/tenants/{name:path}/export",
        "exportTenant",
        media_type="application/jsonl",
        permission=_ALLOWED,
    )
    async def export(self, request: Request) -> _Archive:
        """Return all stored data of a tenant, as JSON lines."""
        name = request.path_params["name"]
        await self._auditor.record(request.scope, "tenant.exported", name)
        return _Archive(self._tenants.export(name))

    @operation("DELETE /antiphon/tenants/{name:path}", "deleteTenant", permission=_ALLOWED)
    async def delete(self, request: Request) -> DeletedObject:
        """Cancel a tenant's background runs, then delete all stored data of the tenant."""
        name = request.path_params["name"]
        await self._tenants.delete(name)
        await self._auditor.record(request.scope, "tenant.deleted", name)
        return DeletedObject(id=name, object="antiphon.tenant.deleted")


class _Archive:
    """An ASGI app that streams an archive: the stored data of a tenant as JSON lines. The last line
    of a complete archive marks its end. If the stream breaks off, this line is missing, so clients
    can detect an incomplete archive."""

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False
        async for chunk in _chunks(self._lines):
            if not is_started:  # an error before the first chunk becomes an error response
                is_started = True
                headers = [(b"content-type", b"application/jsonl")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _chunks(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Join lines into larger chunks."""
    chunk = bytearray()
    async for line in lines:
        chunk += line
        if len(chunk) >= _CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk)

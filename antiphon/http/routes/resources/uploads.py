"""Endpoints of ``/v1/uploads``: files uploaded in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from antiphon.http.openapi.operation import Form, operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests import multipart
from antiphon.http.requests.query import object_key, tenant_of
from antiphon.limits.requests import RequestLimits
from antiphon.resources.file_storage.uploads import MAX_PART_BYTES
from antiphon.wire.parsing.uploads import CompleteUpload, CreateUpload, parse_complete, parse_create
from antiphon.wire.resources.files import ChunkedUpload, ChunkedUploadPart

if TYPE_CHECKING:
    from antiphon.runs.service import Service

_upload_key = object_key("upload_id")


class UploadRoutes:
    """All routes below ``/v1/uploads``."""

    def __init__(self, service: Service, limits: RequestLimits) -> None:
        self._uploads = service.uploads
        self._limits = limits

    @operation("POST /v1/uploads", "createUpload", body=CreateUpload)
    async def create(self, request: Request) -> ChunkedUpload:
        """Create a pending upload."""
        parsed = await bodies.parse(request, self._limits, parse_create)
        tenant = tenant_of(request)
        return await self._uploads.create(
            tenant, parsed, max_file_bytes=self._limits.max_file_bytes
        )

    @operation("POST /v1/uploads/{upload_id}/parts", "addUploadPart", form=Form(file="data"))
    async def add_part(self, request: Request) -> ChunkedUploadPart:
        """Store one part of an upload, sent as a form."""
        key = _upload_key(request)
        await self._uploads.check_pending(*key)
        limit = min(self._limits.max_file_bytes, MAX_PART_BYTES)
        scope, receive = request.scope, request.receive
        async with multipart.open_form(scope, receive, file="data", limit=limit) as form:
            return await self._uploads.add_part(*key, form.size, form.chunks)

    @operation("POST /v1/uploads/{upload_id}/complete", "completeUpload", body=CompleteUpload)
    async def complete(self, request: Request) -> ChunkedUpload:
        """Join the parts of an upload into one file."""
        parsed = await bodies.parse(request, self._limits, parse_complete)
        return await self._uploads.complete(*_upload_key(request), parsed)

    @operation("POST /v1/uploads/{upload_id}/cancel", "cancelUpload")
    async def cancel(self, request: Request) -> ChunkedUpload:
        """Cancel an upload and delete its parts."""
        return await self._uploads.cancel(*_upload_key(request))

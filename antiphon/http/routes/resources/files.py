"""Endpoints of ``/v1/files``. Clients of the Messages API get files in Anthropic's form.

Contents of every type are sent as downloads. Browsers do not render downloads, so HTML in a file
cannot run scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct
from starlette.requests import Request

from antiphon.compat.messages.files import (
    DeletedMessageFile,
    MessageFile,
    MessageFilePage,
    PageToken,
    next_page,
    page_cursor,
    parse_message_upload,
)
from antiphon.http.download import RANGE_HEADERS, download_reply
from antiphon.http.json_response import Reply
from antiphon.http.middleware.request_context import request_context
from antiphon.http.openapi.operation import Form, messages_handler, operation
from antiphon.http.requests import multipart
from antiphon.http.requests.body import SMALL_BYTES
from antiphon.http.requests.query import object_key, read_query, tenant_of
from antiphon.limits.requests import RequestLimits
from antiphon.resources.file_storage.files import FileQuery, FileUpload
from antiphon.wire.cursors import PageOrder, PageStart
from antiphon.wire.pagination import DeletedObject, Page
from antiphon.wire.parsing.errors import out_of_range
from antiphon.wire.parsing.upload_form import UploadFields, UploadForm, parse_upload_form
from antiphon.wire.resources.files import PURPOSES, File

if TYPE_CHECKING:
    from antiphon.runs.service import Service

_file_key = object_key("file_id")
#: Limits of a page, and those of a page for clients of the Messages API: default and largest.
_LIMITS = (10_000, 10_000)
_MESSAGE_LIMITS = (20, 1_000)
#: A parameter of Anthropic's API: files of one of its sessions, which this server does not have.
_REFUSED = ("scope_id",)
#: Purposes by which a list can be filtered: the purposes of uploads, and the purposes of files that
#: a server creates.
_LISTABLE_PURPOSES = (*PURPOSES, "assistants_output", "batch_output", "fine-tune-results")


class FileListing(Struct, frozen=True, kw_only=True):
    limit: Annotated[
        Annotated[int, Meta(ge=1, le=_LIMITS[1])] | None,
        Meta(description="The largest number of entries, by default as many as possible."),
    ] = None
    order: PageOrder = "desc"
    after: PageStart = None
    purpose: Annotated[
        Literal[_LISTABLE_PURPOSES] | None,  # type: ignore[valid-type]
        Meta(description="Only files with this purpose."),
    ] = None
    page: PageToken = None
    ids: Annotated[
        tuple[str, ...] | None,
        Meta(description="For clients of Anthropic's API: only files with these ids."),
    ] = None


class FileRoutes:
    """All routes below ``/v1/files``."""

    def __init__(self, service: Service, limits: RequestLimits) -> None:
        self._files = service.files
        self._limits = limits

    @operation("POST /v1/files", "createFile", form=Form(file="file", fields=UploadForm))
    async def create(self, request: Request) -> File:
        """Store the file that the client uploads in a multipart form."""
        return await self._create(request, parse_upload_form)

    @messages_handler(create)
    async def create_for_messages(self, request: Request) -> MessageFile:
        return MessageFile.of(await self._create(request, parse_message_upload))

    async def _create(
        self, request: Request, parse: Callable[[Mapping[str, str]], UploadFields]
    ) -> File:
        scope, limit = request.scope, self._limits.max_file_bytes
        async with multipart.open_form(scope, request.receive, file="file", limit=limit) as form:
            fields = parse(form.fields)
            upload = FileUpload(
                filename=form.filename,
                purpose=fields.purpose,
                bytes=form.size,
                chunks=form.chunks,
                expires_after=fields.expires_after,
            )
            return await self._files.create(request_context(scope).tenant, upload)

    @operation("GET /v1/files", "listFiles", query=FileListing)
    async def list(self, request: Request) -> Page[File]:
        """Return a page of the tenant's files, by default newest first."""
        return await self._list(request, _LIMITS)

    @messages_handler(list)
    async def list_for_messages(self, request: Request) -> MessageFilePage:
        tenant, ids = tenant_of(request), read_query(request, FileListing).ids
        if ids is not None:
            found = [await self._files.find(tenant, id) for id in dict.fromkeys(ids)]
            return MessageFilePage(data=tuple(MessageFile.of(file) for file in found if file))
        page = await self._list(request, _MESSAGE_LIMITS)
        return MessageFilePage(
            data=tuple(map(MessageFile.of, page.data)), next_page=next_page(page)
        )

    async def _list(self, request: Request, limits: tuple[int, int]) -> Page[File]:
        """Return a page of files. ``limits``: its default and its largest length."""
        query, (default, most) = read_query(request, FileListing, refused=_REFUSED), limits
        limit = query.limit or default
        if limit > most:
            raise out_of_range("limit", "integer", limit, "<=", str(most))
        listing = FileQuery(
            purpose=query.purpose,
            newest_first=query.order == "desc",
            after=query.after or page_cursor(query.page),
            limit=limit,
        )
        return await self._files.list(tenant_of(request), listing)

    @operation("GET /v1/files/{file_id}", "retrieveFile", messages=MessageFile.of)
    async def retrieve(self, request: Request) -> File:
        """Return the metadata of a file."""
        return await self._files.retrieve(*_file_key(request))

    @operation(
        "GET /v1/files/{file_id}/content",
        "downloadFile",
        media_type="application/octet-stream",
        headers=RANGE_HEADERS,
        other_responses={206: None, 307: None},
        errors=(416,),
        response_headers=("accept-ranges", "etag"),
    )
    async def read_content(self, request: Request) -> Reply:
        """Return the content of a file, or a range of the content, as a download. Browsers save a
        download and do not render it, so HTML in a file cannot run scripts."""
        tenant, file_id = _file_key(request)
        if not self._files.contents.is_external:
            size = (await self._files.retrieve(tenant, file_id)).bytes
            if size > SMALL_BYTES:  # all of it is in memory, and the client may read slowly
                await request_context(request.scope).hold_memory(size)
        stored = await self._files.open(tenant, file_id)
        if (url := await self._files.download_url(stored)) is not None:
            return Reply(status_code=307, headers={"location": url})
        return await download_reply(request, stored)

    @operation("DELETE /v1/files/{file_id}", "deleteFile", messages=DeletedMessageFile.of)
    async def delete(self, request: Request) -> DeletedObject:
        """Delete a file."""
        tenant, file_id = _file_key(request)
        await self._files.delete(tenant, file_id)
        return DeletedObject(id=file_id, object="file")

"""Endpoints of ``/v1/containers``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from msgspec import Meta
from starlette.requests import Request

from antiphon.http.auditor import Auditor
from antiphon.http.json_response import Reply
from antiphon.http.middleware.request_context import header, request_context
from antiphon.http.openapi.operation import Form, operation
from antiphon.http.requests import body as bodies
from antiphon.http.requests import multipart
from antiphon.http.requests.query import object_key, path_param, read_query, tenant_of
from antiphon.limits.requests import RequestLimits
from antiphon.resources.file_storage.files import MAX_WHOLE_BYTES
from antiphon.wire.cursors import PageParams, make_page
from antiphon.wire.pagination import DeletedObject, Page
from antiphon.wire.parsing.fields import body_parser
from antiphon.wire.resources.containers import (
    ContainerFile,
    ContainerResource,
    CreateContainer,
    FileReference,
    parse_create_container,
)

if TYPE_CHECKING:
    from antiphon.runs.service import Service

_CONTAINER = "/v1/containers/{container_id}"
_FILE = _CONTAINER + "/files/{file_id}"
_container_key = object_key("container_id")
_file_id = path_param("file_id")


class ContainerListing(PageParams, frozen=True, kw_only=True):
    name: Annotated[str | None, Meta(description="Only containers with this name.")] = None


class ContainerRoutes:
    """All routes below ``/v1/containers``."""

    def __init__(self, service: Service, limits: RequestLimits, auditor: Auditor) -> None:
        self._auditor = auditor
        self._containers = service.containers
        self._limits = limits

    @operation("POST /v1/containers", "createContainer", body=CreateContainer, errors=(404,))
    async def create(self, request: Request) -> ContainerResource:
        """Create a container with copies of uploaded files."""
        _check_tools(request)
        parsed = await bodies.parse(request, self._limits, parse_create_container)
        return await self._containers.create(tenant_of(request), parsed)

    @operation("GET /v1/containers", "listContainers", query=ContainerListing)
    async def list(self, request: Request) -> Page[ContainerResource]:
        """List the tenant's containers, by default newest first."""
        query = read_query(request, ContainerListing)
        return await self._containers.registry.list(tenant_of(request), query, query.name)

    @operation(f"GET {_CONTAINER}", "retrieveContainer")
    async def retrieve(self, request: Request) -> ContainerResource:
        """Return a container, with its status."""
        return await self._containers.registry.retrieve(*_container_key(request))

    @operation(f"DELETE {_CONTAINER}", "deleteContainer")
    async def delete(self, request: Request) -> DeletedObject:
        """Delete a container and its files."""
        tenant, container_id = _container_key(request)
        await self._containers.registry.delete(tenant, container_id)
        await self._auditor.record_operator(request.scope, "container.deleted", container_id)
        return DeletedObject(id=container_id, object="container.deleted")

    @operation(
        f"POST {_CONTAINER}/files",
        "createContainerFile",
        body=FileReference,
        form=Form(file="file"),
    )
    async def add_file(self, request: Request) -> ContainerFile:
        """Add a file to a container. The file comes from a form, or is a copy of an uploaded
        file."""
        _check_tools(request)
        tenant, container_id = _container_key(request)
        async with self._containers.active(tenant, container_id) as container:
            name, content = await self._read_file(request, tenant)
            return await container.write_file(name, content)

    async def _read_file(self, request: Request, tenant: str) -> tuple[str, bytes]:
        """Return the name and the content of the file that a request adds."""
        kind = (header(request.scope, b"content-type") or b"").partition(b";")[0].strip().lower()
        if kind == b"multipart/form-data":
            limit = min(self._limits.max_file_bytes, MAX_WHOLE_BYTES)
            scope, receive = request.scope, request.receive
            async with multipart.open_form(scope, receive, file="file", limit=limit) as form:
                return form.filename, await multipart.read_content(scope, form)
        reference = await bodies.parse(request, self._limits, body_parser(FileReference))
        return await self._containers.registry.uploads.read(tenant, reference.file_id)

    @operation(f"GET {_CONTAINER}/files", "listContainerFiles", query=PageParams)
    async def list_files(self, request: Request) -> Page[ContainerFile]:
        """List the files of a container: uploaded files and files created by code."""
        params = read_query(request, PageParams)
        async with self._containers.active(*_container_key(request)) as container:
            return make_page(await container.list_files(), params)

    @operation(f"GET {_FILE}", "retrieveContainerFile")
    async def retrieve_file(self, request: Request) -> ContainerFile:
        """Return the metadata of a file."""
        async with self._containers.active(*_container_key(request)) as container:
            return await container.get_file(_file_id(request))

    @operation(
        f"GET {_FILE}/content",
        "retrieveContainerFileContent",
        media_type="application/octet-stream",
    )
    async def read_content(self, request: Request) -> Reply:
        """Return a file's content as a download. Browsers do not render a download, so HTML in a
        file cannot run scripts."""
        file_id = _file_id(request)
        async with self._containers.active(*_container_key(request)) as container:
            file = await container.get_file(file_id)
            content = await container.read_file(file_id)
        name = quote(file.path.rsplit("/", 1)[-1], safe="")
        return Reply(
            content,
            headers={
                "content-disposition": f"attachment; filename*=UTF-8''{name}",
                "x-content-type-options": "nosniff",
            },
            media_type="application/octet-stream",
        )

    @operation(f"DELETE {_FILE}", "deleteContainerFile")
    async def delete_file(self, request: Request) -> DeletedObject:
        """Delete a file."""
        file_id = _file_id(request)
        async with self._containers.active(*_container_key(request)) as container:
            await container.delete_file(file_id)
        return DeletedObject(id=file_id, object="container.file.deleted")


def _check_tools(request: Request) -> None:
    """Raise ``Forbidden`` if the client may use none of the tools that run code in containers."""
    request_context(request.scope).client.check_any_tool("code_interpreter", "shell")

"""The operations of the API on containers. A container is a sandbox in which tools run code. An
error of the sandbox (``ToolError``) becomes a request error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from antiphon.errors import InvalidRequest, NotFound, ToolError
from antiphon.tools.containers import registry as registries
from antiphon.tools.containers.container import safe_file_name
from antiphon.wire.admin.usage import QuotaUsage
from antiphon.wire.cursors import PageParams
from antiphon.wire.pagination import Page
from antiphon.wire.resources import containers as wc


class ContainerFileContent(Struct, frozen=True):
    """A file of a container, with its content."""

    file: wc.ContainerFile
    content: bytes


class Containers:
    """Operations on containers.

    All methods raise ``NotFound`` for unknown ids and for containers of other tenants,
    ``InvalidRequest`` for an expired container, and ``Overloaded`` if the process that owns the
    container does not answer.
    """

    def __init__(self, all: registries.ContainerRegistry | None) -> None:
        self._registry_or_none = all

    @property
    def _registry(self) -> registries.ContainerRegistry:
        if self._registry_or_none is None:
            raise NotFound("Containers are disabled on this server.", code="containers_disabled")
        return self._registry_or_none

    @property
    def are_enabled(self) -> bool:
        """Whether this server runs containers."""
        return self._registry_or_none is not None

    async def create(self, tenant: str, request: wc.CreateContainer) -> wc.ContainerResource:
        """Create a container with copies of uploaded files."""
        with _translate_errors():
            return await self._registry.create(tenant, request)

    async def list(
        self, tenant: str, params: PageParams, name: str | None = None
    ) -> Page[wc.ContainerResource]:
        """Return a page of the tenant's containers. ``name``: only containers with this name."""
        return await self._registry.list(tenant, params, name)

    async def usage(self, tenant: str) -> QuotaUsage:
        """Return the number of a tenant's active containers, and the maximum number that the quota
        allows."""
        registry = self._registry_or_none
        if registry is None:
            return QuotaUsage(0, 0)
        active = await registry.count_active(tenant)
        return QuotaUsage(active, registry.quotas.for_tenant(tenant).max_containers)

    async def retrieve(self, tenant: str, container_id: str) -> wc.ContainerResource:
        """Return a container. An expired container is also returned."""
        return await self._registry.retrieve(tenant, container_id)

    async def delete(self, tenant: str, container_id: str) -> None:
        """Delete a container and its files."""
        await self._registry.delete(tenant, container_id)

    async def check_active(self, tenant: str, container_id: str) -> None:
        """Raise ``NotFound`` for an unknown container, and ``InvalidRequest`` for an expired
        container."""
        await self._registry.get_active(tenant, container_id)

    async def add_file(
        self, tenant: str, container_id: str, name: str, content: bytes
    ) -> wc.ContainerFile:
        """Write a file into the container. The client has sent the name and the content."""
        with _translate_errors():
            container = await self._registry.get_active(tenant, container_id)
            return await container.write_file(safe_file_name(name), content)

    async def copy_file(self, tenant: str, container_id: str, file_id: str) -> wc.ContainerFile:
        """Copy an uploaded file into the container."""
        with _translate_errors():
            return await self._registry.copy_upload(tenant, container_id, file_id)

    async def list_files(
        self, tenant: str, container_id: str, params: PageParams
    ) -> Page[wc.ContainerFile]:
        """Return a page of the container's files. They are files from the client and files that
        code in the container has created."""
        with _translate_errors():
            return await self._registry.list_files(tenant, container_id, params)

    async def retrieve_file(self, tenant: str, container_id: str, file_id: str) -> wc.ContainerFile:
        """Return the metadata of a file in the container."""
        with _translate_errors():
            container = await self._registry.get_active(tenant, container_id)
            return await container.get_file(file_id)

    async def read_file(self, tenant: str, container_id: str, file_id: str) -> ContainerFileContent:
        """Return the metadata and the content of a file in the container."""
        with _translate_errors():
            container = await self._registry.get_active(tenant, container_id)
            return ContainerFileContent(
                await container.get_file(file_id), await container.read_file(file_id)
            )

    async def delete_file(self, tenant: str, container_id: str, file_id: str) -> None:
        """Delete a file from the container."""
        with _translate_errors():
            container = await self._registry.get_active(tenant, container_id)
            await container.delete_file(file_id)


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except ToolError as error:
        raise InvalidRequest(error.message, code="container_error") from None

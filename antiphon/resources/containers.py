"""The operations of the API on containers. A container is a sandbox in which tools run code. An
error of the sandbox (``ToolError``) becomes a request error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from antiphon.errors import InvalidRequest, NotFound, ToolError
from antiphon.tools.containers.handle import ContainerHandle
from antiphon.tools.containers.registry import ContainerRegistry
from antiphon.wire.admin.usage import QuotaUsage
from antiphon.wire.resources.containers import ContainerResource, CreateContainer


class Containers:
    """The containers of the server. ``registry_or_none`` is None if this server runs none."""

    def __init__(self, registry_or_none: ContainerRegistry | None) -> None:
        self.registry_or_none = registry_or_none

    @property
    def registry(self) -> ContainerRegistry:
        """The containers. Raises ``NotFound`` if this server runs none."""
        if self.registry_or_none is None:
            raise NotFound("Containers are disabled on this server.", code="containers_disabled")
        return self.registry_or_none

    async def create(self, tenant: str, request: CreateContainer) -> ContainerResource:
        """Create a container with copies of uploaded files."""
        with _translate_errors():
            return await self.registry.create(tenant, request)

    async def usage(self, tenant: str) -> QuotaUsage:
        """Return the number of a tenant's active containers, and the maximum number that the quota
        allows."""
        registry = self.registry_or_none
        if registry is None:
            return QuotaUsage(0, 0)
        active = await registry.count_active(tenant)
        return QuotaUsage(active, registry.quotas.for_tenant(tenant).max_containers)

    @asynccontextmanager
    async def active(self, tenant: str, container_id: str) -> AsyncIterator[ContainerHandle]:
        """Context manager that yields a container. Raises the errors of
        ``ContainerRegistry.get_active``. An error of the sandbox in the ``async with`` block
        becomes a request error."""
        with _translate_errors():
            yield await self.registry.get_active(tenant, container_id)


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except ToolError as error:
        raise InvalidRequest(error.message, code="container_error") from None

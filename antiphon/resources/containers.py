"""Containers as clients use them: what goes wrong in a sandbox becomes an error of the request. It
knows no HTTP, and not how containers are isolated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from antiphon.errors import InvalidRequest, NotFound, ToolError
from antiphon.pagination import Cut
from antiphon.tools.containers import registry as held
from antiphon.tools.containers.container import safe_file_name
from antiphon.wire import containers as wc
from antiphon.wire.pagination import Page

__all__ = ["Containers", "Content"]


class Content(Struct, frozen=True):
    """A file with its content."""

    file: wc.ContainerFile
    content: bytes


class Containers:
    """What can be asked about containers. All methods raise ``NotFound`` for unknown ids, those of
    other tenants among them, and ``InvalidRequest`` for a container that has expired."""

    def __init__(self, all: held.ContainerRegistry | None) -> None:
        self._held = all

    @property
    def _all(self) -> held.ContainerRegistry:
        if self._held is None:
            raise NotFound(
                "This server runs no code: there are no containers.", code="containers_disabled"
            )
        return self._held

    async def create(self, tenant: str, asked: wc.CreateContainer) -> wc.Container:
        """A new one, with copies of uploaded files."""
        with _told():
            return await self._all.create(tenant, asked)

    def list(self, tenant: str, cut: Cut) -> Page[wc.Container]:
        """Those of the tenant."""
        return self._all.list(tenant, cut)

    def retrieve(self, tenant: str, container_id: str) -> wc.Container:
        """One, also if it has expired."""
        return self._all.get(tenant, container_id).resource

    async def delete(self, tenant: str, container_id: str) -> None:
        """With all that is in it."""
        await self._all.delete(tenant, container_id)

    def check(self, tenant: str, container_id: str) -> None:
        """Whether it can be used."""
        self._all.get_active(tenant, container_id)

    async def add(
        self, tenant: str, container_id: str, name: str, content: bytes
    ) -> wc.ContainerFile:
        """A file of the client's."""
        with _told():
            return await self._all.get_active(tenant, container_id).write_file(
                safe_file_name(name), content
            )

    async def copy(self, tenant: str, container_id: str, file_id: str) -> wc.ContainerFile:
        """A copy of an uploaded file."""
        with _told():
            return await self._all.copy_upload(tenant, container_id, file_id)

    async def list_files(self, tenant: str, container_id: str, cut: Cut) -> Page[wc.ContainerFile]:
        """Those of the client and those that code has made."""
        with _told():
            return await self._all.list_files(tenant, container_id, cut)

    async def file(self, tenant: str, container_id: str, file_id: str) -> wc.ContainerFile:
        """Without its content."""
        with _told():
            return await self._all.get_active(tenant, container_id).get_file(file_id)

    async def content(self, tenant: str, container_id: str, file_id: str) -> Content:
        """With it."""
        with _told():
            container = self._all.get_active(tenant, container_id)
            return Content(await container.get_file(file_id), await container.read_file(file_id))

    async def remove(self, tenant: str, container_id: str, file_id: str) -> None:
        """For good."""
        with _told():
            await self._all.get_active(tenant, container_id).delete_file(file_id)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except ToolError as error:
        raise InvalidRequest(error.message, code="container_error") from None

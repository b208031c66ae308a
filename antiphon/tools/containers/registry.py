"""Registry of containers by id. A container belongs to one tenant and expires when unused.

Containers live in this process: a box consists of processes and memory of this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from antiphon.errors import InvalidRequest, NotFound, ToolError
from antiphon.pagination import PageParams, make_page
from antiphon.quotas import NO_QUOTAS, TenantQuotas, exceeded
from antiphon.sandbox.base import Sandbox
from antiphon.wire import containers as wc
from antiphon.wire.items import CodeInterpreterCall, Item, ShellCall
from antiphon.wire.pagination import Page
from antiphon.wire.skills import ShellSkill

from .container import Container, ContainerPolicy, Uploads, safe_file_name
from .skills import ContainerSkill, SkillLibrary, check_inline_skills, resolve_skills

__all__ = ["ContainerRegistry"]

_SWEEP_INTERVAL_S = 5.0
#: The number of expired containers whose status can still be queried.
_MAX_EXPIRED = 1000


class ContainerRegistry:
    """All containers of the server. An async context manager. ``clock`` returns Unix seconds.
    ``quotas``: among them the number of active containers of a tenant."""

    def __init__(
        self,
        sandbox: Sandbox,
        policy: ContainerPolicy,
        *,
        uploads: Uploads,
        library: SkillLibrary,
        clock: Callable[[], float],
        ids: Callable[[str], str],
        quotas: TenantQuotas = NO_QUOTAS,
    ) -> None:
        self.policy = policy
        self.quotas = quotas
        self._library = library
        self._sandbox = sandbox
        self._uploads = uploads
        self._clock = clock
        self._ids = ids
        self._containers: dict[str, Container] = {}
        #: Containers that responses created for themselves, and how many responses use each.
        self._auto_users: dict[str, int] = {}

    async def __aenter__(self) -> ContainerRegistry:
        self._sweep_task = asyncio.create_task(self._close_expired_forever())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._sweep_task.cancel()
        with suppress(asyncio.CancelledError):
            await self._sweep_task
        await asyncio.gather(*(container.close() for container in self._containers.values()))
        await self._sandbox.close()

    async def create(self, tenant: str, request: wc.CreateContainer) -> wc.ContainerResource:
        """Create a container with its files and skills. Raises ``InvalidRequest``, ``NotFound``,
        ``QuotaExceeded``."""
        self.policy.check(request.memory_limit, "memory_limit")
        if request.expires_after is not None and request.expires_after.minutes * 60 > max(
            self.policy.idle_s, 60
        ):
            raise InvalidRequest(
                "Containers of this server expire after at most"
                f" {round(self.policy.idle_s / 60)} idle minutes.",
                param="expires_after.minutes",
                code="invalid_value",
            )
        skills = await self.resolve_skills(tenant, request.skills, "skills")
        await check_inline_skills(request.skills, skills, "skills")
        container = self.reserve(tenant, request)
        container.add_skills(skills)
        try:
            await container.list_files()
        except (ToolError, NotFound):
            del self._containers[container.id]
            await container.close()
            raise
        return container.resource

    def reserve(self, tenant: str, request: wc.CreateContainer) -> Container:
        """Create a container whose box is opened when it is needed.

        At the tenant's limit, the longest unused container that a response created for itself
        expires. Raises ``QuotaExceeded`` if there is none."""
        containers, limit = self._active(tenant), self.quotas.of(tenant).max_containers
        if limit is not None and len(containers) >= limit and not self._evict_idle(containers):
            raise exceeded("active containers", max_containers=limit)
        container = Container(
            tenant,
            request,
            id=self._ids("cntr"),
            policy=self.policy,
            open=self._sandbox.open,
            uploads=self._uploads,
            clock=self._clock,
            ids=self._ids,
        )
        self._containers[container.id] = container
        return container

    def count_active(self, tenant: str) -> int:
        """Return the number of a tenant's active containers."""
        return len(self._active(tenant))

    def _active(self, tenant: str) -> list[Container]:
        return [
            container
            for container in self._containers.values()
            if container.tenant == tenant and container.is_active
        ]

    def _evict_idle(self, containers: Iterable[Container]) -> bool:
        """Expire one container that no client created and no response uses. Returns False if there
        is none."""
        idle = [
            container
            for container in containers
            if self._auto_users.get(container.id) == 0 and not container.is_busy
        ]
        if not idle:
            return False
        min(idle, key=lambda container: container.last_used_at).expire()
        return True

    def acquire_auto(
        self,
        tenant: str,
        request: wc.AutoContainer,
        items: Iterable[Item],
        skills: Iterable[ContainerSkill] = (),
    ) -> Container:
        """Acquire a container of type ``auto`` for a tool, with the requested files and skills.

        Returns the container of the last call among ``items`` if it is still active, otherwise a
        new one. Raises ``QuotaExceeded``."""
        container = self.last_active(tenant, items)
        if container is None:
            creation = wc.CreateContainer(name="auto", memory_limit=request.memory_limit)
            container = self.reserve(tenant, creation)
            self._auto_users[container.id] = 0
        container.add_files(request.file_ids)
        container.add_skills(skills)
        return self._count_user(container)

    def last_active(self, tenant: str, items: Iterable[Item]) -> Container | None:
        """Return the container of the last call among ``items``, None if it is not active."""
        container_id = next(filter(None, map(_container_id_of, reversed(tuple(items)))), None)
        with suppress(NotFound, InvalidRequest):
            return None if container_id is None else self.get_active(tenant, container_id)
        return None

    async def resolve_skills(
        self, tenant: str, skills: Iterable[ShellSkill], path: str
    ) -> tuple[ContainerSkill, ...]:
        """Return the skills that a request names at ``path``. Raises ``InvalidRequest``."""
        return await resolve_skills(self._library, tenant, skills, path)

    def acquire(self, tenant: str, container_id: str) -> Container:
        """Acquire the container that a request names. Raises what ``get_active`` raises."""
        return self._count_user(self.get_active(tenant, container_id))

    def _count_user(self, container: Container) -> Container:
        """Count one more response that uses the container, until ``release``."""
        if container.id in self._auto_users:
            self._auto_users[container.id] += 1
        return container

    def check_reference(self, tenant: str, container_id: str, path: str) -> None:
        """Raise ``InvalidRequest`` if the container a request names at ``path`` cannot be used."""
        try:
            self.get_active(tenant, container_id)
        except (NotFound, InvalidRequest) as error:
            raise InvalidRequest(error.message, param=path, code=error.code) from None

    async def check_auto(self, tenant: str, request: wc.AutoContainer, path: str) -> None:
        """Raise ``InvalidRequest`` if a file or skill that a request names at ``path`` does not
        exist."""
        for index, file_id in enumerate(request.file_ids):
            if await self._uploads.name(tenant, file_id) is None:
                raise InvalidRequest(
                    f"No such File object: {file_id}", param=f"{path}.file_ids[{index}]"
                )
        skills_path = f"{path}.skills"
        await check_inline_skills(
            request.skills,
            await self.resolve_skills(tenant, request.skills, skills_path),
            skills_path,
        )

    def release(self, container: Container) -> None:
        """End a response's use of a container. A container that was never used is removed."""
        if container.id in self._auto_users:
            self._auto_users[container.id] -= 1
        if container.is_unused and not self._auto_users.get(container.id):
            self._forget(container.id)

    def _forget(self, container_id: str) -> None:
        self._containers.pop(container_id, None)
        self._auto_users.pop(container_id, None)

    def get(self, tenant: str, container_id: str) -> Container:
        """Return a container. Raises ``NotFound``, also for another tenant's."""
        container = self._containers.get(container_id)
        if container is None or container.tenant != tenant:
            raise NotFound(f"Container with id '{container_id}' not found.", param="container_id")
        return container

    def get_active(self, tenant: str, container_id: str) -> Container:
        """Return a container that can be used. Raises ``NotFound``, or ``InvalidRequest`` if it has
        expired."""
        container = self.get(tenant, container_id)
        if not container.is_active:
            raise InvalidRequest(
                f"Container '{container_id}' has expired.", code="container_expired"
            )
        return container

    async def copy_upload(self, tenant: str, container_id: str, file_id: str) -> wc.ContainerFile:
        """Copy an uploaded file into a container. Raises ``NotFound``."""
        container = self.get_active(tenant, container_id)
        name, content = await self._uploads.read(tenant, file_id)
        return await container.write_file(safe_file_name(name), content)

    def list(self, tenant: str, page_params: PageParams) -> Page[wc.ContainerResource]:
        """Return one page of containers. Raises ``InvalidRequest`` for an unknown cursor."""
        containers = [
            container.resource
            for container in self._containers.values()
            if container.tenant == tenant
        ]
        return make_page(containers, page_params)

    async def list_files(
        self, tenant: str, container_id: str, page_params: PageParams
    ) -> Page[wc.ContainerFile]:
        """Return one page of files. Raises ``NotFound``, ``InvalidRequest``."""
        return make_page(await self.get_active(tenant, container_id).list_files(), page_params)

    async def delete(self, tenant: str, container_id: str) -> None:
        """Delete a container and its files. Raises ``NotFound``."""
        container = self.get(tenant, container_id)
        self._forget(container_id)
        await container.close()

    async def close_expired(self) -> None:
        """Close the boxes of expired containers, and remove the oldest of these containers."""
        expired = [container for container in self._containers.values() if not container.is_active]
        for container in expired:
            await container.close()
        for container in expired[: max(0, len(expired) - _MAX_EXPIRED)]:
            self._forget(container.id)

    async def _close_expired_forever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            await self.close_expired()


def _container_id_of(item: Item) -> str | None:
    """Return the id of the container that a call ran in."""
    if isinstance(item, CodeInterpreterCall):
        return item.container_id
    if isinstance(item, ShellCall) and isinstance(item.environment, dict):
        container = item.environment.get("container_id")
        return container if isinstance(container, str) else None
    return None

"""Containers: each of one tenant, found by its id, and gone when nobody uses it. They live in this
process: a box is processes and memory of this machine. It knows no tool and no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from antiphon.errors import InvalidRequest, NotFound, ToolError
from antiphon.pagination import Cut, page
from antiphon.sandbox.base import Sandbox
from antiphon.wire import containers as wc
from antiphon.wire.items import CodeInterpreterCall, Item, ShellCall
from antiphon.wire.pagination import Page
from antiphon.wire.skills import ShellSkill

from .container import Container, ContainerPolicy, Uploads, safe_file_name
from .skills import ContainerSkill, SkillLibrary, check_inline_skills, resolve_skills

__all__ = ["ContainerRegistry"]

_SWEEP_INTERVAL_S = 5.0
#: Expired ones of which the status is still told.
_MAX_EXPIRED = 1000


class ContainerRegistry:
    """All of them. Entered and left by whoever puts the server together; ``clock`` gives unix
    seconds."""

    def __init__(
        self,
        sandbox: Sandbox,
        policy: ContainerPolicy,
        *,
        uploads: Uploads,
        library: SkillLibrary,
        clock: Callable[[], float],
        ids: Callable[[str], str],
    ) -> None:
        self.policy = policy
        self._library = library
        self._sandbox = sandbox
        self._uploads = uploads
        self._clock = clock
        self._ids = ids
        self._containers: dict[str, Container] = {}
        #: Those that responses took for themselves, and how many have them now.
        self._auto_users: dict[str, int] = {}

    async def __aenter__(self) -> ContainerRegistry:
        self._sweep_task = asyncio.create_task(self._close_expired_forever())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._sweep_task.cancel()
        with suppress(asyncio.CancelledError):
            await self._sweep_task
        await asyncio.gather(*(each.close() for each in self._containers.values()))
        await self._sandbox.close()

    async def create(self, tenant: str, request: wc.CreateContainer) -> wc.Container:
        """A new one with its files and skills. Raises ``InvalidRequest``, ``NotFound``."""
        self.policy.check(request.memory_limit, "memory_limit")
        if request.expires_after is not None and request.expires_after.minutes * 60 > max(
            self.policy.idle_s, 60
        ):
            raise InvalidRequest(
                f"Containers of this server are kept for {round(self.policy.idle_s / 60)} idle"
                " minutes at most.",
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
        """One whose box is opened when it is needed. The oldest of those that responses took, and
        that nobody uses, makes room. Raises ``InvalidRequest`` for one too many."""
        mine = [one for one in self._containers.values() if one.tenant == tenant and one.is_active]
        if len(mine) >= self.policy.max_containers and not self._evict_idle(mine):
            raise InvalidRequest(
                f"There are {len(mine)} containers, as many as there can be: delete one.",
                code="container_limit_exceeded",
            )
        container = Container(
            tenant,
            request,
            id=self._ids("cntr"),
            rules=self.policy,
            open=self._sandbox.open,
            uploads=self._uploads,
            clock=self._clock,
            ids=self._ids,
        )
        self._containers[container.id] = container
        return container

    def _evict_idle(self, containers: Iterable[Container]) -> bool:
        """Let one expire that no client made and no response holds."""
        idle = [one for one in containers if self._auto_users.get(one.id) == 0 and not one.is_busy]
        if not idle:
            return False
        min(idle, key=lambda one: one.last_used_at).expire()
        return True

    def acquire_auto(
        self,
        tenant: str,
        request: wc.Auto,
        items: Iterable[Item],
        skills: Iterable[ContainerSkill] = (),
    ) -> Container:
        """For a tool: the container of the last call among ``items`` that is still there, or a new
        one, with the files and skills that are asked for. Raises ``InvalidRequest`` for one too
        many."""
        found = self._last_active(tenant, items)
        if found is None:
            about = wc.CreateContainer(name="auto", memory_limit=request.memory_limit)
            found = self.reserve(tenant, about)
            self._auto_users[found.id] = 0
        found.add_files(request.file_ids)
        found.add_skills(skills)
        return self._count_user(found)

    def _last_active(self, tenant: str, items: Iterable[Item]) -> Container | None:
        used = next(filter(None, map(_container_id_of, reversed(tuple(items)))), None)
        with suppress(NotFound, InvalidRequest):
            return None if used is None else self.get_active(tenant, used)
        return None

    async def resolve_skills(
        self, tenant: str, skills: Iterable[ShellSkill], path: str
    ) -> tuple[ContainerSkill, ...]:
        """The skills that a request names at ``path``. Raises ``InvalidRequest``."""
        return await resolve_skills(self._library, tenant, skills, path)

    def acquire(self, tenant: str, container_id: str) -> Container:
        """For a tool: the one that a request names. Raises what ``active`` raises."""
        return self._count_user(self.get_active(tenant, container_id))

    def _count_user(self, container: Container) -> Container:
        """A response has it until it is released."""
        if container.id in self._auto_users:
            self._auto_users[container.id] += 1
        return container

    def check_reference(self, tenant: str, container_id: str, path: str) -> None:
        """Raises ``InvalidRequest`` for one that a request names at ``path`` and cannot use."""
        try:
            self.get_active(tenant, container_id)
        except (NotFound, InvalidRequest) as error:
            raise InvalidRequest(error.message, param=path, code=error.code) from None

    async def check_auto(self, tenant: str, request: wc.Auto, path: str) -> None:
        """Raises ``InvalidRequest`` for what a request asks for at ``path`` and there is not."""
        for at, file_id in enumerate(request.file_ids):
            if await self._uploads.name(tenant, file_id) is None:
                raise InvalidRequest(
                    f"No such File object: {file_id}", param=f"{path}.file_ids[{at}]"
                )
        where = f"{path}.skills"
        await check_inline_skills(
            request.skills, await self.resolve_skills(tenant, request.skills, where), where
        )

    def release(self, container: Container) -> None:
        """The response is over. A container in which nothing was done leaves no trace."""
        if container.id in self._auto_users:
            self._auto_users[container.id] -= 1
        if container.is_unused and not self._auto_users.get(container.id):
            self._forget(container.id)

    def _forget(self, container_id: str) -> None:
        self._containers.pop(container_id, None)
        self._auto_users.pop(container_id, None)

    def get(self, tenant: str, container_id: str) -> Container:
        """Raises ``NotFound``, also for what is another tenant's."""
        found = self._containers.get(container_id)
        if found is None or found.tenant != tenant:
            raise NotFound(f"Container with id '{container_id}' not found.", param="container_id")
        return found

    def get_active(self, tenant: str, container_id: str) -> Container:
        """One that can be used. Raises ``NotFound``, ``InvalidRequest`` if it has expired."""
        found = self.get(tenant, container_id)
        if not found.is_active:
            raise InvalidRequest(
                f"Container '{container_id}' has expired.", code="container_expired"
            )
        return found

    async def copy_upload(self, tenant: str, container_id: str, file_id: str) -> wc.ContainerFile:
        """A copy of an uploaded file. Raises ``NotFound``."""
        container = self.get_active(tenant, container_id)
        name, content = await self._uploads.read(tenant, file_id)
        return await container.write_file(safe_file_name(name), content)

    def list(self, tenant: str, cut: Cut) -> Page[wc.Container]:
        """Raises ``InvalidRequest`` for a cursor that is none."""
        mine = [each.resource for each in self._containers.values() if each.tenant == tenant]
        return page(mine, cut)

    async def list_files(self, tenant: str, container_id: str, cut: Cut) -> Page[wc.ContainerFile]:
        """Raises ``NotFound``, ``InvalidRequest``."""
        return page(await self.get_active(tenant, container_id).list_files(), cut)

    async def delete(self, tenant: str, container_id: str) -> None:
        """For good. Raises ``NotFound``."""
        container = self.get(tenant, container_id)
        self._forget(container_id)
        await container.close()

    async def close_expired(self) -> None:
        """Close those whose time is over; the oldest of them are forgotten."""
        over = [each for each in self._containers.values() if not each.is_active]
        for container in over:
            await container.close()
        for container in over[: max(0, len(over) - _MAX_EXPIRED)]:
            self._forget(container.id)

    async def _close_expired_forever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            await self.close_expired()


def _container_id_of(item: Item) -> str | None:
    """The container that a call ran in."""
    if isinstance(item, CodeInterpreterCall):
        return item.container_id
    if isinstance(item, ShellCall) and isinstance(item.environment, dict):
        found = item.environment.get("container_id")
        return found if isinstance(found, str) else None
    return None

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

from .container import Container, Rules, Uploads, safe
from .skills import Equipped, Library, equipment, inspect

__all__ = ["Containers"]

_SWEEP_S = 5.0
#: Expired ones of which the status is still told.
_REMEMBERED = 1000


class Containers:
    """All of them. Entered and left by whoever puts the server together; ``clock`` gives unix
    seconds."""

    def __init__(
        self,
        sandbox: Sandbox,
        rules: Rules,
        *,
        uploads: Uploads,
        library: Library,
        clock: Callable[[], float],
        ids: Callable[[str], str],
    ) -> None:
        self.rules = rules
        self._library = library
        self._sandbox = sandbox
        self._uploads = uploads
        self._clock = clock
        self._ids = ids
        self._all: dict[str, Container] = {}
        #: Those that responses took for themselves, and how many have them now.
        self._taken: dict[str, int] = {}

    async def __aenter__(self) -> Containers:
        self._sweeping = asyncio.create_task(self._sweep())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await self._sweeping
        await asyncio.gather(*(each.close() for each in self._all.values()))
        await self._sandbox.close()

    async def create(self, tenant: str, asked: wc.CreateContainer) -> wc.Container:
        """A new one with its files and skills. Raises ``InvalidRequest``, ``NotFound``."""
        self.rules.check(asked.memory_limit, "memory_limit")
        if asked.expires_after is not None and asked.expires_after.minutes * 60 > max(
            self.rules.idle_s, 60
        ):
            raise InvalidRequest(
                f"Containers of this server are kept for {round(self.rules.idle_s / 60)} idle"
                " minutes at most.",
                param="expires_after.minutes",
                code="invalid_value",
            )
        skills = await self.equipment(tenant, asked.skills, "skills")
        await inspect(asked.skills, skills, "skills")
        container = self.reserve(tenant, asked)
        container.equip(skills)
        try:
            await container.files()
        except (ToolError, NotFound):
            del self._all[container.id]
            await container.close()
            raise
        return container.shown

    def reserve(self, tenant: str, asked: wc.CreateContainer) -> Container:
        """One whose box is opened when it is needed. The oldest of those that responses took, and
        that nobody uses, makes room. Raises ``InvalidRequest`` for one too many."""
        mine = [one for one in self._all.values() if one.tenant == tenant and one.is_active]
        if len(mine) >= self.rules.most and not self._spare(mine):
            raise InvalidRequest(
                f"There are {len(mine)} containers, as many as there can be: delete one.",
                code="container_limit_exceeded",
            )
        container = Container(
            tenant,
            asked,
            id=self._ids("cntr"),
            rules=self.rules,
            open=self._sandbox.open,
            uploads=self._uploads,
            clock=self._clock,
            ids=self._ids,
        )
        self._all[container.id] = container
        return container

    def _spare(self, mine: Iterable[Container]) -> bool:
        """Let one expire that no client made and no response holds."""
        idle = [one for one in mine if self._taken.get(one.id) == 0 and not one.is_busy]
        if not idle:
            return False
        min(idle, key=lambda one: one.used_at).expire()
        return True

    def take(
        self,
        tenant: str,
        asked: wc.Auto,
        items: Iterable[Item],
        skills: Iterable[Equipped] = (),
    ) -> Container:
        """For a tool: the container of the last call among ``items`` that is still there, or a new
        one, with the files and skills that are asked for. Raises ``InvalidRequest`` for one too
        many."""
        found = self._before(tenant, items)
        if found is None:
            about = wc.CreateContainer(name="auto", memory_limit=asked.memory_limit)
            found = self.reserve(tenant, about)
            self._taken[found.id] = 0
        found.bring(asked.file_ids)
        found.equip(skills)
        return self._held(found)

    def _before(self, tenant: str, items: Iterable[Item]) -> Container | None:
        used = next(filter(None, map(_used, reversed(tuple(items)))), None)
        with suppress(NotFound, InvalidRequest):
            return None if used is None else self.active(tenant, used)
        return None

    async def equipment(
        self, tenant: str, skills: Iterable[ShellSkill], path: str
    ) -> tuple[Equipped, ...]:
        """The skills that a request names at ``path``. Raises ``InvalidRequest``."""
        return await equipment(self._library, tenant, skills, path)

    def hold(self, tenant: str, container_id: str) -> Container:
        """For a tool: the one that a request names. Raises what ``active`` raises."""
        return self._held(self.active(tenant, container_id))

    def _held(self, container: Container) -> Container:
        """A response has it until it is released."""
        if container.id in self._taken:
            self._taken[container.id] += 1
        return container

    def check(self, tenant: str, container_id: str, path: str) -> None:
        """Raises ``InvalidRequest`` for one that a request names at ``path`` and cannot use."""
        try:
            self.active(tenant, container_id)
        except (NotFound, InvalidRequest) as error:
            raise InvalidRequest(error.message, param=path, code=error.code) from None

    async def admit(self, tenant: str, asked: wc.Auto, path: str) -> None:
        """Raises ``InvalidRequest`` for what a request asks for at ``path`` and there is not."""
        for at, file_id in enumerate(asked.file_ids):
            if await self._uploads.name(tenant, file_id) is None:
                raise InvalidRequest(
                    f"No such File object: {file_id}", param=f"{path}.file_ids[{at}]"
                )
        where = f"{path}.skills"
        await inspect(asked.skills, await self.equipment(tenant, asked.skills, where), where)

    def release(self, container: Container) -> None:
        """The response is over. A container in which nothing was done leaves no trace."""
        if container.id in self._taken:
            self._taken[container.id] -= 1
        if container.is_untouched and not self._taken.get(container.id):
            self._forget(container.id)

    def _forget(self, container_id: str) -> None:
        self._all.pop(container_id, None)
        self._taken.pop(container_id, None)

    def find(self, tenant: str, container_id: str) -> Container:
        """Raises ``NotFound``, also for what is another tenant's."""
        found = self._all.get(container_id)
        if found is None or found.tenant != tenant:
            raise NotFound(f"Container with id '{container_id}' not found.", param="container_id")
        return found

    def active(self, tenant: str, container_id: str) -> Container:
        """One that can be used. Raises ``NotFound``, ``InvalidRequest`` if it has expired."""
        found = self.find(tenant, container_id)
        if not found.is_active:
            raise InvalidRequest(
                f"Container '{container_id}' has expired.", code="container_expired"
            )
        return found

    async def put_upload(self, tenant: str, container_id: str, file_id: str) -> wc.ContainerFile:
        """A copy of an uploaded file. Raises ``NotFound``."""
        container = self.active(tenant, container_id)
        name, content = await self._uploads.read(tenant, file_id)
        return await container.put(safe(name), content)

    def list(self, tenant: str, cut: Cut) -> Page[wc.Container]:
        """Raises ``InvalidRequest`` for a cursor that is none."""
        mine = [each.shown for each in self._all.values() if each.tenant == tenant]
        return page(mine, cut)

    async def list_files(self, tenant: str, container_id: str, cut: Cut) -> Page[wc.ContainerFile]:
        """Raises ``NotFound``, ``InvalidRequest``."""
        return page(await self.active(tenant, container_id).files(), cut)

    async def delete(self, tenant: str, container_id: str) -> None:
        """For good. Raises ``NotFound``."""
        container = self.find(tenant, container_id)
        self._forget(container_id)
        await container.close()

    async def sweep(self) -> None:
        """Close those whose time is over; the oldest of them are forgotten."""
        over = [each for each in self._all.values() if not each.is_active]
        for container in over:
            await container.close()
        for container in over[: max(0, len(over) - _REMEMBERED)]:
            self._forget(container.id)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            await self.sweep()


def _used(item: Item) -> str | None:
    """The container that a call ran in."""
    if isinstance(item, CodeInterpreterCall):
        return item.container_id
    if isinstance(item, ShellCall) and isinstance(item.environment, dict):
        found = item.environment.get("container_id")
        return found if isinstance(found, str) else None
    return None
